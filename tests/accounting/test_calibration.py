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


@pytest.mark.parametrize('targets', [{}, {'epsilon': 1.0, 'rho': 1.0}])
def test_wants_one_target(targets):
  with pytest.raises(ValueError, match='epsilon or rho'):
    accounting.calibrate(identity.Identity(), SCHEMA, delta=1e-6, **targets)


@pytest.mark.parametrize('name', ['epsilon', 'rho'])
@pytest.mark.parametrize('value', [0.0, -1.0, math.inf, math.nan, '4'])
def test_refuses_targets_out_of_range(name, value):
  with pytest.raises(ValueError, match=f'{name}.*{value}'):
    accounting.calibrate(identity.Identity(), SCHEMA, delta=1e-6, **{name: value})


@pytest.mark.parametrize('delta', [0.0, 1.0, '1e-6'])
@pytest.mark.parametrize('name', ['epsilon', 'rho'])
def test_refuses_delta_out_of_range(name, delta):
  with pytest.raises(ValueError, match='delta'):
    accounting.calibrate(identity.Identity(), SCHEMA, delta=delta, **{name: 1.0})
