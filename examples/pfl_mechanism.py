"""Federated averaging of pfl-research: python examples/pfl_mechanism.py runs/pfl; again goes on."""

import pathlib
import sys

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.checkpoint import ModelCheckpointingCallback
from pfl.data.dataset import Dataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters.pfl import PrivateMechanism, PrivateUsers

TRUE, SCHEMA = torch.tensor([[1.0, -2.0]]), dpftrl.MinSep(num_rounds=60, min_sep=10)


def dataset_of(user: int) -> Dataset:
  x = torch.randn(32, 2, generator=torch.Generator().manual_seed(user))
  return Dataset((x, x @ TRUE.T), user_id=user)


def main(folder: pathlib.Path) -> None:
  network = torch.nn.Linear(2, 1)
  network.loss = lambda x, y, **unused: torch.nn.functional.mse_loss(network(x), y)
  network.metrics = lambda *unused, **nothing: {}
  model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
  with dpftrl.PrivateAggregator(
    'blt-b100', template=dict(network.named_parameters()), noise_multiplier=2.0, clip_norm=0.3,
    report_goal=20, folder=folder, schema=SCHEMA, max_epsilon=20.0, delta=1e-6,
  ) as aggregator:  # fmt: skip
    if aggregator.next_round:
      model.load(str(folder / 'model'))
    mechanism = PrivateMechanism(aggregator)
    users = PrivateUsers(mechanism, dataset_of, range(400))
    FederatedAveraging().run(
      NNAlgorithmParams(aggregator.max_rounds - aggregator.next_round, 10**9, 20, None),
      SimulatedBackend(users, users, postprocessors=[mechanism]), model,
      NNTrainHyperParams(local_batch_size=8, local_num_epochs=1, local_learning_rate=0.1),
      callbacks=[ModelCheckpointingCallback(str(folder / 'model'), checkpoint_frequency=1)],
      send_metrics_to_platform=False)  # fmt: skip
    print(f'distance {torch.dist(network.weight, TRUE):.3f}, {aggregator.privacy_loss()}')


if __name__ == '__main__':
  main(pathlib.Path(*sys.argv[1:] or ['runs/pfl']))
