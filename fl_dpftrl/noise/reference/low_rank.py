"""The reference stream of low-rank strategies."""

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import low_rank
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: low_rank.LowRank, z: np.ndarray) -> base.NoiseStream:
  """A sum of weighted rows of Z for each rank, and the last rows themselves."""

  def next_fn(state):
    t, sums = state
    strategies.check_num_rounds(strategy, t + 1)
    left_bands = t - strategy.num_bands  # the row that has left the bands
    if left_bands >= 0:
      sums = sums + np.outer(strategy.right[left_bands], dispatch.row_of(z, left_bands))
    row = strategy.left[t] @ sums
    for lag in range(min(strategy.num_bands, t + 1)):
      row = row + strategy.near[t, lag] * dispatch.row_of(z, t - lag)
    return row, (t + 1, sums)

  sums_shape = (strategy.rank, z.shape[1])
  return base.NoiseStream(lambda: (0, np.zeros(sums_shape)), next_fn)
