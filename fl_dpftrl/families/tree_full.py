"""Binary trees over the rounds, every prefix sum estimated from all nodes."""

import dataclasses
import math
import operator
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from fl_dpftrl import error as error_lib
from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.families import base
from fl_dpftrl.families import tree_online
from fl_dpftrl.sensitivity import base as sensitivity_lib
from fl_dpftrl.sensitivity import blocks
from fl_dpftrl.sensitivity import entries
from fl_dpftrl.sensitivity import gram
from fl_dpftrl.sensitivity import nested

_GENERAL_ROUNDS = 4096  # up to so many, the bound for any X is computed as well


def height_of_tree(round_index: int, num_rounds: int) -> int:
  """Height of the largest complete node that holds a round, of a whole run."""
  return (round_index ^ num_rounds).bit_length() - 1


def row(round_index: int, num_rounds: int) -> tuple[float, dict[int, float]]:
  """Row t of C: its diagonal entry, and its entry for each block before it.

  X ↦ C eliminates the rounds from the last on: C[t, t] C[t, :] is row t of the
  Schur complement of the rounds after t, half the derivative by u_t of the
  least ‖T u‖² over their values. That least value is found from the root down
  to the round. Where a node's right half lies after t, only its sum is left
  free, and a sum s below a node of height h costs at least (2 − 2^−h) s².

  Args:
    round_index: t.
    num_rounds: of the whole run.

  Returns:
    C[t, t]; and for each height at which a complete left sibling of the nodes
    over t stands, the entry of C for all 2^height rounds below that sibling.
    The others are 0.
  """
  cost, weights = 0.0, {}  # Of a sum s above: cost·s² + 2 s·Σ weight·sibling.
  for height in reversed(range(height_of_tree(round_index, num_rounds))):
    cost += 1.0
    if round_index >> height & 1:
      weights[height] = cost
    else:
      free = 2.0 - 2.0**-height
      share = free / (free + cost)
      cost *= share
      weights = {h: share * weight for h, weight in weights.items()}
  diagonal = math.sqrt(1.0 + cost)
  return diagonal, {h: weight / diagonal for h, weight in weights.items()}


def node_moments(num_heights: int) -> tuple[np.ndarray, np.ndarray]:
  """Variances in a finished tree of each height, where Z has variance 1.

  Returns:
    Two arrays of shape [num_heights]: the variance of the estimate of the sum
    of all its rounds, and that of the estimate of any single round.
  """
  heights = np.arange(num_heights)
  total = 1.0 / (2.0 - 2.0**-heights)
  # One more node on top takes its share off the covariance, by Sherman and
  # Morrison; a round's covariance with the sum is the same for all rounds.
  shared = total / 2.0**heights
  less = shared[:-1] ** 2 / (1.0 + 2.0 * total[:-1])
  return total, 1.0 - np.concatenate([[0.0], np.cumsum(less)])


