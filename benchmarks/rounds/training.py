"""Times rounds of FedAvg with four clients, one of each mechanism in turn.

    python -m benchmarks.rounds.training 7 1 4050748 0 gaussian_fixed 'state: blt-4'

The numbers are: rounds, batches per client, model parameters, and clients that
train at the same time. Names after `worker: ` run by TFF's own context and its worker, the
others in process; `state: ` and `engine: ` say where noise is kept. No side is
deterministic, because TFF's `gaussian_fixed` does not support it.
"""

import collections
import json
import os
import pathlib
import signal
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from benchmarks.rounds import cases, noise
from fl_dpftrl.aggregators import factory
from fl_dpftrl.noise import snapshots
from fl_dpftrl.training import process as process_lib

CLIENTS = 4
STATE, ENGINE, WORKER = 'state: ', 'engine: ', 'worker: '
_WIDTH = 670


def model(size: int) -> tff.learning.models.FunctionalModel:
  """Returns a model of `size` parameters; training uses one matrix of them."""
  spec = collections.OrderedDict(
    x=tf.TensorSpec([None, _WIDTH], tf.float32), y=tf.TensorSpec([None, _WIDTH], tf.float32)
  )
  rest = size - _WIDTH**2
  weights = (np.zeros(rest, np.float32), np.zeros([_WIDTH, _WIDTH], np.float32))

  @tf.function
  def predict(weights, x, training):
    del training
    return x @ weights[0][1] + weights[0][0][:1]

  @tf.function
  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label))

  return tff.learning.models.FunctionalModel(
    initial_weights=(weights, ()), predict_on_batch_fn=predict, loss_fn=loss, input_spec=spec
  )


def of_tff(name: str, size: int) -> tff.aggregators.UnweightedAggregationFactory | None:
  """Returns TFF's own aggregator of a name; None if TFF has none."""
  dp = tff.aggregators.DifferentiallyPrivateFactory
  if name == 'plain':
    return tff.aggregators.UnweightedMeanFactory()
  same = dict(noise_multiplier=1.0, clients_per_round=CLIENTS)
  if name == 'gaussian_fixed':
    return dp.gaussian_fixed(**same, clip=1.0)
  if name == 'tree_aggregation':
    shapes = tuple(tf.TensorSpec(w.shape, tf.float32) for w in model(size).initial_weights[0])
    return dp.tree_aggregation(**same, l2_norm_clip=1.0, record_specs=shapes, use_efficient=True)
  return None


def side(name: str, size: int, folder: str):
  """Returns (process, initial state) of a mechanism, by its name."""
  build = lambda aggregator: process_lib.build_fed_avg(
    model(size), aggregator=aggregator, client_learning_rate=0.1, server_learning_rates=np.ones(1)
  )
  aggregator = of_tff(name, size)
  if aggregator is not None:
    process = build(aggregator)
    return process, process.initialize()
  same = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=CLIENTS)
  if name.startswith(STATE):
    strategy = cases.strategy(name.removeprefix(STATE))
    process = build(factory.CorrelatedNoiseFactory(strategy, **same, memory='state'))
    return process, process.initialize()
  mechanism = name.removeprefix(ENGINE)
  kept = dict(memory='engine', noise_folder=tempfile.mkdtemp(dir=folder))
  process = build(factory.CorrelatedNoiseFactory(cases.strategy(mechanism), **same, **kept))
  state = process.initialize()
  # The state is set as if the rows before had been used, and buffers as if read from a snapshot.
  row = cases.first_row(mechanism)
  snapshots.Snapshots.load = lambda self, maker, before: noise.full(maker, row)
  numbers = state.aggregator.noise._replace(row=np.int64(row))
  aggregator = state.aggregator._replace(noise=numbers)
  return process, state._replace(aggregator=aggregator)


def _bytes(state: object) -> int:
  """Returns the bytes of a state."""
  leaves = tf.nest.flatten(state)
  return sum(np.asarray(leaf).nbytes for leaf in leaves)


def _resident(pid: int) -> float:
  """Returns the peak memory of a process, in GiB."""
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  line = next(l for l in status.splitlines() if l.startswith('VmHWM'))
  return int(line.split()[1]) / 2**20


def _workers() -> list[int]:
  """Returns the processes that TFF's context started."""
  tasks = pathlib.Path('/proc/self/task').iterdir()
  return [int(pid) for task in tasks for pid in (task / 'children').read_text().split()]


def main(num_rounds: int, batches: int, size: int, concurrent: int, names: list[str]) -> dict:
  contexts = {False: tff_inprocess.InProcessContext(max_concurrent_clients=concurrent or None)}
  if any(name.startswith(WORKER) for name in names):
    contexts[True] = tff.backends.native.create_sync_local_cpp_execution_context()
  of = lambda name: tff.framework.get_context_stack().install(contexts[name.startswith(WORKER)])
  ones = np.ones([batches, 16, _WIDTH], np.float32)
  data = [tf.data.Dataset.from_tensor_slices(dict(x=ones, y=ones))] * CLIENTS
  seconds = {name: [] for name in names}
  with tempfile.TemporaryDirectory() as folder:
    sides = {}
    for name in names:
      with of(name):
        sides[name] = side(name.removeprefix(WORKER), size, folder)
    for _ in range(num_rounds + 2):  # Two rounds to warm up.
      for name, (process, state) in sides.items():
        start = time.perf_counter()
        with of(name):
          output = process.next(state, data)
        seconds[name].append(time.perf_counter() - start)
        sides[name] = process, output.state
    carried = {name: _bytes(state) for name, (_, state) in sides.items()}
    held = _resident(os.getpid()) + sum(map(_resident, _workers()))
  for pid in _workers():  # TFF leaves it behind.
    os.kill(pid, signal.SIGKILL)
  return {
    'seconds': {name: found[2:] for name, found in seconds.items()},
    'state_bytes': carried,
    'gibibytes': held,
  }


if __name__ == '__main__':
  print(json.dumps(main(*map(int, sys.argv[1:5]), sys.argv[5:])))
