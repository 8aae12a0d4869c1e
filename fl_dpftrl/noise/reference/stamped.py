"""The reference stream of stamped strategies."""

import numpy as np

from fl_dpftrl.families import stamped
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: stamped.Stamped, z: np.ndarray) -> base.NoiseStream:
  """The stream of the repeated strategy, restarted with every block."""

  def next_fn(state):
    t, inside = state
    dispatch.row_of(z, strategy.num_noise_rows(t + 1) - 1)
    block, within = divmod(t, strategy.block_rounds)
    stream = dispatch.reference_stream(strategy.strategy, z[block * strategy.block_noise_rows :])
    row, inside = stream.next(inside if within else stream.init())
    return row, (t + 1, inside)

  return base.NoiseStream(lambda: (0, None), next_fn)
