"""Rows of independent noise."""

import numpy as np

from fl_dpftrl.families import identity
from fl_dpftrl.noise.engine import dispatch


@dispatch.recurrence.register
def _(strategy: identity.Identity, num_rounds: int) -> dispatch.Recurrence:
  del strategy

  def step(t):
    def apply(draw, buffers, part, scratch):
      del buffers, scratch
      draw(t, part)
      return part

    return dispatch.Step(apply)

  return dispatch.Recurrence(0, np.ones(num_rounds), step)
