"""Calibrated noise meets its target, and a little less would not."""

import math

import pytest

from fl_dpftrl import accounting
from fl_dpftrl.accounting import calibration, gaussian
from fl_dpftrl.families import identity
from fl_dpftrl.participation import schemas

SCHEMA = schemas.MinSep(num_rounds=2052, min_sep=342, max_participations=6)


@pytest.mark.parametrize('epsilon', [0.01, 0.5, 3.0, 40.0])
@pytest.mark.parametrize('delta', [1e-10, 1e-5, 0.3])
def test_meets_epsilon_and_no_more(epsilon, delta):
  found = calibration.effective_noise_multiplier(epsilon, delta)
  assert gaussian.epsilon(found, delta) <= epsilon
  assert gaussian.epsilon(found * (1 - 5e-6), delta) > epsilon


def test_rho_is_closed_form():
  guarantee = accounting.calibrate(identity.Identity(), SCHEMA, delta=1e-6, rho=0.125)
  assert guarantee.noise_multiplier == pytest.approx(2.0 * math.sqrt(6.0))
  assert guarantee.rho == pytest.approx(0.125)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({}, 'epsilon or rho'),
    ({'epsilon': 1.0, 'rho': 1.0}, 'epsilon or rho'),
    *(
      ({name: value}, f'{name}.*{value}')
      for name in ('epsilon', 'rho')
      for value in (0.0, -1.0, math.inf, math.nan, '4')
    ),
    *(({'rho': 1.0, 'delta': delta}, 'delta') for delta in (0.0, 1.0, '1e-6')),
    *(({'epsilon': 1.0, 'delta': delta}, 'delta') for delta in (0.0, 1.0, '1e-6')),
  ],
)
def test_refuses(changes, words):
  with pytest.raises(ValueError, match=words):
    accounting.calibrate(identity.Identity(), SCHEMA, **{'delta': 1e-6, **changes})
