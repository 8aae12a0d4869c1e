"""The best dense factorisation A = B C, and a proof of how good it is.

The rounds fall into groups that one device may take part in together. Where
CᵀC = X has only zeros between two rounds of a group, sens² is the largest sum
of X's diagonal over a group, for any updates, and error² is tr(AᵀA X⁻¹).

Any H that is block diagonal over the groups and positive semidefinite proves a
lower bound. Let H = L Lᵀ. For one X, tr(AᵀA X⁻¹) + ⟨H, X⟩ ≥ 2 ‖A L‖, the sum
of singular values; and ⟨H, X⟩ is at most sens² times the sum over groups of the
largest Hᵢᵢ, since raising a group's diagonal of H to one value v makes it v
times a matrix of inner products of unit vectors, which are updates that a
device may have. So, for every C whatever, also with negative entries in X,

    error² sens² ≥ ‖A L‖² / Σ over groups of max Hᵢᵢ.

At the best L the X that attains the minimum has zeros within groups, and the
two sides are equal. The error of the worst query is the largest error of weighted
queries, over weights that sum to 1, so weights join L on the left side.

Source: Denisov et al. 2022, theorem 3.2 and the fixed point, for groups of one
round and the mean error, of which this is the extension.
"""

from collections.abc import Iterator
import dataclasses
import itertools
import math
from typing import Callable, NamedTuple

import numpy as np
import scipy.linalg

from fl_dpftrl import participation
from fl_dpftrl.families import dense

Progress = Callable[[int, float], None]

_MEMORY = 8  # earlier steps that the next one is extrapolated from
_MOST_STEPS = 200
_PATIENCE = 40  # steps in which the gap must have halved
_SINGULAR = 1e-15  # relative size of an eigenvalue that is as good as none
_ROUNDING = 16.0 * np.finfo(np.float64).eps  # of eigenvalues, to the largest
# Queries whose errors are not the largest get no weight in the end, and X comes
# out singular. A share of the mean weight keeps their errors down, at the cost
# of less than that share of the bound.
_LEAST_WEIGHT = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
  """Rounds of one device, and between which of them X is to be zero.

  Attributes:
    rounds: shape [groups, width]; num_rounds and more stand for no round.
    num_rounds: n; each round is in one group.
    reach: rounds of a group less than so many places apart are orthogonal.
  """

  rounds: np.ndarray
  num_rounds: int
  reach: int

  @property
  def inside(self) -> np.ndarray:
    return self.rounds < self.num_rounds

  @property
  def order(self) -> np.ndarray:
    """The rounds, group by group: shape [num_rounds]."""
    return self.rounds[self.inside]

  @property
  def support(self) -> np.ndarray:
    """Which entries of a group's block of L may differ from zero."""
    width = self.rounds.shape[1]
    lag = np.arange(width)[:, None] - np.arange(width)
    return (lag >= 0) & (lag < self.reach) | (self.reach >= width)


