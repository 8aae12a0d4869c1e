"""BLTs: coefficients by their definition, and the constraints behind them."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.families import blt


def test_coefficients_by_their_definition():
  strategy = blt.BLT([0.5, 0.25], [0.1, 0.2])
  expected = [1.0] + [0.1 * 0.5**i + 0.2 * 0.25**i for i in range(5)]
  np.testing.assert_allclose(strategy.coefficients(6), expected, rtol=1e-15)
  assert strategy.num_buffers == strategy.memory_copies(6) == 2


@pytest.mark.parametrize('num_rounds', [1, 2, 400])
def test_inverse_coefficients_invert(num_rounds):
  strategy = blt.BLT([1 - 1e-12, 0.99, 0.99 - 1e-11], [0.01, 0.3, 0.4])
  product = np.convolve(
    strategy.coefficients(num_rounds), strategy.inverse_coefficients(num_rounds)
  )[:num_rounds]
  np.testing.assert_allclose(product, np.eye(num_rounds)[0], atol=1e-12)


@hypothesis.given(
  st.lists(
    st.tuples(st.floats(0.0, 1.0, exclude_min=True, exclude_max=True), st.floats(0.0, 1.0)),
    min_size=1,
    max_size=6,
  )
)
@hypothesis.settings(deadline=None, max_examples=100)
def test_coefficients_never_increase(pairs):
  decay, scale = zip(*pairs)
  if sum(scale) > 1.0:
    with pytest.raises(ValueError, match='output_scale'):
      blt.BLT(decay, scale)
    return
  coefficients = blt.BLT(decay, scale).coefficients(50)
  assert (coefficients >= 0.0).all()
  assert (np.diff(coefficients) <= 0.0).all()


@pytest.mark.parametrize(
  'decay, scale, name',
  [
    ([], [], 'buffer_decay'),
    ([0.5], [], 'same length'),
    ([0.5], [0.1, 0.1], 'same length'),
    ([0.0], [0.1], 'buffer_decay'),
    ([1.0], [0.1], 'buffer_decay'),
    ([-0.5], [0.1], 'buffer_decay'),
    ([float('nan')], [0.1], 'buffer_decay'),
    ([0.5], [-0.1], 'output_scale'),
    ([0.5], [1.1], 'output_scale'),
    ([0.5], [float('inf')], 'output_scale'),
  ],
)
def test_refuses(decay, scale, name):
  with pytest.raises(ValueError, match=name):
    blt.BLT(decay, scale)
