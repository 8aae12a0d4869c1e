"""Seconds that ten rounds of Flower's simulation take, with and without private means.

The seconds of the server's processor count as well: they tell more on a machine that is busy.

    python -m benchmarks.loop.flower [repeats]

Each run is a process of its own, FedAvg alone and wrapped in turn. 20 of 40 nodes train a network
of 407,050 parameters. It needs `flwr[simulation]`, and is run by hand.
"""

import itertools
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

NODES, COHORT, ROUNDS = 40, 20, 10
SHAPES = {'hidden': (784, 512), 'bias': (512,), 'output': (512, 10), 'last': (10,)}


def trained(weights: dict[str, np.ndarray], device: int) -> dict[str, np.ndarray]:
  """Returns the weights after ten steps of gradient descent on the device's own examples."""
  rng = np.random.default_rng(device)
  for _ in range(10):
    x, y = rng.normal(size=(32, 784)).astype(np.float32), rng.integers(10, size=32)
    hidden = np.tanh(x @ weights['hidden'] + weights['bias'])
    logits = hidden @ weights['output'] + weights['last']
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    slope = (odds / odds.sum(axis=1, keepdims=True) - np.eye(10, dtype=np.float32)[y]) / len(y)
    back = (slope @ weights['output'].T) * (1.0 - hidden * hidden)
    changes = {
      'hidden': x.T @ back,
      'bias': back.sum(axis=0),
      'output': hidden.T @ slope,
      'last': slope.sum(axis=0),
    }
    weights = {name: weights[name] - np.float32(0.05) * changes[name] for name in weights}
  return weights


def run(is_private: bool) -> None:
  from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
  from flwr.clientapp import ClientApp
  from flwr.serverapp import ServerApp
  from flwr.serverapp.strategy import FedAvg
  from flwr.simulation import run_simulation

  import fl_dpftrl as dpftrl
  from fl_dpftrl.adapters import flower

  client_app, server_app = ClientApp(), ServerApp()

  flower.answer_device_id(client_app, lambda context: str(context.node_config['partition-id']))

  @client_app.train()
  def train(message, context):
    before = {name: array.numpy() for name, array in message.content['arrays'].items()}
    after = trained(before, int(context.node_config['partition-id']))
    arrays = ArrayRecord({name: Array(value) for name, value in after.items()})
    metrics = MetricRecord({'num-examples': 320})
    return Message(content=RecordDict({'arrays': arrays, 'metrics': metrics}), reply_to=message)

  @server_app.main()
  def main(grid, context):
    rng = np.random.default_rng(0)
    weights = {
      name: (0.05 * rng.normal(size=shape)).astype(np.float32) for name, shape in SHAPES.items()
    }
    arrays = ArrayRecord({name: Array(value) for name, value in weights.items()})
    strategy = FedAvg(fraction_train=COHORT / NODES, fraction_evaluate=0.0)
    with tempfile.TemporaryDirectory() as folder:
      if is_private:
        aggregator = dpftrl.PrivateAggregator(
          dpftrl.load_strategy('blt-b100'),
          template=weights,
          noise_multiplier=1.0,
          clip_norm=1.0,
          report_goal=COHORT,
          folder=folder,
        )
        all_nodes = FedAvg(fraction_train=1.0, fraction_evaluate=0.0)
        strategy = flower.PrivateStrategy(all_nodes, aggregator, COHORT)
      ends: list[float] = []
      before = time.process_time()
      strategy.start(
        grid,
        arrays,
        num_rounds=ROUNDS,
        evaluate_fn=lambda server_round, arrays: ends.append(time.perf_counter()),
      )
      print('processor', f'{time.process_time() - before:.3f}')
      print('seconds', *(f'{end - start:.3f}' for start, end in itertools.pairwise(ends)))

  run_simulation(server_app, client_app, num_supernodes=NODES)


def main(repeats: int) -> None:
  processor: dict[str, list[float]] = {'alone': [], 'private': []}
  seconds: dict[str, list[list[float]]] = {'alone': [], 'private': []}
  for _ in range(repeats):
    for name, each in seconds.items():
      command = [sys.executable, '-m', 'benchmarks.loop.flower', name]
      done = subprocess.run(command, capture_output=True, text=True, check=True)
      rounds = done.stdout.split('seconds ')[1].splitlines()[0].split()
      each.append([float(one) for one in rounds])
      processor[name].append(float(done.stdout.split('processor ')[1].split()[0]))
      print(
        f'{name}: server {processor[name][-1]:.2f} s of processor; first round'
        f' {each[-1][0]:.2f} s, the others',
        *rounds[1:],
        flush=True,
      )
  alone, private = (statistics.median(each) for each in processor.values())
  print(f'server, processor: {alone:.2f} s alone, {private:.2f} s with private means')
  for what, measure in (
    ('all rounds', sum),
    ('rounds after the first', lambda rounds: statistics.median(rounds[1:])),
  ):
    alone, private = (statistics.median(map(measure, each)) for each in seconds.values())
    print(f'{what}: {alone:.3f} s alone, {private:.3f} s with private means: {private / alone:.3f}')


if __name__ == '__main__':
  argument = sys.argv[1] if len(sys.argv) > 1 else '3'
  if argument in ('alone', 'private'):
    run(argument == 'private')
  else:
    main(int(argument))
