"""Times rounds of FedAvg with four clients, each mechanism's in turn.

    python -m benchmarks.rounds.training 7 1 gaussian_fixed blt-4 tree_online

The first number is of rounds, the second of batches that each client trains on.
No side has to be deterministic: TFF's `gaussian_fixed` does not run so.
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

from benchmarks.rounds import cases
from benchmarks.rounds import noise
from fl_dpftrl.aggregators import by_reference
from fl_dpftrl.aggregators import factory
from fl_dpftrl.learning import process as process_lib
from fl_dpftrl.learning import served
from fl_dpftrl.learning import workers
from fl_dpftrl.noise import engine

CLIENTS = 4
INSIDE = 'inside TFF: '
_WIDTH = 670


def model() -> tff.learning.models.FunctionalModel:
  """As many parameters, of which training uses a matrix."""
  spec = collections.OrderedDict(
      x=tf.TensorSpec([None, _WIDTH], tf.float32),
      y=tf.TensorSpec([None, _WIDTH], tf.float32),
  )
  rest = cases.NUM_PARAMETERS - _WIDTH**2
  weights = (
      np.zeros(rest, np.float32), np.zeros([_WIDTH, _WIDTH], np.float32)
  )

  @tf.function
  def predict(weights, x, training):
    del training
    return x @ weights[0][1] + weights[0][0][:1]

  @tf.function
  def loss(output, label, sample_weight=None):
    del sample_weight
    return tf.reduce_mean(tf.square(output - label))

  return tff.learning.models.FunctionalModel(
      initial_weights=(weights, ()), predict_on_batch_fn=predict, loss_fn=loss,
      input_spec=spec,
  )


def side(name: str, folder: str, stack: contextlib.ExitStack):
  """(process, its first state) of a mechanism, by its name."""
  build = lambda aggregator: process_lib.build(
      model(), aggregator=aggregator, client_learning_rate=0.1,
      server_learning_rates=np.ones(1),
  )
  if name == 'gaussian_fixed':
    process = build(
        tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
            noise_multiplier=1.0, clients_per_round=CLIENTS, clip=1.0
        )
    )
    return process, process.initialize()
  same = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=CLIENTS)
  strategy = cases.strategy(name.removeprefix(INSIDE))
  if name.startswith(INSIDE):
    process = build(factory.CorrelatedNoiseFactory(strategy, **same))
    return process, process.initialize()
  rows = engine.RowServer(
      strategy, tempfile.mkdtemp(dir=folder), size=cases.NUM_PARAMETERS,
      num_rounds=cases.NUM_ROUNDS, stddev=1.0,
  )
  stack.callback(rows.close)
  process = served.ServedProcess(
      build(by_reference.NoiseByReferenceFactory(strategy, **same, rows=rows)),
      rows,
  )
  state = process.initialize()
  row = cases.first_row(name)
  # As if the rows before had been used.
  rows._maker = rows._new_maker()  # pylint: disable=protected-access
  noise.full(rows._maker, row)  # pylint: disable=protected-access
  numbers = state.aggregator.noise._replace(row=np.int64(row))
  aggregator = state.aggregator._replace(noise=numbers)
  return process, state._replace(aggregator=aggregator)


def _resident(pid: int) -> float:
  """GiB that a process has held at the most."""
  status = pathlib.Path(f'/proc/{pid}/status').read_text()
  line = next(l for l in status.splitlines() if l.startswith('VmHWM'))
  return int(line.split()[1]) / 2**20


def main(num_rounds: int, batches: int, names: list[str]) -> dict:
  worker = workers.LocalWorker(deterministic=False)
  tff.framework.set_default_context(worker.context())
  ones = np.ones([batches, 16, _WIDTH], np.float32)
  data = [tf.data.Dataset.from_tensor_slices(dict(x=ones, y=ones))] * CLIENTS
  seconds = {name: [] for name in names}
  with contextlib.ExitStack() as stack:
    stack.callback(worker.stop)
    folder = stack.enter_context(tempfile.TemporaryDirectory())
    sides = {name: side(name, folder, stack) for name in names}
    for _ in range(num_rounds + 2):  # Two rounds to warm up.
      for name, (process, state) in sides.items():
        start = time.perf_counter()
        output = process.next(state, data)
        seconds[name].append(time.perf_counter() - start)
        sides[name] = process, output.state
    held = _resident(os.getpid()) + _resident(worker.pid)
  return {
      'seconds': {name: found[2:] for name, found in seconds.items()},
      'gibibytes': held,
  }


if __name__ == '__main__':
  print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])))
