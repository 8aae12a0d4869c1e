"""The search for strategies with a banded inverse."""

import numpy as np
import pytest
import scipy.optimize

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities, workloads
from fl_dpftrl.mechanisms.families import banded_inverse as family
from fl_dpftrl.mechanisms.search import banded_inverse_search
from fl_dpftrl.mechanisms.search.search_problem import Problem

SCHEMA = dpftrl.MinSep(num_rounds=60, min_sep=12, max_participations=4)


def test_square_root():
  """BISR: (1 − z)^½ = 1 − z/2 − z²/8 − z³/16 − …"""
  strategy = banded_inverse_search.square_root(Problem(SCHEMA), 4)
  np.testing.assert_allclose(strategy.coefficients, [1.0, -1 / 2, -1 / 8, -1 / 16])
  assert sensitivities.sensitivity(strategy, SCHEMA).kind == 'exact'


@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_two_bands_are_the_best_of_all(objective):
  problem = Problem(SCHEMA, objective)
  strategy = banded_inverse_search.optimize(problem, 2)
  best = scipy.optimize.minimize_scalar(
    lambda weight: problem.loss(family.BandedInverse([1.0, -weight])),
    bounds=(0.0, 1.0),
    method='bounded',
    options={'xatol': 1e-9},
  )
  assert strategy.coefficients[1] == pytest.approx(-best.x, abs=1e-3)
  assert problem.loss(strategy) <= best.fun * (1 + 1e-7)
  assert banded_inverse_search.decayed(problem).decay == -strategy.coefficients[1]
  assert banded_inverse_search.decayed(Problem(dpftrl.MinSep(1), objective)).decay == 0.0


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_more_bands_are_better_and_all_beat_the_square_root(objective, momentum):
  problem = Problem(SCHEMA, objective, workloads.Workload(momentum))
  losses = [
    problem.loss(banded_inverse_search.optimize(problem, bands)) for bands in (1, 2, 4, 8, 16)
  ]
  # The search bounds sensitivities by more than those that are reported.
  assert all(more < 1.02 * fewer for fewer, more in zip(losses, losses[1:]))
  assert losses[-1] < 0.6 * losses[0]
  assert losses[3] < problem.loss(banded_inverse_search.square_root(problem))


@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_gradient(objective):
  log_square = banded_inverse_search._log_square(
    Problem(SCHEMA, objective, workloads.Workload(0.5)), 5
  )
  point = np.array([-0.52, -0.15, -0.1, -0.05])  # C is not monotone everywhere.
  _, grad = log_square(point)
  for i, step in enumerate(1e-6 * np.eye(4)):
    slope = (log_square(point + step)[0] - log_square(point - step)[0]) / 2e-6
    assert grad[i] == pytest.approx(slope, rel=1e-5)
