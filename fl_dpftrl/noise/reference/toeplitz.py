"""The reference stream of banded Toeplitz strategies."""

import numpy as np

from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: toeplitz.BandedToeplitz, z: np.ndarray) -> base.NoiseStream:
  """T y = z by forward substitution over the last rows of y; then D⁻¹ y."""
  kept = strategy.num_bands - 1
  diagonal, *below = strategy.coefficients
  norms = strategy.late_norms()

  def next_fn(state):
    t, history = state  # history[j - 1] is row t - j of y.
    strategies.check_num_rounds(strategy, t + 1)
    row = (dispatch.row_of(z, t) - np.asarray(below) @ history) / diagonal
    after = kept
    if strategy.max_rounds is not None:
      after = min(kept, strategy.max_rounds - 1 - t)
    return norms[after] * row, (t + 1, np.vstack([row, history])[:kept])

  return base.NoiseStream(lambda: (0, np.zeros((kept, z.shape[1]))), next_fn)
