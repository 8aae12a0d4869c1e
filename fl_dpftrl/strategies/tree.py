"""Binary trees over the rounds, estimated online."""

import dataclasses
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.strategies import base


def first_node(round_index: int) -> int:
  """Nodes that were complete before a round: 2t − popcount(t)."""
  return 2 * round_index - round_index.bit_count()


def nodes_completed(round_index: int) -> int:
  """Nodes that a round completes: its leaf, and an ancestor a trailing 1."""
  return ((round_index + 1) & -(round_index + 1)).bit_length()


def own_weight(height: int) -> float:
  """Weight of a node's own noise in its estimate, at a height above the leaves.

  The children's sum of estimates gets the rest. Inverse-variance weighting of a
  node's variance 1 against its children's 2 v(h − 1) leaves
  v(h) = 1 / (2 − 2^−h), which is the weight itself.

  Source: Honaker 2015, "Efficient use of differentially private binary trees".
  """
  return 1.0 / (2.0 - 2.0**-height)


@dataclasses.dataclass(frozen=True)
class TreeOnline:
  """Tree aggregation with Honaker's online estimator.

  C has a row for every complete node of the binary tree, in the order in which
  the rounds complete them (a round's leaf, then its finished ancestors, from
  the lowest). A prefix sum is the sum of the estimates of the complete nodes
  that tile it, each estimated from its own noise and its subtree's.

  Source: Kairouz et al. 2021 (DP-FTRL), algorithm 1; Honaker 2015.
  """

  family: ClassVar[str] = 'tree_online'

  @property
  def max_rounds(self) -> int | None:
    return None

  def num_noise_rows(self, num_rounds: int) -> int:
    return first_node(num_rounds)

  def memory_copies(self, num_rounds: int) -> int:
    return num_rounds.bit_length()

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    matrix = np.zeros((self.num_noise_rows(num_rounds), num_rounds))
    for last in range(num_rounds):
      for height in range(nodes_completed(last)):
        matrix[first_node(last) + height, last + 1 - 2**height : last + 1] = 1.0
    return matrix

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    width = self.num_noise_rows(num_rounds)
    pending: list[np.ndarray | None] = [None] * num_rounds.bit_length()
    rows, before = np.zeros((num_rounds, width)), np.zeros(width)
    for last in range(num_rounds):
      estimate = np.zeros(width)
      estimate[first_node(last)] = 1.0
      for height in range(1, nodes_completed(last)):
        own = own_weight(height)
        estimate = (1.0 - own) * (pending[height - 1] + estimate)
        estimate[first_node(last) + height] = own
      pending[nodes_completed(last) - 1] = estimate
      prefix = np.zeros(width)
      for height, node in enumerate(pending):
        if (last + 1) >> height & 1:
          prefix += node
      rows[last], before = prefix - before, prefix
    return rows

  def parameters(self) -> dict[str, Any]:
    return {}
