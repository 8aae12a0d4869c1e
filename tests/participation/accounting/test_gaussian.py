"""ε of a Gaussian release against 60 digits, and against dp_accounting."""

import math
import re

import hypothesis
import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event, privacy_accountant
from dp_accounting.pld import pld_privacy_accountant
from hypothesis import strategies as st

from fl_dpftrl.participation.accounting import gaussian
from tests import made


def overshoot(multiplier, delta):
  """Returns the relative excess of ε over 60 digits; that of an ε of 0 is 0 if δ(0) ≤ δ."""
  found = gaussian.epsilon(multiplier, delta)
  with mpmath.workdps(120):
    mu, delta, root_two = 1 / mpmath.mpf(multiplier), mpmath.mpf(delta), mpmath.sqrt(2)
    if found == 0.0:
      return 0.0 if mpmath.erf(mu / root_two / 2) <= delta else -1.0

    def excess(epsilon):
      near, far = (mpmath.erfc((epsilon / mu + x) / root_two) / 2 for x in (-mu / 2, mu / 2))
      return mpmath.log((near - mpmath.exp(epsilon) * far) / delta)

    start = mpmath.mpf(found)
    exact = mpmath.findroot(excess, (start, start * (1 + mpmath.mpf(10) ** -15)), tol=1e-120)
    return float((found - exact) / exact)


DELTAS = [1e-300, 1e-100, 1e-30, 1e-10, 1e-6, 1e-3, 0.1, 0.5, 0.9, 0.99]


@pytest.mark.parametrize('delta', DELTAS)
def test_epsilon_is_never_below_that_of_60_digits_and_hardly_above(delta):
  for target in np.geomspace(1e-6, 1e6, 13):
    multiplier = gaussian.effective_noise_multiplier(target, delta)
    assert 0.0 < overshoot(multiplier, delta) < 1e-12
    assert gaussian.epsilon(multiplier, delta) <= target
    assert gaussian.epsilon(multiplier * (1.0 - 1e-12), delta) > target


@pytest.mark.slow
@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(st.floats(-6.0, 6.0), st.floats(-300.0, math.log10(0.99)), st.floats(0.0, 1.0))
def test_any_epsilon_is_never_below_that_of_60_digits_and_hardly_above(digits, small, share):
  for delta in (10.0**small, 0.001 + 0.989 * share):
    multiplier = gaussian.effective_noise_multiplier(10.0**digits, delta)
    assert 0.0 < overshoot(multiplier, delta) < 1e-12


@pytest.mark.parametrize('multiplier', [1e-9, 1e-3, 2.0, 1e6, 1e29])
@pytest.mark.parametrize('delta', [5e-324, 1e-40, 1e-6, 0.3, 1.0 - 2.0**-53])
def test_epsilon_is_never_below_far_outside_the_range_of_use(multiplier, delta):
  assert 0.0 <= overshoot(multiplier, delta) < 1e-7


@pytest.mark.parametrize('multiplier', [0.5, 1.0, 7.379, 250.0])
def test_epsilon_is_that_of_dp_accounting(multiplier):
  accountant = pld_privacy_accountant.PLDAccountant(
    privacy_accountant.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-4
  )
  accountant.compose(dp_event.GaussianDpEvent(multiplier))
  for delta in (1e-12, 1e-6, 0.01):
    found, discrete = gaussian.epsilon(multiplier, delta), accountant.get_epsilon(delta)
    assert found * (1.0 - 1e-9) <= discrete <= found * (1.0 + 1e-4) + 2e-6


@pytest.mark.parametrize('epsilon', [0.0, -1.0, 1e-21, 1e21, math.inf, math.nan, '1'])
def test_refuses_a_target_out_of_range(epsilon):
  with pytest.raises(ValueError, match=f'epsilon.*{re.escape(str(epsilon))}'):
    gaussian.effective_noise_multiplier(epsilon, 1e-6)


@made.cases(
  'arguments, words',
  *(((value, 1e-6), f'effective.*{value}') for value in (0.0, -1.0, math.inf, math.nan)),
  *(((1.0, delta), f'delta.*{delta}') for delta in (0.0, 1.0, -1e-6, 2.0, math.nan)),
  *(((value, 1e-6), f'{value!r} is too little') for value in (1e-160, 1e-300)),
)
def test_refuses_noise_and_delta_out_of_range(arguments, words):
  with pytest.raises(ValueError, match=words):
    gaussian.epsilon(*arguments)


def test_figures_of_hardly_any_and_of_vast_noise_are_numbers():
  assert gaussian.epsilon(1e-150, 1e-6) == pytest.approx(5e299)
  assert gaussian.rho(1e200) == gaussian.epsilon(1e200, 1e-6) == 0.0
