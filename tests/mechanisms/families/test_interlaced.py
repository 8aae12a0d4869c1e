"""Chains: their series, and how they are found again from a BLT."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.mechanisms import interlaced
from fl_dpftrl.mechanisms.families import blt

HARD = {
  'one': ([0.5], [1.0]),
  'negative inverse decay': ([1e-4], [1.0]),
  'decays 2e-11 apart': (
    [0.99, 0.735, 0.16776199983448145, 0.1677619998016191],
    [0.205, 0.233, 0.0348, 0.0348],
  ),
  'nearly 1': ([1.0 - 1e-12, 0.99, 0.99 - 1e-11], [0.01, 0.3, 0.4]),
  'next to 1': ([1.0 - 2.0**-53, 0.9], [1e-9, 0.1]),
  'equal': ([0.5, 0.25, 0.5], [0.3, 0.1, 0.4]),
  'tiny': ([1e-300, 1e-3], [0.5, 0.5]),
  'tiny scale': ([0.9, 0.8, 0.7], [1e-200, 1e-18, 0.1]),
  'scale of 0': ([0.5, 0.3], [0.0, 1.0]),
  'nothing': ([0.5, 0.3], [0.0, 0.0]),
}


def by_recurrence(strategy, num_rounds):
  """The first column of C⁻¹ as algorithm 1 gives it, in long doubles."""
  decay = np.array(strategy.buffer_decay, np.longdouble)
  scale = np.array(strategy.output_scale, np.longdouble)
  buffers, impulse = np.zeros_like(decay), np.longdouble(1.0)
  column = np.empty(num_rounds, np.longdouble)
  for t in range(num_rounds):
    column[t] = impulse - scale @ buffers
    buffers, impulse = decay * buffers + column[t], np.longdouble(0.0)
  return column


@pytest.mark.parametrize('decay, scale', HARD.values(), ids=HARD)
@pytest.mark.parametrize('num_rounds', [1, 2, 500])
def test_series_of_the_inverse_and_of_its_sums(decay, scale, num_rounds):
  strategy = blt.BLT(decay, scale)
  expected = by_recurrence(strategy, num_rounds)
  got = strategy.noising_column(num_rounds)
  np.testing.assert_allclose(got, expected.astype(float), atol=2e-13)
  chain = interlaced.chain(strategy.gaps)
  assert (strategy.gaps > 0.0).all()
  assert (chain.sum_scales > 0.0).all()
  points = 1.0 - chain.complements[0::2]
  sums = chain.sum_scales @ np.power.outer(points, np.arange(num_rounds))
  np.testing.assert_allclose(sums, np.cumsum(expected).astype(float), rtol=2e-12, atol=2e-13)


@st.composite
def all_gaps(draw):
  size = draw(st.integers(1, 5))
  exponents = draw(st.lists(st.floats(-10.0, 0.0), min_size=2 * size, max_size=2 * size))
  gaps = 10.0 ** np.array(exponents)
  return gaps / (gaps.sum() * draw(st.floats(1.01, 2.0)))


@hypothesis.given(all_gaps())
def test_gaps_are_found_again(gaps):
  chain = interlaced.chain(gaps)
  decay, scale = 1.0 - chain.decays, chain.scales
  hypothesis.assume(np.diff(decay).max(initial=-1.0) < -1e-7)
  again = interlaced.gaps_of(decay, scale)
  # 1 − θ and differences of θ are as exact as θ can be stored.
  np.testing.assert_allclose(again, gaps, rtol=1e-7, atol=1e-15)
