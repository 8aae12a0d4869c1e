"""Guarantees against published figures and the Gaussian's closed form."""

import dataclasses
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
from fl_dpftrl.strategies import files

# McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), table of production models: es-ES,
# both id-ID, both pt-BR; zero-out adjacency, δ = 1e-10, ρ rounded up.
PRODUCTION = [
  # strategy, σ, min-sep, participations, rounds, ρ, ε
  ('blt-b400', 7.379, 300, 4, 1280, '0.16', '3.46'),
  ('blt-b400', 7.379, 447, 5, 2350, '0.20', '3.93'),
  ('blt-b1000', 8.681, 2001, 1, 2000, '2.23e-2', '1.25'),
  ('blt-b1000', 16.1, 1181, 2, 2000, '1.40e-2', '0.98'),
]


def digit(printed):
  mantissa, _, exponent = printed.partition('e')
  return 10.0 ** (int(exponent or 0) - len(mantissa.split('.')[1]))


@pytest.mark.parametrize('name, sigma, b, k, n, rho, expected', PRODUCTION)
def test_production_models(name, sigma, b, k, n, rho, expected):
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  guarantee = accounting.account(
    files.load_strategy(name), schema, noise_multiplier=sigma, delta=1e-10
  )
  assert guarantee.epsilon == pytest.approx(float(expected), abs=0.5 * digit(expected))
  # Printed rounded up: 0.1535 as 0.16, 0.1950 as 0.20, 0.013941 as 1.40e-2.
  assert 0.0 <= float(rho) - guarantee.rho < digit(rho)
  assert guarantee.sensitivity_kind == 'exact'
  assert guarantee.effective_noise_multiplier == sigma / guarantee.sensitivity
  assert guarantee.rho == pytest.approx((guarantee.sensitivity / sigma) ** 2 / 2)
  assert guarantee.adjacency == 'zero_out'
  assert guarantee.schema == schema


def test_a_production_model_with_a_tree():
  # id-ID of that table: ρ 0.94 and ε 9.29 are printed, rounded up.
  guarantee = accounting.account(
    files.load_strategy('tree_full'),
    schemas.MinSep(num_rounds=2350, min_sep=437, max_participations=5),
    noise_multiplier=7.0,
    delta=1e-10,
  )
  assert 0.0 <= 9.29 - guarantee.epsilon < 0.01
  assert 0.0 <= 0.94 - guarantee.rho < 0.01


# pt-PT of that table, to 1 %: ρ 1.11 and 0.75, ε 10.19 and 8.19 are printed;
# the matrix is printed too, and may not be to the digits that ran.
@pytest.mark.parametrize(
  'sigma, b, k, n, rho, epsilon, found',
  [(3.12, 92, 4, 430, 1.11, 10.19, 10.22), (5.5, 49, 6, 320, 0.75, 8.19, 8.25)],
)
def test_production_models_to_one_percent(sigma, b, k, n, rho, epsilon, found):
  guarantee = accounting.account(
    files.load_strategy('blt-b100-published'),
    schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k),
    noise_multiplier=sigma,
    delta=1e-10,
  )
  assert guarantee.epsilon == pytest.approx(found, abs=0.005)
  assert guarantee.epsilon == pytest.approx(epsilon, rel=0.01)
  assert guarantee.rho == pytest.approx(rho, rel=0.015)


# σ over sensitivity that the BandMF and BLT papers add for ε at δ = 1e-6.
MULTIPLIERS = [(4.22468, 1), (2.23048, 2), (1.19352, 4), (0.65294, 8), (0.36861, 16)]


@pytest.mark.parametrize('multiplier, expected', MULTIPLIERS)
def test_multipliers_of_the_papers(multiplier, expected):
  assert gaussian.epsilon(multiplier, 1e-6) == pytest.approx(expected, rel=2e-5)


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


def test_guarantees_are_immutable():
  guarantee = accounting.account(
    identity.Identity(), schemas.MinSep(num_rounds=1), noise_multiplier=1.0, delta=1e-6
  )
  with pytest.raises(dataclasses.FrozenInstanceError):
    guarantee.epsilon = 0.0
