"""Trains by Flower's FedAvgM with correlated noise: python examples/flower_strategy.py FOLDER.

The same command resumes an interrupted run. Simulated nodes need flwr[simulation].
"""

import pathlib
import sys

import numpy as np
from flwr import app, clientapp, serverapp, simulation
from flwr.serverapp.strategy import FedAvgM

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters.flower import PrivateStrategy, answer_device_id

client_app, server_app = clientapp.ClientApp(), serverapp.ServerApp()
answer_device_id(client_app, lambda context: str(context.node_config['partition-id']))


@client_app.train()
def train(message, context):
  (weights,) = message.content['arrays'].to_numpy_ndarrays()
  trained = app.ArrayRecord([0.8 * weights + 0.2])  # Replace by your training.
  content = {'arrays': trained, 'metrics': app.MetricRecord({'num-examples': 32})}
  return app.Message(content=app.RecordDict(content), reply_to=message)


@server_app.main()
def main(grid, context):
  stored = pathlib.Path(*sys.argv[1:] or ['runs/flower'], 'model.npy')
  weights = np.zeros(20, np.float32)
  with dpftrl.PrivateAggregator(
    'blt-b100', template={'0': weights}, noise_multiplier=0.3, clip_norm=0.5, report_goal=3,
    folder=stored.parent, participation=dpftrl.MinSep(num_rounds=12, min_sep=10), delta=1e-6,
  ) as aggregator:  # fmt: skip
    if not stored.exists():
      aggregator.require_new()  # A run that has rounds has lost its model.
      np.save(stored, weights)
    weights = np.load(stored)
    strategy = PrivateStrategy(FedAvgM(fraction_train=1.0), aggregator, cohort=4, at_least=3)
    save = lambda _, arrays: np.save(stored, arrays.to_numpy_ndarrays()[0])
    strategy.start(grid, app.ArrayRecord([weights]), 12 - aggregator.next_round, evaluate_fn=save)
    print(aggregator.privacy_loss())


if __name__ == '__main__':
  simulation.run_simulation(server_app, client_app, num_supernodes=40)
