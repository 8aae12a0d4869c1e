"""Sums at a few rounds are those over all; derivatives of figures of BLTs, against differences."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import workloads
from fl_dpftrl.families import blt_sums, interlaced
from fl_dpftrl.participation import schemas

RATES = np.append(np.geomspace(1e-13, 50.0, 25), 0.0)


@pytest.mark.parametrize(
  'count', [0, 1, 2, 31, 32, 33, 48, 49, 64, 127, 128, 129, 544, 545, 2052, 20_000]
)
def test_sums_of_products_of_series(count):
  nodes = blt_sums.nodes(count)
  assert (nodes.weights > 0.0).all()
  rounds = np.arange(count, dtype=np.float64)
  for rate in RATES:
    for function in (
      lambda i, rate=rate: np.exp(-rate * i),
      lambda i, rate=rate: i**2 * np.exp(-rate * i),
      lambda i, rate=rate: (count - i) * (0.1 + np.exp(-rate * i)) ** 2,
      lambda i, rate=rate: np.square(blt_sums.power_sum(rate + 1e-9, i + 1.0)),
    ):
      expected = math.fsum(function(rounds))
      got = float(nodes.weights @ function(nodes.positions))
      assert math.isclose(got, expected, rel_tol=1e-13, abs_tol=1e-200)


@pytest.mark.parametrize('count', [10**5, 10**9, 10**12])
def test_so_many_rounds_that_only_a_closed_form_knows(count):
  nodes = blt_sums.nodes(count)
  assert nodes.positions.size < 12 * math.log2(count)
  assert nodes.positions.max() < count
  sums = {nodes.weights.sum(): count, nodes.weights @ nodes.positions: count * (count - 1) / 2}
  for rate in np.geomspace(1e-15, 20.0, 30):
    decayed = nodes.weights @ np.exp(-rate * nodes.positions)
    sums[decayed] = math.expm1(-count * rate) / math.expm1(-rate)
  assert all(math.isclose(got, expected, rel_tol=3e-14) for got, expected in sums.items())


@hypothesis.given(st.floats(1e-15, 30.0), st.integers(1, 300))
def test_log_slope(rate, count):
  rounds = np.arange(count, dtype=np.longdouble)
  powers = np.exp(-np.longdouble(rate) * rounds)
  expected = -float((rounds * powers).sum() / powers.sum())
  got = float(blt_sums.log_slope(np.float64(rate), np.float64(count)))
  assert got == pytest.approx(expected, rel=1e-11, abs=1e-13)


@pytest.mark.parametrize('num_rounds', [1, 2, 50, 10**9])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_derivatives_of_the_error(num_rounds, momentum, objective):
  """Also under a schedule, where the rounds are not too many."""
  function = blt_sums.SquaredError(num_rounds, objective, momentum)
  below_one = np.array([0.0, 1e-8, 0.2, 0.7, 0.9999, 1.4])
  check_derivatives(function, below_one, np.full(6, 0.1), fixed=1)
  if num_rounds <= 50:
    rates = workloads.Workload(0.0, 0.2, 0.5).learning_rates(num_rounds)
    function = blt_sums.ScheduleSquaredError(rates, objective, momentum)
    below_one = np.array([0.0, 1e-3, 0.2, 0.7, 1.4])
    check_derivatives(function, below_one, np.full(5, 0.1), fixed=1)


@pytest.mark.parametrize(
  'n, b, k', [(1, 1, 1), (2, 1, None), (50, 7, 4), (10**9, 10**6, 10), (10**6, 1, None)]
)
def test_derivatives_of_the_sensitivity(n, b, k):
  function = blt_sums.SquaredSensitivity(schemas.MinSep(n, b, k))
  check_derivatives(function, np.array([1e-8, 0.2, 0.7, 0.99]), np.full(4, 0.1), fixed=0)


def check_derivatives(function, below_one, scales, fixed):
  """Against differences of ln value, on a logarithmic scale."""
  value, d_points, d_scales = function(below_one[None], scales[None])
  got = np.concatenate([-d_points[0] * below_one, d_scales[0] * scales])
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
  function = blt_sums.SquaredSensitivity(schemas.MinSep(num_rounds=100, min_sep=30))
  chain = interlaced.chain(gaps)
  together = function(chain.decays, chain.scales)
  for i in range(2):
    single = interlaced.chain(gaps[i])
    for many, one in zip(together, function(single.decays, single.scales)):
      np.testing.assert_allclose(many[i], one, rtol=1e-14)
