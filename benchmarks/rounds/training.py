"""Times rounds of FedAvg with four clients, one of each mechanism in turn.

    python -m benchmarks.rounds.training 7 1 4050748 0 gaussian_fixed blt-4

The numbers are: rounds, batches per client, model parameters, and clients that
train at the same time. Names after `in process: ` run in process, the others by
TFF's worker. No side is deterministic, because TFF's `gaussian_fixed`
does not support it.
"""

import collections
import contextlib
import json
import os
import pathlib
import sys
import tempfile
import time

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.rounds import cases, noise
from fl_dpftrl import runtime
from fl_dpftrl.aggregators import factory
from fl_dpftrl.learning import process as process_lib
from fl_dpftrl.learning import served, workers
from fl_dpftrl.noise import engine

CLIENTS = 4
INSIDE = 'inside TFF: '
IN_PROCESS = 'in process: '
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


def side(name: str, size: int, folder: str, stack: contextlib.ExitStack):
  """Returns (process, initial state) of a mechanism, by its name."""
  build = lambda aggregator: process_lib.build(
    model(size), aggregator=aggregator, client_learning_rate=0.1, server_learning_rates=np.ones(1)
  )
  aggregator = of_tff(name, size)
  if aggregator is not None:
    process = build(aggregator)
    return process, process.initialize()
  same = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=CLIENTS)
  strategy = cases.strategy(name.removeprefix(INSIDE))
  if name.startswith(INSIDE):
    process = build(factory.CorrelatedNoiseFactory(strategy, **same))
    return process, process.initialize()
  rows = engine.RowServer(
    strategy, tempfile.mkdtemp(dir=folder), size=size, num_rounds=cases.NUM_ROUNDS, stddev=1.0
  )
  stack.callback(rows.close)
  process = served.ServedProcess(
    build(factory.CorrelatedNoiseFactory(strategy, **same, memory=rows)), rows
  )
  state = process.initialize()
  row = cases.first_row(name)
  # The state is set as if the rows before had been used.
  source = rows._source
  source._maker = source._new_maker()
  noise.full(source._maker, row)
  numbers = state.aggregator.noise._replace(row=np.int64(row))
  aggregator = state.aggregator._replace(noise=numbers)
  return process, state._replace(aggregator=aggregator)


def _bytes(state: object) -> int:
  """Returns the bytes that TFF carries to its worker and back in each round."""
  leaves = tf.nest.flatten(state)
  return sum(np.asarray(leaf).nbytes for leaf in leaves)


def _resident(pid: int) -> float:
  """Returns the peak memory of a process, in GiB."""
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  line = next(l for l in status.splitlines() if l.startswith('VmHWM'))
  return int(line.split()[1]) / 2**20


def main(num_rounds: int, batches: int, size: int, concurrent: int, names: list[str]) -> dict:
  worker, contexts = None, {}
  if not all(name.startswith(IN_PROCESS) for name in names):
    worker = workers.LocalWorker(concurrent, deterministic=False)
    contexts[False] = worker.context()
  contexts[True] = runtime.InProcessContext(max_concurrent_clients=concurrent or None)
  of = lambda name: tff.framework.get_context_stack().install(contexts[name.startswith(IN_PROCESS)])
  ones = np.ones([batches, 16, _WIDTH], np.float32)
  data = [tf.data.Dataset.from_tensor_slices(dict(x=ones, y=ones))] * CLIENTS
  seconds = {name: [] for name in names}
  with contextlib.ExitStack() as stack:
    if worker is not None:
      stack.callback(worker.stop)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    sides = {}
    for name in names:
      with of(name):
        sides[name] = side(name.removeprefix(IN_PROCESS), size, folder, stack)
    for _ in range(num_rounds + 2):  # Two rounds to warm up.
      for name, (process, state) in sides.items():
        start = time.perf_counter()
        with of(name):
          output = process.next(state, data)
        seconds[name].append(time.perf_counter() - start)
        sides[name] = process, output.state
    carried = {name: _bytes(state) for name, (_, state) in sides.items()}
    held = _resident(os.getpid())
    held += _resident(worker.pid) if worker is not None else 0.0
  return {
    'seconds': {name: found[2:] for name, found in seconds.items()},
    'state_bytes': carried,
    'gibibytes': held,
  }


if __name__ == '__main__':
  print(json.dumps(main(*map(int, sys.argv[1:5]), sys.argv[5:])))
