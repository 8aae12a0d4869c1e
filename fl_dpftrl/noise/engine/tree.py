"""The recurrence of tree strategies: a buffer for each height."""

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.noise.engine import dispatch


@dispatch.recurrence.register
def _(strategy: tree.TreeOnline, num_rounds: int) -> dispatch.Recurrence:
  """Honaker 2015: a node's estimate, once finished, replaces its children's.

  The estimate that waits for its sibling at some height is in the buffer of that
  height, so that nothing is moved.
  """
  strategies.check_num_rounds(strategy, num_rounds)
  norms = np.array([tree.row_norm(t, strategy.nodes_completed(t)) for t in range(num_rounds)])

  def step(t):
    first = tree.first_node(t)
    owns = tree.own_weights(t, strategy.nodes_completed(t))
    top = len(owns) - 1
    siblings = [h for h in range(top) if t >> h & 1]

    def apply(draw, buffers, part, scratch):
      draw(first, part)
      for height in range(1, top + 1):
        if height - 1 in siblings:
          np.add(part, buffers[height - 1], out=part)
        np.multiply(part, 1.0 - owns[height], out=part)
        draw(first + height, scratch)
        np.multiply(scratch, owns[height], out=scratch)
        np.add(part, scratch, out=part)
      buffers[top] = part
      for height in siblings:
        np.subtract(part, buffers[height], out=part)
      return part

    return dispatch.Step(apply, [top])

  return dispatch.Recurrence((num_rounds - 1).bit_length() + 1, norms, step)
