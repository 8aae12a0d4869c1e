"""Binary trees over the rounds, estimated online."""

import dataclasses
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, linear_noise, schemas, workloads
from fl_dpftrl.mechanisms.sensitivities import kinds, nested


def first_node(round_index: int) -> int:
  """Returns the number of nodes complete before a round: 2t − popcount(t)."""
  return 2 * round_index - round_index.bit_count()


def nodes_completed(round_index: int) -> int:
  """Number of nodes a round completes: its leaf, and one per trailing 1."""
  return ((round_index + 1) & -(round_index + 1)).bit_length()


def node_weight(height: int) -> float:
  """Weight of a node's own noise in its estimate, at a height above the leaves.

  The children's sum of estimates gets the rest. Inverse-variance weighting of a node's variance
  1 against its children's 2 v(h − 1) leaves v(h) = 1 / (2 − 2^−h), which is the weight itself.

  Source: Honaker 2015, "Efficient use of differentially private binary trees".
  """
  return 1.0 / (2.0 - 2.0**-height)


def node_weights(num_nodes: int) -> list[float]:
  """Returns `node_weight` of nodes that end with one round, from its leaf up."""
  weights = [1.0]
  for height in range(1, num_nodes):
    variance = weights[-1] + node_weight(height - 1)
    weights.append(variance / (1.0 + variance))
  return weights


@dataclasses.dataclass(frozen=True, repr=False)
class TreeOnline(base.Strategy):
  """Tree aggregation with Honaker's online estimator.

  C has a row for every complete node of the binary tree, in the order in which the rounds
  complete them (a round's leaf, then its finished ancestors, from the lowest). A prefix sum is
  the sum of the estimates of the complete nodes that tile it, each estimated from its own noise
  and its subtree's.

  For trees that are restarted every so many rounds, see `stamped.Stamped`.

  Source: Kairouz et al. 2021 (DP-FTRL), algorithm 1; Honaker 2015.
  """

  family: ClassVar[str] = 'tree_online'
  max_rounds: ClassVar[int | None] = None

  def num_noise_rows(self, num_rounds: int) -> int:
    return first_node(num_rounds)

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    matrix = np.zeros((self.num_noise_rows(num_rounds), num_rounds))
    for last in range(num_rounds):
      for height in range(nodes_completed(last)):
        start = last >> height << height
        matrix[first_node(last) + height, start : last + 1] = 1.0
    return matrix

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    width = self.num_noise_rows(num_rounds)
    pending: list[np.ndarray] = []
    rows = np.zeros((num_rounds, width))
    for last in range(num_rounds):
      estimate, replaced = np.zeros(width), np.zeros(width)
      owns = node_weights(nodes_completed(last))
      estimate[first_node(last)] = owns[0]
      for height in range(1, len(owns)):
        sibling = pending.pop()
        replaced += sibling
        estimate += sibling
        estimate *= 1.0 - owns[height]
        estimate[first_node(last) + height] = owns[height]
      pending.append(estimate)
      rows[last] = estimate - replaced
    return rows

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """Sums of rows below the nodes that tile the rounds so far, as a stack.

    A node's estimate is the sum of the noise rows of its rounds. So a row is the estimate of
    the highest node that its round completes, less the estimates that this one replaces, whose
    variances are their own weights.
    """

    def step(t):
      owns = np.array(node_weights(nodes_completed(t)))
      # Share of each node's estimate in that of the highest.
      shares = np.cumprod([1.0, *(1.0 - owns[:0:-1])])[::-1]
      draws, square = shares * owns, 0.0
      for height in reversed(range(owns.size)):
        square += draws[height] ** 2
        if height:
          square += (1.0 - shares[height - 1]) ** 2 * node_weight(height - 1)
      return linear_noise.Step(
        draws=draws,
        below=1.0 - shares[:-1],
        update=linear_noise.Push(merged=owns.size - 1),
        norm=float(np.sqrt(square)),
      )

    num_buffers = num_rounds.bit_length() if num_rounds is not None else 63
    return linear_noise.LinearNoise(num_buffers, step, dyadic=True)

  def nested_blocks(self, num_rounds: int) -> nested.Block:
    """The rounds with the nodes over them: complete trees side by side."""
    base.check_num_rounds(self, num_rounds)
    return nested.forest(num_rounds)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    base.check_num_rounds(self, schema.num_rounds)
    if isinstance(schema, schemas.Fixed):
      return kinds.Sensitivity.from_square(_worst_of_fixed_separation(schema))
    return nested.block_sensitivity(self.nested_blocks(schema.num_rounds), schema)

  def repeated_sensitivity(self, block_rounds: int, schema: schemas.Schema) -> kinds.Sensitivity:
    return nested.repeated_sensitivity(self.nested_blocks, block_rounds, schema)

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    """X counts the nodes that hold both rounds."""
    base.check_num_rounds(self, num_rounds)
    workloads.check_dense(num_rounds)
    total = np.zeros((num_rounds, num_rounds))
    for ids in _node_ids(num_rounds, np.arange(num_rounds)):
      starts = np.flatnonzero(np.diff(ids, prepend=-2))
      for start, end in zip(starts, [*starts[1:], num_rounds]):
        if ids[start] >= 0:
          total[start:end, start:end] += 1.0
    return total

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    base.check_num_rounds(self, num_rounds)

    def entries_at(rows, columns):
      both = zip(_node_ids(num_rounds, rows), _node_ids(num_rounds, columns))
      return sum((i == j) & (i >= 0) for i, j in both).astype(np.float64)

    return entries_at

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    if not workload.is_prefix_sums:
      return super().per_query_error(num_rounds, workload)
    base.check_num_rounds(self, num_rounds)
    workloads.check_round_by_round(num_rounds)
    # A prefix is tiled by a complete node for each bit of its length, and the variance of a
    # node's estimate is the weight of its own noise.
    lengths, variance = np.arange(1, num_rounds + 1), np.zeros(num_rounds)
    for height in range(num_rounds.bit_length()):
      variance += (lengths >> height & 1) * node_weight(height)
    return np.sqrt(variance)


