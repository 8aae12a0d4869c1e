"""A mechanism for pfl-research with correlated noise, a budget, and a log that proves ε.

    mechanism = PrivateMechanism(aggregator)
    users = PrivateUsers(mechanism, dataset_of, range(400))
    backend = SimulatedBackend(users, users, postprocessors=[mechanism])

pfl's own mechanisms clip and add in float32, and see no ids. `PrivateMechanism` takes each user's
statistics out of pfl's sum, bounds them and adds them up in whole numbers, and puts the private
mean in place of the sum. `PrivateUsers` chooses the cohorts, and records them before a user trains.
Metrics that the aggregator was given are released with noise; pfl's own metrics of users have none,
and are outside the guarantee: publish none of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fl_dpftrl import adapters
from fl_dpftrl.run import private_aggregator

with adapters.peer('pfl-research', 'pfl'):
  import torch
  from pfl.data.dataset import AbstractDataset
  from pfl.data.federated_dataset import FederatedDatasetBase
  from pfl.internal.ops.selector import get_default_framework_module
  from pfl.metrics import Metrics, StringMetricName
  from pfl.privacy.privacy_mechanism import CentralPrivacyMechanism


class PrivateMechanism(CentralPrivacyMechanism):
  """A postprocessor of pfl: the mean of bounded updates with correlated noise.

  Put it last among the postprocessors of the backend: those after it see zeros. Weights of users
  do not matter, since the divisor of the sum is fixed. Its methods raise ValueError outside a
  round, which `PrivateUsers` begins, and with several processes.

  Args:
    aggregator: its template is the names and shapes of the model's statistics.
    metrics_of: user's context → name → number, for the metrics of the aggregator.
  """

  def __init__(
    self,
    aggregator: private_aggregator.PrivateAggregator,
    metrics_of: Callable[[Any], Mapping[str, float]] | None = None,
  ):
    super().__init__()
    self.aggregator, self._metrics_of = aggregator, metrics_of
    self.round: Any = None

  def begin(self, candidates: Any, cohort_size: int) -> list[str | int]:
    """Begins a round, and returns its cohort, which is in the log then."""
    if get_default_framework_module().distributed.world_size > 1:
      raise ValueError('PrivateMechanism sums in one process; run pfl with one')
    cohort = self.aggregator.admissible(candidates, at_most=cohort_size).tolist()
    self.round = self.aggregator.round(cohort).begin()
    return cohort

  def postprocess_one_user(self, *, stats: Any, user_context: Any) -> tuple[Any, Metrics]:
    """Adds one user's statistics to the round, and leaves zeros to pfl."""
    if self.round is None:
      raise ValueError('statistics of a user of no round: PrivateUsers begins rounds')
    metrics = self._metrics_of(user_context) if self._metrics_of else None
    self.round.add(dict(stats.items()), metrics=metrics, device_id=user_context.user_id)
    stats = stats.apply_elementwise(torch.zeros_like)
    stats.weight = 1.0
    return stats, Metrics()

  def postprocess_server(
    self, *, stats: Any, central_context: Any, aggregate_metrics: Metrics
  ) -> tuple[Any, Metrics]:
    """Puts the private mean in place of pfl's sum."""
    if self.round is None:
      raise ValueError('there is no round: PrivateUsers begins rounds')
    round_, self.round = self.round, None
    round_.end()
    weight = get_default_framework_module().to_tensor([1.0])
    return stats.from_weights(weight, [round_.mean[name] for name in stats]), Metrics(
      (StringMetricName(name), value) for name, value in round_.metrics.items()
    )

  def postprocess_server_live(self, **unused: Any) -> tuple[Any, Metrics]:
    """Raises ValueError: devices of a live deployment bound nothing in the aggregator's units."""
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
    dataset_of: Callable[[Any], AbstractDataset],
    users: Sequence[str | int],
  ):
    super().__init__()
    self._mechanism, self._dataset_of, self._users = mechanism, dataset_of, list(users)

  def get_cohort(self, cohort_size: int) -> Iterator[tuple[AbstractDataset, int]]:
    """Begins a round, and yields the datasets of its users with a seed each."""
    order = torch.randperm(len(self._users)).tolist()
    for user in self._mechanism.begin([self._users[i] for i in order], cohort_size):
      yield self._dataset_of(user), self._get_seed()

  def __next__(self) -> tuple[AbstractDataset, int]:
    raise ValueError('users come in cohorts: get_cohort(cohort_size)')
