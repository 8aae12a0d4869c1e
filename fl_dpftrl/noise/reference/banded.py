"""The reference stream of banded strategies."""

import numpy as np

from fl_dpftrl.families import banded
from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: banded.Banded, z: np.ndarray) -> base.NoiseStream:
  """C y = z by forward substitution, over the last num_bands − 1 rows of y."""
  history_shape = (strategy.num_bands - 1, z.shape[1])

  def next_fn(state):
    t, history = state  # history[j - 1] is row t - j.
    strategies.check_num_rounds(strategy, t + 1)
    diagonal, *below = strategy.coefficients[t]
    row = (dispatch.row_of(z, t) - np.asarray(below) @ history) / diagonal
    return row, (t + 1, np.vstack([row, history])[: strategy.num_bands - 1])

  return base.NoiseStream(lambda: (0, np.zeros(history_shape)), next_fn)
