"""Derivatives of errors and sensitivities of BLTs, against differences."""

import math

import numpy as np
import pytest

from fl_dpftrl import workloads
from fl_dpftrl.families import blt_sums, interlaced
from fl_dpftrl.participation import schemas


@pytest.mark.parametrize('num_rounds', [1, 2, 50, 10**9])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_derivatives_of_the_error(num_rounds, momentum, objective):
  function = blt_sums.SquaredError(num_rounds, objective, momentum)
  below_one = np.array([0.0, 1e-8, 0.2, 0.7, 0.9999, 1.4])
  check_derivatives(function, below_one, np.full(6, 0.1), fixed=1)


@pytest.mark.parametrize('num_rounds', [1, 2, 50])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_derivatives_of_the_error_under_a_schedule(num_rounds, momentum, objective):
  rates = workloads.Workload(0.0, 0.2, 0.5).learning_rates(num_rounds)
  function = blt_sums.ScheduleSquaredError(rates, objective, momentum)
  below_one = np.array([0.0, 1e-3, 0.2, 0.7, 1.4])
  check_derivatives(function, below_one, np.full(5, 0.1), fixed=1)


@pytest.mark.parametrize(
  'n, b, k', [(1, 1, 1), (2, 1, None), (50, 7, 4), (10**9, 10**6, 10), (10**6, 1, None)]
)
def test_derivatives_of_the_sensitivity(n, b, k):
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  function = blt_sums.SquaredSensitivity(schema)
  check_derivatives(function, np.array([1e-8, 0.2, 0.7, 0.99]), np.full(4, 0.1), fixed=0)


def check_derivatives(function, below_one, scales, fixed):
  """Against differences of ln value, on a logarithmic scale."""
  value, of_points, of_scales = function(below_one[None], scales[None])
  got = np.concatenate([-of_points[0] * below_one, of_scales[0] * scales])
  size = 2.0**-16
  for j in range(fixed, 2 * scales.size):
    logs = []
    for step in (size, -size):
      moved = np.concatenate([below_one, scales])
      moved[j] *= math.exp(step)
      logs.append(np.log(function(*np.split(moved[None], 2, axis=1))[0][0]))
    numeric = (logs[0] - logs[1]) / (2.0 * size)
    assert got[j] / value[0] == pytest.approx(numeric, abs=1e-7)


def test_several_at_once_are_each_by_itself():
  gaps = np.array([[0.01, 0.2, 0.1, 0.3], [1e-9, 1e-5, 0.5, 0.6]])
  schema = schemas.MinSep(num_rounds=100, min_sep=30)
  function = blt_sums.SquaredSensitivity(schema)
  chain = interlaced.chain(gaps)
  together = function(chain.decays, chain.scales)
  for i in range(2):
    single = interlaced.chain(gaps[i])
    for many, one in zip(together, function(single.decays, single.scales)):
      np.testing.assert_allclose(many[i], one, rtol=1e-14)
