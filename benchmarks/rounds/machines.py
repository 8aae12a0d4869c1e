"""Times rounds on two actors of a Ray cluster against rounds in process, in turns.

    python -m benchmarks.rounds.machines 7 lstm-128 1

The numbers are: rounds, and nodes of the cluster, all on this machine, which share two processors.
The cluster ends with the script.
"""

import contextlib
import json
import os
import pickle
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')  # Two clients at a time in process.
os.environ.setdefault('TF_NUM_INTRAOP_THREADS', '1')

import numpy as np
import ray
import tensorflow as tf
import tensorflow_federated as tff
from ray import cluster_utils

import tff_inprocess
from benchmarks.rounds import cases
from benchmarks.rounds import training as small
from benchmarks.training import cases as training_cases
from benchmarks.training import side as training
from experiments.stackoverflow.datasets import dataset

PROCESSORS = 2
_WARM_UP = 2


def lstm(folder: str) -> tuple[Any, list[tff_inprocess.Later]]:
  """Returns the process of the training benchmark, and its clients."""
  (case,) = (case for case in training_cases.CASES if case.name == f'training-{cases.LSTM}')
  process, data = training.process_and_data(case)
  make = lambda client: dataset.client_dataset(data, client, batch_size=case.batches[0])
  return process, [tff_inprocess.Later(make, (client,)) for client in data.train_clients]


def one_batch(folder: str) -> tuple[Any, list[tff_inprocess.Later]]:
  """Returns a process of many parameters, and four clients with little to do."""
  process, _ = small.side('plain', cases.NUM_PARAMETERS, folder)
  shape = [1, 16, small._WIDTH]

  def make(client):
    ones = np.ones(shape, np.float32)
    return tf.data.Dataset.from_tensor_slices(dict(x=ones, y=ones))

  return process, [tff_inprocess.Later(make, (client,)) for client in range(small.CLIENTS)]


@contextlib.contextmanager
def started(num_nodes: int) -> Iterator[str]:
  """Starts a cluster and yields its address; it ends by its own processes."""
  os.environ.setdefault('RAY_raylet_start_wait_time_s', '120')
  node = dict(num_cpus=PROCESSORS // num_nodes, object_store_memory=500_000_000)
  made = cluster_utils.Cluster(True, head_node_args={**node, 'include_dashboard': False})
  try:
    for _ in range(num_nodes - 1):
      made.add_node(**node)
    yield made.address
  finally:
    ray.shutdown()
    made.shutdown()


class Counted:
  """A function of Ray that counts the bytes of what passes through it."""

  def __init__(self, function: Callable[..., Any], size: Callable[[Any, Any], int]):
    self._function, self._size = function, size
    self.bytes: list[int] = []

  def __call__(self, given: Any, **options: Any) -> Any:
    result = self._function(given, **options)
    self.bytes.append(self._size(given, result))
    return result


def _pickled(value: Any) -> int:
  try:
    return len(pickle.dumps(value, 5))
  except Exception:  # A function, which is sent once.
    return 0


def main(num_rounds: int, name: str, num_nodes: int) -> dict[str, Any]:
  """Returns seconds of rounds here and on machines, and what a round sends."""
  sides: dict[str, Any] = {}
  seconds: dict[str, list[float]] = {}
  sent: list[dict[str, int]] = []
  put = ray.put = Counted(ray.put, lambda given, result: _pickled(given))
  got = ray.get = Counted(ray.get, lambda given, result: _pickled(result))
  with tempfile.TemporaryDirectory() as folder, started(num_nodes) as address:
    actors = tff_inprocess.Actors(number=PROCESSORS)
    here = tff_inprocess.InProcessContext(max_concurrent_clients=PROCESSORS)
    with tff_inprocess.on_machines(address, actors=actors) as there:
      with tff.framework.get_context_stack().install(here):
        process, clients = {cases.LSTM: lstm, cases.ONE_BATCH: one_batch}[name](folder)
        state = process.initialize()
      sides = {'in process': (here, state), 'machines': (there, state)}
      seconds = {side: [] for side in sides}
      for _ in range(num_rounds + _WARM_UP):
        put.bytes, got.bytes = [], []
        for side, (context, state) in sides.items():
          start = time.perf_counter()
          with tff.framework.get_context_stack().install(context):
            output = process.next(state, clients)
          seconds[side].append(time.perf_counter() - start)
          sides[side] = context, output.state
        sent.append(dict(to_machine=sum(put.bytes), to_driver=sum(got.bytes), num=len(got.bytes)))
      model = process.get_model_weights(state)
  weights = tf.nest.flatten([model.trainable, model.non_trainable])
  return {
    'seconds': {side: found[_WARM_UP:] for side, found in seconds.items()},
    'model_bytes': sum(np.asarray(w).nbytes for w in weights),
    'sent': sent[-1],
  }


if __name__ == '__main__':
  print(json.dumps(main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))))