def chains(schema: participation.MinSep) -> Groups:
  """Rounds min_sep apart, in which any k in a row are a pattern."""
  step = schema.num_rounds if schema.participations == 1 else schema.min_sep
  step = min(step, schema.num_rounds)
  length = -(-schema.num_rounds // step)
  rounds = np.arange(step)[:, None] + step * np.arange(length)
  return Groups(rounds, schema.num_rounds, schema.participations)


def tiles(schema: participation.MinSep) -> Groups:
  """The chains, cut into patterns that share no round."""
  whole, width = chains(schema), schema.participations
  groups, length = whole.rounds.shape
  padded = np.full((groups, -(-length // width) * width), schema.num_rounds)
  padded[:, :length] = whole.rounds
  rounds = padded.reshape(-1, width)
  return Groups(
      rounds[(rounds < schema.num_rounds).any(axis=1)], schema.num_rounds, width
  )


class Point(NamedTuple):
  """Where a bound is taken.

  Attributes:
    factor: L, shape [groups, width, width].
    weights: roots of the queries' weights, squares summing to 1: [queries].
  """

  factor: np.ndarray
  weights: np.ndarray


class Bound(NamedTuple):
  """What a point proves, and where to look next.

  Attributes:
    value: at most (error × sensitivity)² of any strategy.
    gram: X, which attains the minimum for this H; shape [n, n].
    squares: of the column norms that X should have; shape [n].
    better: a point whose bound is as good or better.
  """

  value: float
  gram: np.ndarray
  squares: np.ndarray
  better: Point


class Dual:
  """The bound as a function of H and the weights of the queries.

  Attributes:
    groups: see `Groups`.
    equal_norms: the squared norm that every column of C must have; None to
      leave the norms free. The bound is then one for such C alone.
    worst_query: whether the error is the largest, rather than the mean square.

  Raises:
    ValueError: where the workload has less than full column rank.
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
          'workload must tell all rounds apart, and some combination of rounds'
          ' is in none of its queries'
      )
    self._padded = np.zeros((len(workload), groups.rounds.size))
    self._padded[:, groups.inside.ravel()] = workload[:, groups.order]

  def start(self) -> Point:
    width, queries = self.groups.rounds.shape[1], len(self._padded)
    factor = np.eye(width) * self.groups.inside[:, :, None]
    return Point(factor, np.full(queries, 1.0 / math.sqrt(queries)))

  def __call__(self, point: Point) -> Bound:
    """Evaluates the bound.

    Raises:
      LinAlgError: where L is singular.
    """
    inside = self.groups.inside
    shape, kept = inside.shape, np.flatnonzero(inside)
    factor, weights = self.normalized(point)
    product = self._product(factor) * weights[:, None]
    vectors, values = _right_singular(product[:, kept])
    padded = np.zeros((inside.size, values.size))
    padded[kept] = vectors
    blocks = padded.reshape(*shape, -1)
    root = (blocks * values) @ blocks.transpose(0, 2, 1)
    # Where there is no round, L must not stand in the way of its inverse.
    whole = factor + np.eye(shape[1]) * ~inside[:, :, None]
    inverse = np.linalg.inv(whole).transpose(0, 2, 1)
    gradient = (inverse @ root) * self.groups.support
    half = (inverse @ blocks).reshape(inside.size, -1)[kept]
    gram = np.empty((kept.size, kept.size))
    order = self.groups.order
    gram[np.ix_(order, order)] = (half * values) @ half.T
    squares = np.empty(kept.size)
    better, squares[order] = self._ascend(gradient)
    if self.worst_query:
      projected = np.square(product[:, kept] @ vectors) / values
      weights = projected.sum(axis=1) / weights
    # Rounding may not raise the bound: near zero, its root is not small.
    certain = np.square(values) - _ROUNDING * values[-1] ** 2
    value = np.sqrt(np.maximum(certain, 0.0)).sum() ** 2
    return Bound(value, gram, squares, Point(better, weights))

  def _product(self, factor: np.ndarray) -> np.ndarray:
    """A L, group by group."""
    groups, width = self.groups.rounds.shape
    columns = self._padded.reshape(-1, groups, width).transpose(1, 0, 2)
    return (columns @ factor).transpose(1, 0, 2).reshape(self._padded.shape)

  def normalized(self, point: Point) -> Point:
    """The point of the same bound whose denominator is 1."""
    norms = np.square(point.factor).sum(axis=2)
    if self.equal_norms is None:
      total = norms.max(axis=1).sum()
    else:
      total = self.equal_norms * norms.sum()
    weights = np.maximum(
        point.weights,
        math.sqrt(_LEAST_WEIGHT * np.mean(np.square(point.weights))),
    )
    return Point(
        point.factor / math.sqrt(total), weights / np.linalg.norm(weights)
    )

  def _ascend(self, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best L for ‖A L‖ made linear, which is convex, and X's diagonal."""
    inside = self.groups.inside
    if self.equal_norms is not None:
      return gradient, np.full(self.groups.num_rounds, self.equal_norms)
    norms = np.linalg.norm(gradient, axis=2)
    total = norms.sum(axis=1)
    units = gradient / np.where(inside, norms, 1.0)[:, :, None]
    return total[:, None, None] * units, (norms / total[:, None])[inside]


def _right_singular(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Right singular vectors, in columns, and singular values."""
  squares, vectors = scipy.linalg.eigh(
      matrix.T @ matrix, driver='evd', overwrite_a=True, check_finite=False
  )
  return vectors, np.sqrt(np.maximum(squares, _SINGULAR * squares[-1]))


class Solution(NamedTuple):
  """A strategy with sensitivity 1, and what is proven of all others.

  Attributes:
    strategy: C.
    loss: its error, of the mean square or of the worst query.
    bound: no strategy of the same kind has a smaller loss.
  """

  strategy: dense.Dense
  loss: float
  bound: float

  @property
  def gap(self) -> float:
    """How far loss² may be above the smallest possible, relative to it."""
    return (self.loss / self.bound) ** 2 - 1.0


def ascend(dual: Dual, start: Point) -> Iterator[Bound]:
  """Ever better bounds, from a start on, for as long as they are asked for.

  Plain steps never lower the bound of the mean error; extrapolated ones
  (Anderson 1965) that do are taken back and not shown.

  Raises:
    LinAlgError: where L is singular at the start.
  """
  point, bound = start, dual(start)
  accepted: list[tuple[Point, Point]] = []
  while True:
    yield bound
    best = bound.value
    accepted = [*accepted[-_MEMORY:], (point, bound.better)]
    point = _extrapolate(dual, accepted)
    found = _try(dual, point)
    if found is None or found.value < best * (1.0 - 1e-10):
      accepted = accepted[-1:]
      point = accepted[0][1]
      found = _try(dual, point)
      if found is None:
        return
    bound = found


def _try(dual: Dual, point: Point) -> Bound | None:
  try:
    return dual(point)
  except np.linalg.LinAlgError:
    return None


def solve(
    workload: np.ndarray,
    dual: Dual,
    *,
    tolerance: float,
    progress: Progress | None = None,
) -> Solution:
  """Raises the bound until a strategy comes close to it.

  Args:
    workload: A, shape [queries, num_rounds].
    dual: of this workload.
    tolerance: the relative gap of squared losses to stop at. Where some queries
      are never the worst, that of the worst query ends near 1e-4.
    progress: called with the number of steps and the loss.

  Raises:
    ValueError: where the workload is too ill-conditioned for any strategy.
  """
  solution, best, gaps = None, 0.0, []
  bounds = itertools.islice(ascend(dual, dual.start()), _MOST_STEPS)
  for step, bound in enumerate(bounds, 1):
    best = max(best, math.sqrt(bound.value))
    found = _feasible(workload, dual, bound, best)
    if found is not None and (solution is None or found.loss < solution.loss):
      solution = found
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


def _feasible(
    workload: np.ndarray, dual: Dual, bound: Bound, best: float
) -> Solution | None:
  """The strategy next to the X of a bound, if that is positive definite."""
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
      strategy.coefficients, workload.T, lower=True, trans='T',
      check_finite=False,
  )
  squares = np.einsum('ij,ij->j', decoder, decoder)
  square = squares.max() if dual.worst_query else squares.mean()
  return Solution(strategy, math.sqrt(square), best)


def _extrapolate(dual: Dual, accepted: list[tuple[Point, Point]]) -> Point:
  """The next point, from those so far and the better ones they led to."""
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
