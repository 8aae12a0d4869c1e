"""Binary trees over the rounds, with prefix sums estimated from all nodes."""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, linear_noise, schemas, workloads
from fl_dpftrl.mechanisms.families import tree_online
from fl_dpftrl.mechanisms.sensitivities import independent_blocks, kinds, nested

_GENERAL_ROUNDS = 4096  # most rounds for the bound for any X


def height_of_tree(round_index: int, num_rounds: int) -> int:
  """Returns the height of a run's largest complete node that holds a round."""
  return (round_index ^ num_rounds).bit_length() - 1


def row(round_index: int, num_rounds: int) -> tuple[float, dict[int, float]]:
  """Row t of C for a run of num_rounds: its diagonal entry, and its entry for each earlier block.

  C follows from X by eliminating the rounds from the last on: C[t, t] C[t, :] is row t of the
  Schur complement of the rounds after t. That row is half the derivative by u_t of the least ‖T
  u‖² over the values of those rounds. The minimum is found from the root down to the round. If
  a node's right half lies after t, only its sum is left free. A sum s below a node of height h
  costs at least (2 − 2^−h) s².

  Returns:
    C[t, t]; and the entries of C by height. The entry at a height holds for all 2^height rounds
    below the complete left sibling, at that height, of a node over t. All other entries are 0.
  """
  cost, weights = 0.0, {}  # A sum s costs cost·s² + 2 s·Σ weight·sibling.
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
  """Returns variances by height: of the estimated sum of a finished tree, and of any one round."""
  heights = np.arange(num_heights)
  total = 1.0 / (2.0 - 2.0**-heights)
  # One more node on top lowers the covariance by the formula of Sherman and Morrison; a round's
  # covariance with the sum is the same for all rounds.
  shared = total / 2.0**heights
  less = shared[:-1] ** 2 / (1.0 + 2.0 * total[:-1])
  return total, 1.0 - np.concatenate([[0.0], np.cumsum(less)])


@dataclasses.dataclass(frozen=True, repr=False)
class TreeFull(base.Strategy):
  """Tree aggregation with Honaker's full estimator, B = A T⁺.

  T has a row for every complete node of the binary tree over all rounds. Every prefix sum is
  estimated by least squares from the whole tree, including nodes that later rounds complete.
  Sensitivity and errors depend on X = TᵀT only, and C is its lower-triangular factor, X = CᵀC.
  So Z has a row a round, N is C's inverse, and A N Z has the distribution of A T⁺ Z. The
  estimator that needs the whole tree can thus be streamed, in the memory of the online one.

  From the first round on, X depends on the number of rounds, and so does each noise row. A
  stream needs num_rounds. Without it, C is that of a run of the requested number of rounds,
  which differs from the beginning of a longer run.

  Attributes:
    num_rounds: rounds of the run; None for the requested number.

  Source: Honaker 2015; Denisov et al. 2022, appendix on binary trees, for B and for streaming
  by an equivalent lower-triangular C.
  """

  num_rounds: int | None = None
  family: ClassVar[str] = 'tree_full'

  def __post_init__(self):
    base.keep_rounds(self, 'num_rounds')

  @property
  def max_rounds(self) -> int | None:
    return self.num_rounds

  @property
  def depends_on_num_rounds(self) -> bool:
    return self.num_rounds is None

  def planned_rounds(self, num_rounds: int) -> int:
    """Returns the rounds of the run whose first num_rounds are considered.

    Raises:
      ValueError: if the run has fewer rounds.
    """
    base.check_num_rounds(self, num_rounds)
    return num_rounds if self.num_rounds is None else self.num_rounds

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
    return base.lower_inverse(self.strategy_matrix(num_rounds))

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """C y = z by forward substitution, of y only the sums below nodes.

    They tile the rounds of the present tree so far.
    """
    planned = self.planned_rounds(num_rounds) if num_rounds else self.num_rounds
    if planned is None:
      raise ValueError(
        'num_rounds is needed to stream tree_full: its first row of noise'
        ' depends on the rounds to come'
      )
    _, variances = node_moments(planned.bit_length())

    def step(t):
      diagonal, weights = row(t, planned)
      top = height_of_tree(t, planned)
      within = t & (1 << top) - 1
      return linear_noise.Step(
        diagonal=diagonal,
        below=[weights[height] for height in sorted(weights)],
        update=linear_noise.Push(merged=tree_online.nodes_completed(within) - 1),
        norm=math.sqrt(variances[top]),
        restart=not within,
      )

    return linear_noise.LinearNoise((num_rounds or planned).bit_length(), step)

  def parameters(self) -> base.Parameters:
    return {} if self.num_rounds is None else {'num_rounds': self.num_rounds}

  def nested_blocks(self, num_rounds: int) -> nested.Block:
    """Returns the first rounds, with the nodes of the whole run over them."""
    return nested.first_rounds(nested.forest(self.planned_rounds(num_rounds)), num_rounds)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    planned = self.planned_rounds(schema.num_rounds)
    if schema.num_rounds == planned:
      return tree_online.TreeOnline().sensitivity(schema)
    # A run that ends early used only some rows of C, so its norm is no larger.
    square, _ = nested.worst_square(self.nested_blocks(schema.num_rounds), schema.as_min_sep())
    bound = kinds.Sensitivity.from_square(square, exact=False)
    return base.tightened(bound, self, schema, _GENERAL_ROUNDS)

  def repeated_sensitivity(self, block_rounds: int, schema: schemas.Schema) -> kinds.Sensitivity:
    bound = nested.repeated_sensitivity(self.nested_blocks, block_rounds, schema)
    sizes = set(independent_blocks.sizes(schema.num_rounds, block_rounds))
    if all(self.planned_rounds(size) == size for size in sizes):
      return bound
    return kinds.Sensitivity(bound.value, kinds.UPPER_BOUND)

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    if self.planned_rounds(num_rounds) == num_rounds:
      return tree_online.TreeOnline().gram_matrix(num_rounds)
    return super().gram_matrix(num_rounds)

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    if self.planned_rounds(num_rounds) == num_rounds:
      return tree_online.TreeOnline().gram_entries(num_rounds)
    return super().gram_entries(num_rounds)

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    """Computes errors in O(n) from prefix variances of the two halves."""
    planned = self.planned_rounds(num_rounds)
    if not workload.is_prefix_sums:
      return super().per_query_error(num_rounds, workload)
    workloads.check_round_by_round(planned)
    heights = [height for height in reversed(range(planned.bit_length())) if planned >> height & 1]
    totals, _ = node_moments(planned.bit_length())
    within = _prefix_variances(heights[0])
    variances, completed_variance = [], 0.0
    for height in heights:
      variances.append(completed_variance + within[height])
      completed_variance += totals[height]
    return np.sqrt(np.concatenate(variances)[:num_rounds])


def _prefix_variances(height: int) -> list[np.ndarray]:
  """Returns the variances of prefix sums in trees of each height."""
  totals, _ = node_moments(height + 1)
  variances = [np.ones(1)]
  for h in range(height):
    half = variances[-1]
    apart = np.concatenate([half, totals[h] + half])
    # The node over both halves: the covariance of the prefix with the whole is proportional to
    # the rounds that they share.
    covariance = totals[h] / 2.0**h * np.arange(1, 2 * half.size + 1)
    variances.append(apart - covariance**2 / (1.0 + 2.0 * totals[h]))
  return variances
