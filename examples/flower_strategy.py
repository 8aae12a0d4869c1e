"""FedAvgM of Flower with correlated noise: python examples/flower_strategy.py FOLDER NODES.

The same command resumes an interrupted run. Simulated nodes, 40 by default, need flwr[simulation].
"""

import pathlib
import sys

import numpy as np
from flwr import app, clientapp, serverapp, simulation
from flwr.serverapp.strategy import FedAvgM

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters.flower import PrivateStrategy, answer_device_id

ROUNDS = 12
client_app, server_app = clientapp.ClientApp(), serverapp.ServerApp()
answer_device_id(client_app, lambda context: str(context.node_config['partition-id']))


def num_nodes() -> int:
  return int(sys.argv[2]) if sys.argv[2:] else 40


@client_app.train()
def train(message, context):
  (weights,) = message.content['arrays'].to_numpy_ndarrays()
  trained = app.ArrayRecord([0.8 * weights + 0.2])  # Replace by your training.
  content = {'arrays': trained, 'metrics': app.MetricRecord({'num-examples': 32})}
  return app.Message(content=app.RecordDict(content), reply_to=message)


@server_app.main()
def main(grid, context):
  stored = pathlib.Path(*sys.argv[1:2] or ['runs/flower'], 'model.npy')
  weights, cohort = np.zeros(20, np.float32), num_nodes() // 10
  goal = 3 * cohort // 4
  with dpftrl.PrivateAggregator(
    'blt-b100',
    template={'0': weights},
    noise_multiplier=0.3,
    clip_norm=0.5,
    report_goal=goal,
    folder=stored.parent,
    participation=dpftrl.MinSep(num_rounds=ROUNDS, min_sep=10),
    delta=1e-6,
  ) as aggregator:
    if not stored.exists():
      aggregator.require_new()  # A run that has rounds has lost its model.
      np.save(stored, weights)
    weights = np.load(stored)
    strategy = PrivateStrategy(FedAvgM(fraction_train=1.0), aggregator, cohort, at_least=goal)
    save = lambda _, arrays: np.save(stored, arrays.to_numpy_ndarrays()[0])
    rounds = ROUNDS - aggregator.next_round
    # A device that does not answer within the timeout, in seconds, is left out.
    strategy.start(grid, app.ArrayRecord([weights]), rounds, timeout=600, evaluate_fn=save)
    print(aggregator.privacy_loss())


if __name__ == '__main__':
  # A Ray of its own, which simulates more nodes at a time than by default.
  backend = {'init_args': {'address': 'local'}, 'client_resources': {'num_cpus': 1}}
  simulation.run_simulation(server_app, client_app, num_nodes(), backend_config=backend)
