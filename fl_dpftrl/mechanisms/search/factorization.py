"""Optimal dense factorisation A = B C, with a lower bound on the loss.

The rounds are divided into groups; one device may participate in all rounds of a group. If CᵀC
= X is zero between any two rounds of a group, sens² is the largest sum of X's diagonal over a
group, for any updates, and error² is tr(AᵀA X⁻¹).

Any H that is block diagonal over the groups and positive semidefinite proves a lower bound. Let
H = L Lᵀ. For one X, tr(AᵀA X⁻¹) + ⟨H, X⟩ ≥ 2 ‖A L‖, the sum of singular values. Also, ⟨H, X⟩ is
at most sens² times the sum over groups of the largest Hᵢᵢ. The reason is that raising a group's
diagonal of H to one value v makes it v times a matrix of inner products of unit vectors, which
are updates that a device may have. So, for every C, also with negative entries in X,

    error² sens² ≥ ‖A L‖² / Σ over groups of max Hᵢᵢ.

At the optimal L, the X that attains the minimum has zeros within groups, and the two sides are
equal. The error of the worst query is the largest error of weighted queries, over weights that
sum to 1, so weights join L on the left side.

Source: Denisov et al. 2022, theorem 3.2 and the fixed point, for groups of one round and the
mean error, of which this is the extension.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy

from fl_dpftrl.mechanisms import schemas, workloads
from fl_dpftrl.mechanisms.families import dense
from fl_dpftrl.mechanisms.search import search_problem

_MEMORY = 8  # number of earlier steps used for extrapolation
_MOST_STEPS = 200
_PATIENCE = 40  # maximum number of steps to halve the gap
_SINGULAR = 1e-15  # smaller relative eigenvalues count as zero
_ROUNDING = 16.0 * np.finfo(np.float64).eps  # of eigenvalues, to the largest
# Queries whose errors are not the largest would end with no weight, and X would be singular. A
# share of the mean weight keeps their errors down; it costs less than that share of the bound.
_LEAST_WEIGHT = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
  """Rounds of one device, and pairs of rounds at which X must be zero.

  Attributes:
    rounds: shape [groups, width]; values from num_rounds on stand for no round.
    num_rounds: n; each round is in one group.
    reach: rounds of a group less than `reach` places apart are orthogonal.
  """

  rounds: np.ndarray
  num_rounds: int
  reach: int

  @property
  def inside(self) -> np.ndarray:
    return self.rounds < self.num_rounds

  @property
  def order(self) -> np.ndarray:
    """Rounds sorted by group, shape [num_rounds]."""
    return self.rounds[self.inside]

  @property
  def support(self) -> np.ndarray:
    """Mask of the entries of a group's block of L that may be nonzero."""
    width = self.rounds.shape[1]
    lag = np.arange(width)[:, None] - np.arange(width)
    return (lag >= 0) & (lag < self.reach) | (self.reach >= width)


