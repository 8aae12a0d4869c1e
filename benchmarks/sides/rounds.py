"""Rounds of FedAvg with four clients, one of each mechanism in turn; rounds on actors of a cluster.

Names after `worker: ` run by TFF's own context and its worker, the others in process; `state: ` and
`engine: ` say where noise is kept. No side is deterministic, because TFF's `gaussian_fixed` does
not support it. The nodes of the cluster are all on this machine, share two processors, and end with
the process.
"""

import collections
import contextlib
import os
import pathlib
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from benchmarks import rounds as page
from benchmarks import training as training_page
from benchmarks.sides import noise
from experiments.stackoverflow.datasets import federated_text
from fl_dpftrl.noise import snapshots
from fl_dpftrl.tff.aggregators import factories
from fl_dpftrl.tff.training import processes

CLIENTS = 4
WORKER = 'worker: '
_WIDTH = 670
PROCESSORS = 2
_WARM_UP = 2


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


def side(name: str, size: int, folder: str):
  """Returns (process, initial state) of a mechanism, by its name; some are TFF's own."""
  dp, row = tff.aggregators.DifferentiallyPrivateFactory, 0
  both = dict(noise_multiplier=1.0, clients_per_round=CLIENTS)
  if name == 'plain':
    aggregator = tff.aggregators.UnweightedMeanFactory()
  elif name == 'gaussian_fixed':
    aggregator = dp.gaussian_fixed(**both, clip=1.0)
  elif name == 'tree_aggregation':
    specs = tuple(tf.TensorSpec(w.shape, tf.float32) for w in model(size).initial_weights[0])
    options = dict(l2_norm_clip=1.0, record_specs=specs, use_efficient=True)
    aggregator = dp.tree_aggregation(**both, **options)
  else:
    memory, mechanism = name.split(': ')
    options = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=CLIENTS, memory=memory)
    if memory == 'engine':
      row, options['noise_folder'] = noise.first_row(mechanism), tempfile.mkdtemp(dir=folder)
    aggregator = factories.CorrelatedNoiseFactory(noise.strategy(mechanism), **options)
  process = processes.build_fed_avg(
    model(size), aggregator=aggregator, client_learning_rate=0.1, server_learning_rates=np.ones(1)
  )
  state = process.initialize()
  if row:
    # The state is set as if the rows before had been used, and buffers as if read from a snapshot.
    snapshots.Snapshots.load = lambda self, before: noise.fill(self._maker, row)
    numbers = state.aggregator.noise._replace(row=np.int64(row))
    state = state._replace(aggregator=state.aggregator._replace(noise=numbers))
  return process, state


def size_of(value: Any) -> int:
  """Returns the bytes of arrays."""
  return sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(value))


def _resident(pid: int) -> float:
  """Returns the peak memory of a process, in GiB."""
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  line = next(l for l in status.splitlines() if l.startswith('VmHWM'))
  return int(line.split()[1]) / 2**20


def _workers() -> list[int]:
  """Returns the processes that TFF's context started."""
  tasks = pathlib.Path('/proc/self/task').iterdir()
  return [int(pid) for task in tasks for pid in (task / 'children').read_text().split()]


def installed(context: Any) -> contextlib.AbstractContextManager[None]:
  """Returns the context in which TFF runs."""
  return tff.framework.get_context_stack().install(context)


def turns(num_rounds: int, sides: dict[str, tuple], data: list, begin=lambda: None) -> dict:
  """Runs rounds of contexts, processes and states in turn; returns the seconds, but of warm-up."""
  seconds = {name: [] for name in sides}
  for _ in range(num_rounds + _WARM_UP):
    begin()
    for name, (context, process, state) in sides.items():
      start = time.perf_counter()
      with installed(context):
        state = process.next(state, data).state
      seconds[name].append(time.perf_counter() - start)
      sides[name] = context, process, state
  return {name: found[_WARM_UP:] for name, found in seconds.items()}