def _node_ids(num_rounds: int, rounds: np.ndarray) -> Iterator[np.ndarray]:
  """For each height, the node over each round; −1 where C has no such row."""
  for height in range(num_rounds.bit_length()):
    ids = rounds >> height
    yield np.where((ids + 1) << height <= num_rounds, ids, -1)


def _worst_of_fixed_separation(schema: schemas.Fixed) -> int:
  """Largest ‖C u‖² over runs of rounds min_sep apart, in O(n log n)."""
  num_rounds, count = schema.num_rounds, schema.participations
  rounds = np.arange(num_rounds)
  remainders = rounds % schema.min_sep
  order = np.argsort(remainders, kind='stable')
  remainders = remainders[order]
  # Patterns from `rounds` to `last` in this order, as long as they can be.
  last = np.searchsorted(remainders, remainders, side='right') - 1
  last = np.minimum(last, rounds + count - 1)
  totals = np.zeros(num_rounds, np.int64)
  for ids in _node_ids(num_rounds, order):
    new = np.diff(remainders, prepend=-1) != 0
    new |= np.diff(ids, prepend=-2) != 0
    run, starts = np.cumsum(new) - 1, np.flatnonzero(new)
    ends = np.append(starts[1:], num_rounds)
    counted = ids >= 0
    squares = np.cumsum((ends - starts) ** 2 * counted[starts])
    within = (last - rounds + 1) ** 2 * counted
    across = (ends[run] - rounds) ** 2 * counted
    across += (last - starts[run[last]] + 1) ** 2 * counted[last]
    across += squares[run[last] - 1] - squares[run]
    totals += np.where(run == run[last], within, across)
  return int(totals.max())