def chains(schema: schemas.Schema) -> Groups:
  """Returns groups of rounds min_sep apart; any k successive ones are a pattern.

  Raises ValueError if there are too many rounds for a dense matrix.
  """
  workloads.check_dense(schema.num_rounds)
  step = schema.num_rounds if schema.participations == 1 else schema.min_sep
  step = min(step, schema.num_rounds)
  length = -(-schema.num_rounds // step)
  rounds = np.arange(step)[:, None] + step * np.arange(length)
  return Groups(rounds, schema.num_rounds, schema.participations)


def tiles(schema: schemas.Schema) -> Groups:
  """Returns the groups of `chains` cut into patterns that share no round."""
  whole, width = chains(schema), schema.participations
  groups, length = whole.rounds.shape
  padded = np.full((groups, -(-length // width) * width), schema.num_rounds)
  padded[:, :length] = whole.rounds
  rounds = padded.reshape(-1, width)
  return Groups(rounds[(rounds < schema.num_rounds).any(axis=1)], schema.num_rounds, width)


class Point(NamedTuple):
  """Point of the dual problem: L, and square roots of the queries' weights, which sum to 1."""

  factor: np.ndarray  # shape [groups, width, width]
  weights: np.ndarray  # shape [queries]


class Bound(NamedTuple):
  """Lower bound at a point, and the next point."""

  value: float  # lower bound of (error × sensitivity)² over all strategies
  gram: np.ndarray  # X, which attains the minimum for this H; shape [n, n]
  squares: np.ndarray  # squares of the column norms that X should have; shape [n]
  better: Point  # whose bound is at least as good


class Dual:
  """Lower bound as a function of H and the weights of the queries.

  Args:
    workload: A, shape [queries, num_rounds].
    equal_norms: squared norm that every column of C must have; None for free norms. With a
      value, the bound holds for such C only.
    worst_query: True if the error is the largest, not the root mean square.
  """

  def __init__(
    self,
    workload: np.ndarray,
    groups: Groups,
    *,
    equal_norms: float | None = None,
    worst_query: bool = False,
  ):
    self.groups = groups
    self.equal_norms = equal_norms
    self.worst_query = worst_query
    squares = scipy.linalg.eigvalsh(workload.T @ workload)
    if squares[0] <= _SINGULAR * squares[-1]:
      raise ValueError(
        'workload must tell all rounds apart, but some combination of rounds'
        ' is in none of its queries'
      )
    self._padded = np.zeros((len(workload), groups.rounds.size))
    self._padded[:, groups.inside.ravel()] = workload[:, groups.order]

  def start(self) -> Point:
    width, queries = self.groups.rounds.shape[1], len(self._padded)
    factor = np.eye(width) * self.groups.inside[:, :, None]
    return Point(factor, np.full(queries, 1.0 / math.sqrt(queries)))

  def __call__(self, point: Point) -> Bound:
    """Evaluates the bound; raises LinAlgError if L is singular."""
    inside = self.groups.inside
    shape, indices = inside.shape, np.flatnonzero(inside)
    factor, weights = self.normalized(point)
    product = self._product(factor) * weights[:, None]
    vectors, values = _right_singular(product[:, indices])
    padded = np.zeros((inside.size, values.size))
    padded[indices] = vectors
    blocks = padded.reshape(*shape, -1)
    root = (blocks * values) @ blocks.transpose(0, 2, 1)
    # Entries without a round must not make L singular.
    whole = factor + np.eye(shape[1]) * ~inside[:, :, None]
    inverse = np.linalg.inv(whole).transpose(0, 2, 1)
    gradient = (inverse @ root) * self.groups.support
    half = (inverse @ blocks).reshape(inside.size, -1)[indices]
    gram = np.empty((indices.size, indices.size))
    order = self.groups.order
    gram[np.ix_(order, order)] = (half * values) @ half.T
    squares = np.empty(indices.size)
    better, squares[order] = self._ascend(gradient)
    if self.worst_query:
      projected = np.square(product[:, indices] @ vectors) / values
      weights = projected.sum(axis=1) / weights
    # Rounding may not raise the bound: near zero, its root is not small.
    certain = np.square(values) - _ROUNDING * values[-1] ** 2
    value = np.sqrt(np.maximum(certain, 0.0)).sum() ** 2
    return Bound(value, gram, squares, Point(better, weights))

  def _product(self, factor: np.ndarray) -> np.ndarray:
    """Returns A L, group by group."""
    groups, width = self.groups.rounds.shape
    columns = self._padded.reshape(-1, groups, width).transpose(1, 0, 2)
    return (columns @ factor).transpose(1, 0, 2).reshape(self._padded.shape)

  def normalized(self, point: Point) -> Point:
    """Returns the point with the same bound whose denominator is 1."""
    norms = np.square(point.factor).sum(axis=2)
    equal = self.equal_norms
    total = norms.max(axis=1).sum() if equal is None else equal * norms.sum()
    least = math.sqrt(_LEAST_WEIGHT * np.mean(np.square(point.weights)))
    weights = np.maximum(point.weights, least)
    return Point(point.factor / math.sqrt(total), weights / np.linalg.norm(weights))

  def _ascend(self, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the best L for the linearised ‖A L‖, and X's diagonal."""
    inside = self.groups.inside
    if self.equal_norms is not None:
      return gradient, np.full(self.groups.num_rounds, self.equal_norms)
    norms = np.linalg.norm(gradient, axis=2)
    total = norms.sum(axis=1)
    units = gradient / np.where(inside, norms, 1.0)[:, :, None]
    return total[:, None, None] * units, (norms / total[:, None])[inside]


def _right_singular(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns right singular vectors, in columns, and singular values."""
  squares, vectors = scipy.linalg.eigh(
    matrix.T @ matrix, driver='evd', overwrite_a=True, check_finite=False
  )
  return vectors, np.sqrt(np.maximum(squares, _SINGULAR * squares[-1]))


class Solution(NamedTuple):
  """Strategy with sensitivity 1 and a lower bound on the loss of all others of its kind."""

  strategy: dense.Dense
  loss: float  # its error, root mean square or of the worst query
  bound: float

  @property
  def gap(self) -> float:
    """Upper bound on the relative excess of loss² over the optimum."""
    return (self.loss / self.bound) ** 2 - 1.0


def ascend(dual: Dual, start: Point) -> Iterator[Bound]:
  """Yields increasing bounds from a start; raises LinAlgError if L is singular there.

  Plain steps never lower the bound of the mean error. Extrapolated steps (Anderson 1965) that
  lower it are discarded.
  """

  def attempt(point: Point) -> Bound | None:
    try:
      return dual(point)
    except np.linalg.LinAlgError:
      return None

  point, bound = start, dual(start)
  accepted: list[tuple[Point, Point]] = []
  while bound is not None:
    yield bound
    best = bound.value
    accepted = [*accepted[-_MEMORY:], (point, bound.better)]
    point = _extrapolate(dual, accepted)
    bound = attempt(point)
    if bound is None or bound.value < best * (1.0 - 1e-10):
      accepted = accepted[-1:]
      point = accepted[0][1]
      bound = attempt(point)


def solve(
  workload: np.ndarray,
  dual: Dual,
  *,
  tolerance: float,
  progress: search_problem.Progress | None = None,
) -> Solution:
  """Raises the bound of the dual problem of A until a strategy comes close to it.

  It stops at a relative gap of squared losses, the tolerance. If some queries are never the
  worst, the gap for the worst query ends near 1e-4. It raises ValueError if the workload is too
  ill-conditioned for any strategy.
  """
  solution, best, gaps = None, 0.0, []
  bounds = itertools.islice(ascend(dual, dual.start()), _MOST_STEPS)
  for step, bound in enumerate(bounds, 1):
    best = max(best, math.sqrt(bound.value))
    feasible = _feasible(workload, dual, bound, best)
    if feasible is not None and (solution is None or feasible.loss < solution.loss):
      solution = feasible
    if solution is not None:
      solution = solution._replace(bound=best)
      if progress is not None:
        progress(step, solution.loss)
      gaps.append(solution.gap)
      stuck = len(gaps) > _PATIENCE and gaps[-1] > 0.5 * gaps[-1 - _PATIENCE]
      if solution.gap <= tolerance or stuck:
        break
  if solution is None:
    raise ValueError('workload is too ill-conditioned for any strategy')
  return solution


def _feasible(workload: np.ndarray, dual: Dual, bound: Bound, best: float) -> Solution | None:
  """Returns the strategy for a bound's X; None if X is not positive definite."""
  gram, groups = bound.gram, dual.groups
  for lag in range(1, min(groups.reach, groups.rounds.shape[1])):
    pairs = groups.rounds[:, lag:] < groups.num_rounds
    later = groups.rounds[:, lag:][pairs]
    earlier = groups.rounds[:, :-lag][pairs]
    gram[earlier, later] = gram[later, earlier] = 0.0
  scale = np.sqrt(bound.squares / np.diagonal(gram))
  gram *= scale
  gram *= scale[:, None]
  try:
    strategy = dense.from_gram(gram)
  except np.linalg.LinAlgError:
    return None
  decoder = scipy.linalg.solve_triangular(
    strategy.coefficients, workload.T, lower=True, trans='T', check_finite=False
  )
  squares = np.einsum('ij,ij->j', decoder, decoder)
  square = squares.max() if dual.worst_query else squares.mean()
  return Solution(strategy, math.sqrt(square), best)


def _extrapolate(dual: Dual, accepted: list[tuple[Point, Point]]) -> Point:
  """Extrapolates the next point from earlier points and their results."""
  flat = [
    [np.concatenate([x.factor.ravel(), x.weights]) for x in pair]
    for pair in (map(dual.normalized, pair) for pair in accepted)
  ]
  points = np.array([before for before, _ in flat])
  moves = np.array([after - before for before, after in flat])
  last = points[-1] + moves[-1]
  if len(flat) > 1:
    turned = np.diff(moves, axis=0)
    shares = scipy.linalg.lstsq(turned.T, moves[-1], cond=1e-8)[0]
    last = last - shares @ (np.diff(points, axis=0) + turned)
  size = accepted[-1][0].factor.size
  weights = last[size:]
  if (weights <= 0.0).any():
    return accepted[-1][1]
  return Point(last[:size].reshape(accepted[-1][0].factor.shape), weights)
