"""The reference stream of the full tree estimator."""

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import tree_full
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: tree_full.TreeFull, z: np.ndarray) -> base.NoiseStream:
  """C y = z by forward substitution, of y only the sums below nodes."""
  num_rounds = strategy.stream_rounds()

  def next_fn(state):
    t, sums = state  # Of the rows below each node that tiles the rounds so far.
    strategies.check_num_rounds(strategy, t + 1)
    diagonal, weights = tree_full.row(t, num_rounds)
    earlier = sum(
      weights[height] * total for height, total in zip(sorted(weights, reverse=True), sums)
    )
    row = (dispatch.row_of(z, t) - earlier) / diagonal
    total, height = row, 0
    while t >> height & 1 and height in weights:
      *sums, sibling = sums
      total, height = total + sibling, height + 1
    whole = height == tree_full.height_of_tree(t, num_rounds)
    return row, (t + 1, () if whole else (*sums, total))

  return base.NoiseStream(lambda: (0, ()), next_fn)
