"""FedAvgM of Flower with correlated noise: python examples/flower_strategy.py FOLDER; goes on."""

import pathlib
import sys

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvgM
from flwr.simulation import run_simulation

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters.flower import PrivateStrategy, answer_device_id

TRUE = np.random.default_rng(0).normal(size=20).astype(np.float32)
client_app, server_app = ClientApp(), ServerApp()
answer_device_id(client_app, lambda context: str(context.node_config['partition-id']))


@client_app.train()
def train(message: Message, context) -> Message:
  x = np.random.default_rng(int(context.node_config['partition-id'])).normal(size=(32, 20))
  (weights,) = message.content['arrays'].to_numpy_ndarrays()
  made = ArrayRecord([weights - (0.2 * x.T @ (x @ (weights - TRUE)) / 32).astype(np.float32)])
  content = RecordDict({'arrays': made, 'metrics': MetricRecord({'num-examples': 32})})
  return Message(content=content, reply_to=message)


@server_app.main()
def main(grid: Grid, context) -> None:
  folder = pathlib.Path(*sys.argv[1:] or ['runs/flower'])
  stored = folder / 'model.npy'
  weights = np.load(stored) if stored.exists() else np.zeros(20, np.float32)
  with dpftrl.PrivateAggregator(
    'blt-b100', template={'0': weights}, noise_multiplier=0.3, clip_norm=0.5, report_goal=3,
    folder=folder, schema=dpftrl.MinSep(num_rounds=12, min_sep=10), delta=1e-6,
  ) as aggregator:  # fmt: skip
    strategy = PrivateStrategy(FedAvgM(fraction_train=1.0), aggregator, cohort=4, at_least=3)
    save = lambda _, arrays: np.save(stored, arrays.to_numpy_ndarrays()[0])
    rounds = aggregator.max_rounds - aggregator.next_round
    strategy.start(grid, ArrayRecord([weights]), num_rounds=rounds, evaluate_fn=save)
    print(aggregator.privacy_loss())


if __name__ == '__main__':
  run_simulation(server_app, client_app, num_supernodes=40)
