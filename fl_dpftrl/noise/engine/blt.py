"""The recurrence of blt strategies, in one pass over the parameters."""

import numpy as np

from fl_dpftrl.families import blt
from fl_dpftrl.noise.engine import dispatch


@dispatch.recurrence.register
def _(strategy: blt.BLT, num_rounds: int) -> dispatch.Recurrence:
  """McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), algorithm 1."""
  norms = np.sqrt(np.cumsum(strategy.inverse_coefficients(num_rounds) ** 2))
  # 1 − θ keeps its precision in float32 where θ near 1 does not.
  losses = [1.0 - decay for decay in strategy.buffer_decay]
  scales = list(strategy.output_scale)

  def step(t):
    def apply(draw, buffers, part, scratch):
      draw(t, part)
      for scale, buffer in zip(scales, buffers):
        np.multiply(buffer, scale, out=scratch)
        np.subtract(part, scratch, out=part)
      for loss, buffer in zip(losses, buffers):
        np.multiply(buffer, loss, out=scratch)
        np.subtract(part, scratch, out=scratch)
        np.add(buffer, scratch, out=buffer)
      return part

    return dispatch.Step(apply, range(strategy.num_buffers))

  return dispatch.Recurrence(strategy.num_buffers, norms, step)
