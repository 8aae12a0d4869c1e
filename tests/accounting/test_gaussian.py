"""Guarantees against the Gaussian's closed form; tests/golden has published figures."""

import math
import re

import mpmath
import numpy as np
import pytest
from scipy import optimize, stats

from fl_dpftrl import accounting, sensitivity
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.families import banded, identity
from fl_dpftrl.participation import schemas
from fl_dpftrl.sensitivity import gram


def exact_epsilon(multiplier, delta):
  """Balle and Wang 2018, theorem 8: δ(ε) of one Gaussian mechanism."""

  def excess(epsilon):
    near = stats.norm.cdf(0.5 / multiplier - epsilon * multiplier)
    far = stats.norm.logcdf(-0.5 / multiplier - epsilon * multiplier)
    return near - math.exp(epsilon + far) - delta

  high = 0.5 / multiplier**2 + 10 / multiplier
  return optimize.brentq(excess, 0.0, high, xtol=1e-12)


@pytest.mark.parametrize('multiplier', [0.05, 0.3, 1.0, 3.0, 30.0])
@pytest.mark.parametrize('delta', [1e-10, 1e-6, 1e-3])
def test_epsilon_is_never_understated_and_hardly_overstated(multiplier, delta):
  exact = exact_epsilon(multiplier, delta)
  found = gaussian.epsilon(multiplier, delta)
  assert exact - 1e-7 <= found <= exact * 1.0001 + 1e-6


def test_little_noise_takes_little_time():
  assert gaussian.epsilon(1e-3, 1e-6) == pytest.approx(504_753, rel=1e-3)


def test_enough_noise_needs_no_epsilon():
  assert gaussian.epsilon(100.0, 0.9) == 0.0


@pytest.mark.parametrize('value', [0.0, -1.0, math.inf, math.nan])
def test_refuses_noise_that_is_none(value):
  schema = schemas.MinSep(num_rounds=3)
  with pytest.raises(ValueError, match=f'noise_multiplier.*{value}'):
    accounting.account(identity.Identity(), schema, noise_multiplier=value, delta=1e-6)
  for function in (gaussian.rho, lambda m: gaussian.epsilon(m, 1e-6)):
    with pytest.raises(ValueError, match='effective_noise_multiplier'):
      function(value)


@pytest.mark.parametrize('delta', [0.0, 1.0, -1e-6, 2.0, math.nan])
def test_refuses_delta_out_of_range(delta):
  with pytest.raises(ValueError, match=f'delta.*{delta}'):
    gaussian.epsilon(1.0, delta)


def log_delta(epsilon, mu):
  """ln δ of one Gaussian, for shifts and tails that floats cannot hold."""
  with mpmath.workdps(400):
    epsilon, mu = mpmath.mpf(epsilon), mpmath.mpf(mu)
    near = mpmath.ncdf(mu / 2 - epsilon / mu)
    far = mpmath.exp(epsilon) * mpmath.ncdf(-mu / 2 - epsilon / mu)
    return float(mpmath.log(near - far))


@pytest.mark.parametrize(
  'multiplier, delta, above',
  [
    (1e-6, 1e-6, 1e-9),
    (1e-3, 1e-6, 1e-5),
    (1.001e-3, 1e-6, 1e-5),
    (1e-3, 0.9, 1e-5),
    (1.0, 1e-40, 0.02),
    (10.0, 1e-200, 0.1),
  ],
)
def test_where_no_distribution_can_be_computed_the_bound_is_safe_and_near(multiplier, delta, above):
  found = gaussian.epsilon(multiplier, delta)
  assert log_delta(found, 1 / multiplier) <= math.log(delta)
  assert log_delta(found * (1 - above), 1 / multiplier) > math.log(delta)


@pytest.mark.slow
def test_more_noise_never_means_more_epsilon():
  multipliers = np.geomspace(3e-4, 3e-3, 6)  # past where the bound takes over
  found = [gaussian.epsilon(m, 1e-6) for m in multipliers]
  assert (np.diff(found) < 0.0).all()


def test_refuses_noise_without_a_finite_epsilon():
  for function in (gaussian.rho, lambda m: gaussian.epsilon(m, 1e-6)):
    for multiplier in (1e-160, 1e-300):
      with pytest.raises(ValueError, match=f'{multiplier!r} is too little'):
        function(multiplier)
  assert gaussian.epsilon(1e-150, 1e-6) == pytest.approx(5e299)
  assert gaussian.rho(1e200) == gaussian.epsilon(1e200, 1e-6) == 0.0


def test_a_lower_bound_guarantees_nothing():
  schema = schemas.MinSep(num_rounds=3)
  with pytest.raises(ValueError, match='lower_bound'):
    gaussian.from_sensitivity(
      sensitivity.Sensitivity(1.0, 'lower_bound'), schema, noise_multiplier=1.0, delta=1e-6
    )


def test_an_upper_bound_is_named_so(monkeypatch):
  monkeypatch.setattr(gram, '_MOST_STEPS', -1)  # leaves the bound by rows
  schema = schemas.MinSep(num_rounds=20, min_sep=3)
  strategy = banded.Banded(np.tri(20))
  guarantee = accounting.account(strategy, schema, noise_multiplier=50.0, delta=1e-6)
  assert guarantee.sensitivity_kind == 'upper_bound'


@pytest.mark.parametrize(
  'schema, words',
  [
    (schemas.MinSep(num_rounds=9, min_sep=4), 'most 3 of 9.*least 4'),
    (schemas.FixedSeparation(num_rounds=9, min_sep=4), 'exactly 4'),
    (schemas.MinSep(num_rounds=9, min_sep=9), 'no device.*twice in 9'),
  ],
)
def test_assumptions_name_the_schema(schema, words):
  guarantee = accounting.account(identity.Identity(), schema, noise_multiplier=1.0, delta=1e-6)
  assert any(re.search(words, line) for line in guarantee.assumptions)
