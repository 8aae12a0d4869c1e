"""Federated averaging of pfl-research, which resumes: python examples/pfl_mechanism.py runs/pfl"""

import sys

import torch
from pfl.aggregate import simulate
from pfl.algorithm import base, federated_averaging
from pfl.callback import checkpoint
from pfl.data import dataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

import fl_dpftrl as dpftrl
from fl_dpftrl.adapters.pfl import PrivateMechanism, PrivateUsers

TRUE, SCHEMA = torch.tensor([[1.0, -2.0]]), dpftrl.MinSep(num_rounds=60, min_sep=10)


def dataset_of(user: int) -> dataset.Dataset:
  x = torch.randn(32, 2, generator=torch.Generator().manual_seed(user))
  return dataset.Dataset((x, x @ TRUE.T), user_id=user)


def main(folder: str) -> None:
  network, stored = torch.nn.Linear(2, 1), f'{folder}/model'
  network.loss = lambda x, y, **unused: torch.nn.functional.mse_loss(network(x), y)
  network.metrics = lambda *unused, **nothing: {}
  model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
  with dpftrl.PrivateAggregator(
    'blt-b100',
    template=dict(network.named_parameters()),
    noise_multiplier=2.0,
    clip_norm=0.3,
    report_goal=20,
    folder=folder,
    participation=SCHEMA,
    delta=1e-6,
  ) as aggregator:
    if aggregator.next_round:
      model.load(stored)
    else:  # Before round 0, so that a run without one has lost it.
      model.save(stored)
    mechanism = PrivateMechanism(aggregator)
    users = PrivateUsers(mechanism, dataset_of, range(400))
    federated_averaging.FederatedAveraging().run(
      base.NNAlgorithmParams(aggregator.max_rounds - aggregator.next_round, 10**9, 20, None),
      simulate.SimulatedBackend(users, users, postprocessors=[mechanism]),
      model,
      NNTrainHyperParams(local_batch_size=8, local_num_epochs=1, local_learning_rate=0.1),
      callbacks=[checkpoint.ModelCheckpointingCallback(stored, checkpoint_frequency=1)],
      send_metrics_to_platform=False,
    )
    print(f'distance {torch.dist(network.weight, TRUE):.3f}, {aggregator.privacy_loss()}')


if __name__ == '__main__':
  main(*sys.argv[1:] or ['runs/pfl'])
