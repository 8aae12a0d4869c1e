"""Lower bounds on ε, against exact curves and simulated mechanisms."""

import math

import numpy as np
import pytest
from scipy import stats

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.auditing import bounds


@pytest.mark.parametrize('mu, delta', [(0.05, 1e-5), (1.0, 1e-10), (1.0, 0.1), (30.0, 1e-5)])
def test_epsilon_of_a_gaussian_is_just_below_the_accountant(mu, delta):
  ours, theirs = bounds.gaussian_epsilon(mu, delta), gaussian.epsilon(1.0 / mu, delta)
  assert ours <= theirs
  assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-3)


def test_epsilon_of_a_gaussian_solves_the_curve():
  mu, delta = 1.3, 1e-5
  epsilon = bounds.gaussian_epsilon(mu, delta)
  a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
  found = stats.norm.cdf(a) - math.exp(epsilon) * stats.norm.cdf(b)
  assert found == pytest.approx(delta, rel=1e-6)


def test_nothing_is_lost_within_delta():
  assert bounds.gaussian_epsilon(0.0, 1e-6) == 0.0
  assert bounds.gaussian_epsilon(1e-3, 0.1) == 0.0
  assert math.isfinite(bounds.gaussian_epsilon(math.inf, 1e-6))


def test_largest_deviation_holds_with_its_confidence():
  samples = np.random.default_rng(2).standard_normal((2000, 50))
  too_small = [bounds.largest_deviation(s, 0.1) < 1.0 for s in samples]
  assert 0.075 < np.mean(too_small) < 0.125


def test_counted_bounds_hold_for_randomised_response():
  """Each answer is true with probability e^ε / (1 + e^ε): exactly (ε, 0)."""
  epsilon, generator, wrong, found = 1.0, np.random.default_rng(5), 0, []
  truth = math.exp(epsilon) / (1.0 + math.exp(epsilon))
  for _ in range(200):
    present = (generator.uniform(size=400) < truth).astype(float)
    absent = (generator.uniform(size=400) > truth).astype(float)
    found.append(bounds.lower_bound(absent, present, delta=1e-9, confidence=0.9))
    wrong += found[-1] > epsilon
  assert wrong / 200 <= 0.1
  assert np.mean(found) > 0.6


def test_a_certain_sign_of_a_device_gives_a_bound_that_grows_with_the_runs():
  few, many = (
    bounds.lower_bound(np.zeros(n), np.ones(n), delta=1e-6, confidence=0.95) for n in (40, 4000)
  )
  assert 1.0 < few < many
  assert many > 5.0


@pytest.mark.parametrize(
  'absent, confidence, words',
  [
    (np.zeros(3), 0.95, 'absent must hold at least 8'),
    (np.full(9, np.nan), 0.95, 'all finite'),
    (np.zeros(9), 95, 'confidence must lie'),
  ],
)
def test_bad_scores_are_refused(absent, confidence, words):
  with pytest.raises(ValueError, match=words):
    bounds.lower_bound(absent, np.ones(9), delta=1e-6, confidence=confidence)
