"""Sums at a few rounds are those over all; derivatives of figures of BLTs, against differences."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.mechanisms import blt_sums

RATES = np.append(np.geomspace(1e-13, 50.0, 25), 0.0)


@pytest.mark.parametrize(
  'count', [0, 1, 2, 31, 32, 33, 48, 49, 64, 127, 128, 129, 544, 545, 2052, 20_000]
)
def test_sums_of_products_of_series(count):
  positions, weights = blt_sums.nodes(count)
  assert (weights > 0.0).all()
  rounds = np.arange(count, dtype=np.float64)
  for rate in RATES:
    for function in (
      lambda i, rate=rate: np.exp(-rate * i),
      lambda i, rate=rate: i**2 * np.exp(-rate * i),
      lambda i, rate=rate: (count - i) * (0.1 + np.exp(-rate * i)) ** 2,
      lambda i, rate=rate: np.square(blt_sums.power_sum(rate + 1e-9, i + 1.0)),
    ):
      expected = math.fsum(function(rounds))
      got = float(weights @ function(positions))
      assert math.isclose(got, expected, rel_tol=1e-13, abs_tol=1e-200)


@pytest.mark.parametrize('count', [10**5, 10**9, 10**12])
def test_so_many_rounds_that_only_a_closed_form_knows(count):
  positions, weights = blt_sums.nodes(count)
  assert positions.size < 12 * math.log2(count)
  assert positions.max() < count
  sums = {weights.sum(): count, weights @ positions: count * (count - 1) / 2}
  for rate in np.geomspace(1e-15, 20.0, 30):
    decayed = weights @ np.exp(-rate * positions)
    sums[decayed] = math.expm1(-count * rate) / math.expm1(-rate)
  assert all(math.isclose(got, expected, rel_tol=3e-14) for got, expected in sums.items())


@hypothesis.given(st.floats(1e-15, 30.0), st.integers(1, 300))
def test_log_slope(rate, count):
  rounds = np.arange(count, dtype=np.longdouble)
  powers = np.exp(-np.longdouble(rate) * rounds)
  expected = -float((rounds * powers).sum() / powers.sum())
  got = float(blt_sums.log_slope(np.float64(rate), np.float64(count)))
  assert got == pytest.approx(expected, rel=1e-11, abs=1e-13)
