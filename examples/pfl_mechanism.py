"""pfl-research with correlated noise, a budget, and a log that proves ε.

    python examples/pfl_mechanism.py runs/pfl

Interrupt it and start it again: it goes on with the next round. Each of 400 users holds 32 points
of its own part of the plane, and a small network learns which of three classes they are of.

pfl's own mechanisms clip and add in float32, and see no ids. `PrivateMechanism` takes each user's
statistics out of pfl's sum, bounds them and adds them up in whole numbers, and puts the private
mean in place of the sum. `PrivateUsers` chooses the cohorts, and records them before a user trains.
pfl's metrics of users have no noise: they are outside the guarantee, so publish none of them.
"""

import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import AbstractDataset, Dataset
from pfl.data.federated_dataset import FederatedDatasetBase
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.privacy_mechanism import CentralPrivacyMechanism

import fl_dpftrl as dpftrl

USERS, COHORT, ROUNDS = 400, 20, 60
SCHEMA = dpftrl.MinSep(num_rounds=ROUNDS, min_sep=10)


class PrivateMechanism(CentralPrivacyMechanism):
  """A postprocessor of pfl: the mean of bounded updates with correlated noise.

  Put it last among the postprocessors of the backend: those after it see zeros. Weights of users
  do not matter, since the divisor of the sum is fixed.

  Args:
    aggregator: its template is the names and shapes of the model's statistics.
  """

  def __init__(self, aggregator: dpftrl.PrivateAggregator):
    super().__init__()
    self.aggregator, self.round = aggregator, None

  def begin(self, candidates: Sequence[str | int], cohort_size: int) -> list[str | int]:
    """Begins a round, and returns its cohort, which is in the log then."""
    if get_default_framework_module().distributed.world_size > 1:
      raise ValueError('PrivateMechanism sums in one process; run pfl with one')
    cohort = self.aggregator.admissible(candidates, at_most=cohort_size).tolist()
    self.round = self.aggregator.round(cohort).begin()
    return cohort

  def postprocess_one_user(self, *, stats, user_context):
    """Adds one user's statistics to the round, and leaves zeros to pfl."""
    if self.round is None:
      raise ValueError('statistics of a user of no round: PrivateUsers begins rounds')
    self.round.add(dict(stats.items()), device_id=user_context.user_id)
    stats = stats.apply_elementwise(torch.zeros_like)
    stats.weight = 1.0
    return stats, Metrics()

  def postprocess_server(self, *, stats, central_context, aggregate_metrics):
    """Puts the private mean in place of pfl's sum."""
    if self.round is None:
      raise ValueError('there is no round: PrivateUsers begins rounds')
    round_, self.round = self.round, None
    round_.end()
    mean = stats.from_weights(
      get_default_framework_module().to_tensor([1.0]), [round_.mean[name] for name in stats]
    )
    return mean, Metrics()

  def postprocess_server_live(self, *, stats, central_context, aggregate_metrics):
    raise ValueError('PrivateMechanism is of simulations; on devices, nothing bounds in its units')


class PrivateUsers(FederatedDatasetBase):
  """The users of a simulation, in cohorts that the schema and the budget admit.

  Args:
    mechanism: begins the rounds.
    dataset_of: user → dataset, whose user_id is the user.
    users: all of them, text or whole numbers.
  """

  def __init__(
    self,
    mechanism: PrivateMechanism,
    dataset_of: Callable[[str | int], AbstractDataset],
    users: Sequence[str | int],
  ):
    super().__init__()
    self._mechanism, self._dataset_of, self._users = mechanism, dataset_of, list(users)

  def get_cohort(self, cohort_size: int) -> Iterator[tuple[AbstractDataset, int]]:
    order = torch.randperm(len(self._users)).tolist()
    for user in self._mechanism.begin([self._users[i] for i in order], cohort_size):
      yield self._dataset_of(user), self._get_seed()

  def __next__(self):
    raise ValueError('users come in cohorts: get_cohort(cohort_size)')


class Network(torch.nn.Module):
  """A small network with the `loss` and `metrics` that pfl asks for."""

  def __init__(self):
    super().__init__()
    self.layers = torch.nn.Sequential(
      torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 3)
    )

  def loss(self, points, classes, **unused):
    return torch.nn.functional.cross_entropy(self.layers(points), classes)

  @torch.no_grad()
  def metrics(self, points, classes, **unused):
    right = (self.layers(points).argmax(dim=1) == classes).sum()
    return {'accuracy': Weighted(float(right), len(classes))}


def dataset_of(user: int) -> Dataset:
  draws = torch.Generator().manual_seed(user)
  points = torch.randn(32, 2, generator=draws) + torch.randn(2, generator=draws)
  classes = (points.norm(dim=1) > 1.0).long() + (points[:, 0] > 1.5).long()
  return Dataset((points, classes), user_id=user)


class AfterRound(TrainingProcessCallback):
  """Stores the model, whole or not at all, and prints how good it is."""

  def __init__(self, aggregator: dpftrl.PrivateAggregator, stored: pathlib.Path):
    self._aggregator, self._stored = aggregator, stored
    tests = [dataset_of(user).raw_data for user in range(10**6, 10**6 + 100)]
    self._tests = tuple(torch.cat(part) for part in zip(*tests))

  def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
    new = self._stored.with_name('new.pt')
    torch.save(model.pytorch_model.state_dict(), new)
    new.replace(self._stored)
    if self._aggregator.next_round % 10 == 0:
      right = model.pytorch_model.metrics(*self._tests)['accuracy'].overall_value
      print(
        f'round {self._aggregator.next_round}: accuracy {100 * right:.1f} %,'
        f' {self._aggregator.privacy_loss()}'
      )
    return False, Metrics()


def main(folder: pathlib.Path) -> None:
  torch.manual_seed(0)
  network, stored = Network(), folder / 'model.pt'
  with dpftrl.PrivateAggregator(
    dpftrl.load_strategy('blt-b100'),
    template=dict(network.named_parameters()),
    noise_multiplier=2.0,
    clip_norm=0.3,
    report_goal=COHORT,
    folder=folder,
    schema=SCHEMA,
    max_epsilon=20.0,
    delta=1e-6,
  ) as aggregator:
    if stored.exists():
      network.load_state_dict(torch.load(stored))
    torch.manual_seed(aggregator.next_round)
    mechanism = PrivateMechanism(aggregator)
    users = PrivateUsers(mechanism, dataset_of, range(USERS))
    FederatedAveraging().run(
      NNAlgorithmParams(
        central_num_iterations=aggregator.max_rounds - aggregator.next_round,
        evaluation_frequency=10**9,
        train_cohort_size=COHORT,
        val_cohort_size=None,
      ),
      SimulatedBackend(users, users, postprocessors=[mechanism]),
      PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=2.0)),
      NNTrainHyperParams(local_batch_size=8, local_num_epochs=1, local_learning_rate=0.2),
      callbacks=[AfterRound(aggregator, stored)],
      send_metrics_to_platform=False,
    )
    aggregator.report(folder / 'privacy.html')


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else 'runs/pfl'))