@dataclasses.dataclass(frozen=True)
class TreeFull(base.Strategy):
  """Tree aggregation with Honaker's full estimator, B = A T⁺.

  T has a row for every complete node of the binary tree over all rounds, and
  every prefix sum is estimated by least squares from the whole of it, nodes
  that later rounds complete included. Only X = TᵀT matters to sensitivity and
  errors, and C is its lower-triangular factor, X = CᵀC: Z has a row a round, N
  is C's inverse, and A N Z has the distribution of A T⁺ Z. So the estimator
  that needs the whole tree streams, in the memory of the online one.

  X depends on the number of rounds from the first of them on, and so does each
  row of noise. A stream needs num_rounds; without it, C is that of a run of as
  many rounds as are asked for, which is not how a longer run begins.

  Attributes:
    num_rounds: of the run; None for those that are asked for.

  Raises:
    ValueError: where num_rounds is neither None nor a whole number of at least
      1.

  Source: Honaker 2015; Denisov et al. 2022, appendix on binary trees, for B and
  for streaming by an equivalent lower-triangular C.
  """

  num_rounds: int | None = None
  family: ClassVar[str] = 'tree_full'

  def __post_init__(self):
    if self.num_rounds is None:
      return
    try:
      num_rounds = operator.index(self.num_rounds)
    except TypeError:
      num_rounds = 0
    if num_rounds < 1 or isinstance(self.num_rounds, bool):
      raise ValueError(
          'num_rounds must be a whole number of at least 1, or None, got'
          f' {self.num_rounds!r}'
      )
    object.__setattr__(self, 'num_rounds', num_rounds)

  @property
  def max_rounds(self) -> int | None:
    return self.num_rounds

  def memory_copies(self, num_rounds: int) -> int:
    return num_rounds.bit_length()

  def planned_rounds(self, num_rounds: int) -> int:
    """Rounds of the run of which num_rounds are looked at.

    Raises:
      ValueError: where there are not so many.
    """
    base.check_num_rounds(self, num_rounds)
    return num_rounds if self.num_rounds is None else self.num_rounds

  def stream_rounds(self) -> int:
    """num_rounds, for a stream.

    Raises:
      ValueError: where it is None.
    """
    if self.num_rounds is None:
      raise ValueError(
          'num_rounds is needed to stream tree_full: its first row of noise'
          ' depends on the rounds to come'
      )
    return self.num_rounds

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    planned = self.planned_rounds(num_rounds)
    matrix = np.zeros((num_rounds, num_rounds))
    for t in range(num_rounds):
      matrix[t, t], weights = row(t, planned)
      for height, weight in weights.items():
        end = t >> height << height
        matrix[t, end - 2**height : end] = weight
    return matrix

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return scipy.linalg.solve_triangular(
        self.strategy_matrix(num_rounds), np.eye(num_rounds), lower=True
    )

  def parameters(self) -> dict[str, Any]:
    return {} if self.num_rounds is None else {'num_rounds': self.num_rounds}

  def nested_blocks(self, num_rounds: int) -> nested.Block:
    """The first rounds with the nodes of the whole run over them."""
    planned = self.planned_rounds(num_rounds)
    return nested.first_rounds(nested.forest(planned), num_rounds)

  def sensitivity(
      self, schema: participation.MinSep
  ) -> sensitivity_lib.Sensitivity:
    planned = self.planned_rounds(schema.num_rounds)
    if schema.num_rounds == planned:
      return tree_online.TreeOnline().sensitivity(schema)
    # A run that ends early has had part of the rows of C: no more than all.
    whole = nested.block_sensitivity(
        self.nested_blocks(schema.num_rounds), schema.as_min_sep()
    )
    bound = sensitivity_lib.Sensitivity(
        whole.value, sensitivity_lib.UPPER_BOUND
    )
    if schema.num_rounds > _GENERAL_ROUNDS:
      return bound
    matrix = self.gram_matrix(schema.num_rounds)
    return sensitivity_lib.better(bound, gram.gram_sensitivity(matrix, schema))

  def repeated_sensitivity(
      self, block_rounds: int, schema: participation.MinSep
  ) -> sensitivity_lib.Sensitivity:
    found = nested.repeated_sensitivity(
        self.nested_blocks, block_rounds, schema
    )
    if all(
        self.planned_rounds(size) == size
        for size in set(blocks.sizes(schema.num_rounds, block_rounds))
    ):
      return found
    return sensitivity_lib.Sensitivity(
        found.value, sensitivity_lib.UPPER_BOUND
    )

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    if self.planned_rounds(num_rounds) == num_rounds:
      return tree_online.TreeOnline().gram_matrix(num_rounds)
    return super().gram_matrix(num_rounds)

  def gram_entries(self, num_rounds: int) -> entries.Entries:
    if self.planned_rounds(num_rounds) == num_rounds:
      return tree_online.TreeOnline().gram_entries(num_rounds)
    return super().gram_entries(num_rounds)

  def per_query_error(
      self,
      num_rounds: int,
      workload: workloads.Queries = workloads.Workload(),
  ) -> np.ndarray:
    """In O(n): the variances of a tree's prefix sums are nearly its halves'."""
    planned = self.planned_rounds(num_rounds)
    if not error_lib.is_prefix_sums(workload):
      return super().per_query_error(num_rounds, workload)
    workloads.check_round_by_round(planned)
    heights = [
        height
        for height in reversed(range(planned.bit_length()))
        if planned >> height & 1
    ]
    totals, _ = node_moments(planned.bit_length())
    within = _prefix_variances(heights[0])
    variances, before = [], 0.0
    for height in heights:
      variances.append(before + within[height])
      before += totals[height]
    return np.sqrt(np.concatenate(variances)[:num_rounds])


def _prefix_variances(height: int) -> list[np.ndarray]:
  """For trees of each height, the variances of their prefix sums."""
  totals, _ = node_moments(height + 1)
  variances = [np.ones(1)]
  for h in range(height):
    half = variances[-1]
    apart = np.concatenate([half, totals[h] + half])
    # The node over both halves: of the prefix and the whole, the covariance is
    # in proportion to the rounds that they share.
    covariance = totals[h] / 2.0**h * np.arange(1, 2 * half.size + 1)
    variances.append(apart - covariance**2 / (1.0 + 2.0 * totals[h]))
  return variances
