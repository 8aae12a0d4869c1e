"""The reference stream of tree strategies."""

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.noise import base
from fl_dpftrl.noise.reference import dispatch


@dispatch.reference_stream.register
def _(strategy: tree.TreeOnline, z: np.ndarray) -> base.NoiseStream:
  """Honaker 2015: a node's estimate, once finished, replaces its children's."""

  def next_fn(state):
    t, pending = state  # Estimates of the nodes that tile the rounds before t.
    strategies.check_num_rounds(strategy, t + 1)
    first = tree.first_node(t)
    owns = tree.own_weights(t, strategy.nodes_completed(t))
    estimate, replaced = dispatch.row_of(z, first), np.zeros(z.shape[1])
    for height in range(1, len(owns)):
      if t >> (height - 1) & 1:
        *pending, sibling = pending
        replaced, estimate = replaced + sibling, estimate + sibling
      noise = dispatch.row_of(z, first + height)
      estimate = owns[height] * noise + (1.0 - owns[height]) * estimate
    return estimate - replaced, (t + 1, (*pending, estimate))

  return base.NoiseStream(lambda: (0, ()), next_fn)
