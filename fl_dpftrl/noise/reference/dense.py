"""The reference stream of dense strategies."""

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import dense
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: dense.Dense, z: np.ndarray) -> base.NoiseStream:
  """C y = z by forward substitution, over all earlier rows of y."""

  def next_fn(history):
    t = len(history)
    strategies.check_num_rounds(strategy, t + 1)
    below = strategy.coefficients[t, :t]
    row = dispatch.row_of(z, t) - below @ history
    row = row / strategy.coefficients[t, t]
    return row, np.vstack([history, row])

  return base.NoiseStream(lambda: np.zeros((0, z.shape[1])), next_fn)
