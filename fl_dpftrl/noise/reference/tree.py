"""The reference stream of tree strategies."""

import numpy as np

from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch
from fl_dpftrl.strategies import tree


@dispatch.reference_stream.register
def _(strategy: tree.TreeOnline, z: np.ndarray) -> base.NoiseStream:
  """Honaker 2015: a node's estimate, once finished, replaces its children's."""
  del strategy

  def next_fn(state):
    t, pending = state  # Estimates of the nodes that tile the rounds before t.
    first = tree.first_node(t)
    estimate, replaced = dispatch.row_of(z, first), np.zeros(z.shape[1])
    for height in range(1, tree.nodes_completed(t)):
      *pending, sibling = pending
      replaced = replaced + sibling
      own = tree.own_weight(height)
      estimate = own * dispatch.row_of(z, first + height) + (1.0 - own) * (
          sibling + estimate
      )
    return estimate - replaced, (t + 1, (*pending, estimate))

  return base.NoiseStream(lambda: (0, ()), next_fn)