def measure(
  num_rounds: int, batches: int, size: int, concurrent: int, names: list[str]
) -> dict[str, Any]:
  """Returns the seconds of each mechanism's rounds, the bytes of its state, and GiB of all."""
  contexts = {False: tff_inprocess.InProcessContext(max_concurrent_clients=concurrent or None)}
  if any(name.startswith(WORKER) for name in names):
    contexts[True] = tff.backends.native.create_sync_local_cpp_execution_context()
  ones = np.ones([batches, 16, _WIDTH], np.float32)
  data = [tf.data.Dataset.from_tensor_slices(dict(x=ones, y=ones))] * CLIENTS
  with tempfile.TemporaryDirectory() as folder:
    sides = {}
    for name in names:
      context = contexts[name.startswith(WORKER)]
      with installed(context):
        sides[name] = context, *side(name.removeprefix(WORKER), size, folder)
    seconds = turns(num_rounds, sides, data)
    carried = {name: size_of(state) for name, (*_, state) in sides.items()}
    held = _resident(os.getpid()) + sum(map(_resident, _workers()))
  for pid in _workers():  # TFF leaves it behind.
    os.kill(pid, signal.SIGKILL)
  return {'seconds': seconds, 'state_bytes': carried, 'gibibytes': held}


def lstm(folder: str) -> tuple[Any, list[tff_inprocess.Later]]:
  """Returns the process of the training benchmark, and its clients."""
  from benchmarks.sides import training

  case = training_page.CASES[f'training-{page.LSTM}']
  process, data = training.process_and_data(case)
  make = lambda client: federated_text.client_dataset(data, client, batch_size=case.batches[0])
  return process, [tff_inprocess.Later(make, (client,)) for client in data.train_clients]


def one_batch(folder: str) -> tuple[Any, list[tff_inprocess.Later]]:
  """Returns a process of many parameters, and four clients with little to do."""
  process, _ = side('plain', page.NUM_PARAMETERS, folder)
  shape = [1, 16, _WIDTH]

  def make(client):
    ones = np.ones(shape, np.float32)
    return tf.data.Dataset.from_tensor_slices(dict(x=ones, y=ones))

  return process, [tff_inprocess.Later(make, (client,)) for client in range(CLIENTS)]


@contextlib.contextmanager
def started(num_nodes: int) -> Iterator[str]:
  """Starts a cluster and yields its address; it ends by its own processes."""
  import ray
  from ray import cluster_utils

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


def counted(function: Callable[..., Any], size: Callable[[Any, Any], Any], counting: list[bool]):
  """Returns a function of Ray, and the list of the bytes of what passes through it."""
  sizes: list[int] = []

  def call(value: Any, **options: Any) -> Any:
    result = function(value, **options)
    if counting:
      with contextlib.suppress(Exception):  # Functions are sent once, and cannot be pickled so.
        sizes.append(len(pickle.dumps(size(value, result), 5)))
    return result

  return call, sizes


def on_actors(num_rounds: int, name: str, num_nodes: int) -> dict[str, Any]:
  """Returns seconds of rounds here and on machines, and what a round sends."""
  import ray

  counting: list[bool] = []  # Whether bytes are counted; it travels with Ray's functions.
  ray.put, put = counted(ray.put, lambda value, result: value, counting)
  ray.get, got = counted(ray.get, lambda value, result: result, counting)
  with tempfile.TemporaryDirectory() as folder, started(num_nodes) as address:
    actors = tff_inprocess.Actors(number=PROCESSORS)
    here = tff_inprocess.InProcessContext(max_concurrent_clients=PROCESSORS)
    with tff_inprocess.on_machines(address, actors=actors) as there:
      with installed(here):
        process, clients = {page.LSTM: lstm, page.ONE_BATCH: one_batch}[name](folder)
        state = process.initialize()
      sides = {'in process': (here, process, state), 'machines': (there, process, state)}
      seconds = turns(num_rounds, sides, clients)
      counting.append(True)  # Not before: it takes time.
      turns(0, sides, clients, lambda: (put.clear(), got.clear()))
      sent = dict(to_machine=sum(put), to_driver=sum(got))
      model = process.get_model_weights(sides['machines'][-1])
  model_bytes = size_of([model.trainable, model.non_trainable])
  return {'seconds': seconds, 'model_bytes': model_bytes, 'sent': sent}
