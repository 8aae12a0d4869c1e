"""The search for strategies with a banded inverse."""

import numpy as np
import pytest
import scipy.optimize

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import banded_inverse as family
from fl_dpftrl.optimization import banded_inverse
from fl_dpftrl.participation import schemas

SCHEMA = schemas.MinSep(num_rounds=60, min_sep=12, max_participations=4)


def loss(strategy, objective, workload=workloads.Workload()):
  found = error.error(strategy, SCHEMA.num_rounds, workload)
  value = sensitivity.sensitivity(strategy, SCHEMA).value
  return value * (found.rms if objective == 'rms' else found.max)


def test_square_root():
  """BISR: (1 − z)^½ = 1 − z/2 − z²/8 − z³/16 − …"""
  found = banded_inverse.square_root(SCHEMA, objective='rms', num_bands=4)
  np.testing.assert_allclose(found.coefficients, [1.0, -1 / 2, -1 / 8, -1 / 16])
  assert sensitivity.sensitivity(found, SCHEMA).kind == 'exact'


@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_two_bands_are_the_best_of_all(objective):
  found = banded_inverse.optimize(SCHEMA, objective=objective, num_bands=2)
  best = scipy.optimize.minimize_scalar(
    lambda weight: loss(family.BandedInverse([1.0, -weight]), objective),
    bounds=(0.0, 1.0),
    method='bounded',
    options={'xatol': 1e-9},
  )
  assert found.coefficients[1] == pytest.approx(-best.x, abs=1e-3)
  assert loss(found, objective) <= best.fun * (1 + 1e-7)
  assert banded_inverse.decayed(SCHEMA, objective=objective).decay == -found.coefficients[1]
  one = schemas.MinSep(num_rounds=1, min_sep=1, max_participations=1)
  assert banded_inverse.decayed(one, objective=objective).decay == 0.0


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_more_bands_are_better_and_all_beat_the_square_root(objective, momentum):
  workload = workloads.Workload(momentum)
  options = dict(objective=objective, workload=workload)
  losses = [
    loss(banded_inverse.optimize(SCHEMA, num_bands=bands, **options), objective, workload)
    for bands in (1, 2, 4, 8, 16)
  ]
  # The search bounds sensitivities by more than those that are reported.
  assert all(more < 1.02 * fewer for fewer, more in zip(losses, losses[1:]))
  assert losses[-1] < 0.6 * losses[0]
  start = banded_inverse.square_root(SCHEMA, objective=objective)
  assert losses[3] < loss(start, objective, workload)


@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_gradient(objective):
  log_square = banded_inverse._log_square(SCHEMA, objective, workloads.Workload(0.5), 5)
  point = np.array([-0.52, -0.15, -0.1, -0.05])  # C is not monotone everywhere.
  _, grad = log_square(point)
  for i, step in enumerate(1e-6 * np.eye(4)):
    slope = (log_square(point + step)[0] - log_square(point - step)[0]) / 2e-6
    assert grad[i] == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize('num_bands', [0, 61])
def test_refuses(num_bands):
  with pytest.raises(ValueError, match=f'num_bands must be 1 to 60, got {num_bands}'):
    banded_inverse.optimize(SCHEMA, objective='rms', num_bands=num_bands)
