"""The reference stream of blt strategies."""

import numpy as np

from fl_dpftrl.families import blt
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: blt.BLT, z: np.ndarray) -> base.NoiseStream:
  """McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), algorithm 1."""
  decay = np.asarray(strategy.buffer_decay)[:, None]
  scale = np.asarray(strategy.output_scale)

  def next_fn(state):
    t, buffers = state
    row = dispatch.row_of(z, t) - scale @ buffers
    return row, (t + 1, decay * buffers + row)

  buffers_shape = (strategy.num_buffers, z.shape[1])
  return base.NoiseStream(lambda: (0, np.zeros(buffers_shape)), next_fn)
