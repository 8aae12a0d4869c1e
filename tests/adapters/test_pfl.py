"""The mechanism for pfl-research: means are the aggregator's, and pfl's sum has zeros alone."""

import numpy as np
import pytest
from scipy import stats

import fl_dpftrl as dpftrl
from tests import made

adapter = pytest.importorskip('fl_dpftrl.adapters.pfl', exc_type=ImportError)

SIZE, CLIP = 400, 0.5


def training(updates, folder, *, metrics_of=None, **arguments):
  """Returns what pfl hands to the model after one round of users with these updates."""
  import torch
  from pfl.aggregate.simulate import SimulatedBackend
  from pfl.aggregate.weighting import WeightByDatapoints
  from pfl.common_types import Population
  from pfl.context import CentralContext
  from pfl.data.dataset import Dataset
  from pfl.metrics import Metrics
  from pfl.stats import MappedVectorStatistics

  class Algorithm:
    def simulate_one_user(self, model, user_dataset, central_context):
      update = torch.from_numpy(updates[user_dataset.user_id])
      return MappedVectorStatistics({'w': update}, weight=7.0), Metrics()

  arguments |= dict(template={'w': np.zeros(SIZE, np.float32)}, clip_norm=CLIP)
  with made.aggregator(folder, dpftrl.Identity(), **arguments) as aggregator:
    mechanism = adapter.PrivateMechanism(aggregator, metrics_of)
    data_of = lambda user: Dataset((np.zeros((user + 1, 1)),), user_id=user)
    users = adapter.PrivateUsers(mechanism, data_of, range(len(updates)))
    backend = SimulatedBackend(users, users, postprocessors=[WeightByDatapoints(), mechanism])
    context = CentralContext(0, False, len(updates), Population.TRAIN, None, None)
    statistics, released = backend.gather_results(None, Algorithm(), central_context=context)
  if metrics_of is not None:
    return aggregator.metrics(), released.to_simple_dict()
  return statistics['w'].numpy(), statistics.weight


def test_the_mean_is_of_bounded_updates_whatever_the_weights(tmp_path):
  updates = np.diag(np.float32([0.3, 0.1, 9.0])) @ np.eye(3, SIZE, dtype=np.float32)
  # Weights of datapoints scale updates by (i + 1) / 7 before they are bounded.
  mean, weight = training(updates, tmp_path, noise_multiplier=0.0, report_goal=3)
  expected = np.float32([0.3 / 7, 0.2 / 7, CLIP]) / 3 @ np.eye(3, SIZE, dtype=np.float32)
  np.testing.assert_allclose(mean, expected, atol=1e-4)
  assert weight == 1.0


def test_the_noise_is_that_of_the_multiplier(tmp_path):
  zeros = np.zeros((2, SIZE), np.float32)
  mean, _ = training(zeros, tmp_path, noise_multiplier=3.0, report_goal=2, noise_seed=1)
  low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], SIZE)
  for factor, passes in ((1.0, True), (2 / 3, False), (1.5, False)):
    square = float(np.sum(np.square(mean))) / (factor * 3.0 * CLIP / 2) ** 2
    assert (low < square < high) == passes


def test_users_and_statistics_outside_of_a_round_are_refused(tmp_path):
  with made.aggregator(tmp_path) as aggregator:
    mechanism = adapter.PrivateMechanism(aggregator)
    with pytest.raises(ValueError, match='user of no round'):
      mechanism.postprocess_one_user(stats=None, user_context=None)
    with pytest.raises(ValueError, match='there is no round'):
      mechanism.postprocess_server(stats=None, central_context=None, aggregate_metrics=None)
    with pytest.raises(ValueError, match='simulations'):
      mechanism.postprocess_server_live(stats=None, central_context=None, aggregate_metrics=None)
    with pytest.raises(ValueError, match='cohorts'):
      next(iter(adapter.PrivateUsers(mechanism, None, [1])))


def test_metrics_are_released_by_pfl_with_noise(tmp_path):
  options = dict(noise_multiplier=0.0, report_goal=2, metrics={'loss': 10.0})
  metrics_of = lambda context: {'loss': 2.0 + int(context.user_id)}
  released, shown = training(
    np.zeros((2, SIZE), np.float32), tmp_path, metrics_of=metrics_of, **options
  )
  assert released['loss'].value == pytest.approx(2.5, abs=1e-4)
  assert shown['Loss'] == pytest.approx(2.5, abs=1e-4)
