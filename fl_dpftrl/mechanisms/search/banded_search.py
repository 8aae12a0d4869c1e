"""Optimal banded strategies (BandMF), for prefix sums or momentum.

The problem is convex in X = CᵀC. Every banded X has exactly one banded C with a positive
diagonal, so the search over the entries of C has no other local minima and fewer variables.
Optimal matrices for half the rounds and bands have a similar shape up to scale. The search
therefore starts at the smallest size and refines the result.

The largest error is minimised in steps, each by a weighted power mean of the squared errors:

- After a step, the weight of each query is multiplied by its part in the gradient. The weights
  approach those of the dual problem, so a moderate power suffices (the exponential method of
  multipliers).
- The maximum hardly determines C at some rounds, and a search for only it would end wherever
  its iterations end. Each step therefore adds a multiple of the squared distance to its start
  (the proximal point method).
- The mean with the weights of a step's end has its least value there, but for the distance to the
  start. It bounds the least maximum from below, and larger sizes end at 0.035 % from that bound.

The search holds C by columns: [j, u] is C[u + j, u], and 0 beyond the matrix. Columns are rescaled
to norms that make the sensitivity √k. Any values are thus feasible, and the loss is the error.

Source: Tseng and Bertsekas 1993, for multipliers; Rockafellar 1976, for proximal points.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from fl_dpftrl.mechanisms import bands, schemas, workloads
from fl_dpftrl.mechanisms.families import banded
from fl_dpftrl.mechanisms.search import search_problem, solver

_FEWEST_ROUNDS, _FEWEST_BANDS = 128, 8  # smallest size with a refined start
_MOST_ENTRIES, _COPIES = 1 << 25, 40  # maximum band entries; arrays of that size
# Powers of the squared errors in successive steps for the maximum, and the factor of the distance
# to the step's start: from a refined start, which end at this relative gap, and from any other.
_REFINED, _GAP = ((128, 5.0),) * 4, 3.5e-4
_UNREFINED = ((4, 1.0), (16, 1.0), (64, 1.0), (256, 1.0), (256, 1.0), (256, 1.0))
# Least weight of a query, relative to the mean. Where weights are near zero, the loss hardly
# determines the strategy.
_LEAST_WEIGHT = 0.1
# Limits of a descent for the mean, and of each step for the maximum; see `solver.minimize`.
_MEAN = {'tolerance': 1e-6, 'max_iterations': 300, 'memory': 10}
_MAXIMUM = {'tolerance': 1e-12, 'max_iterations': 300, 'memory': 20}
_TO_A_GAP = _MAXIMUM | {'tolerance': 1e-9}
_STIFFEST = 30.0  # maximum stiffness relative to the mean

# (min_sep, participations): columns take turns of min_sep, and each of `participations` turns
# has its own norm; their squares sum to that. If both are 1, every column has norm 1.
Norms = tuple[int, int]

# Maps C by rows to its squared errors and a pull-back, which maps weights of these errors to
# the gradient of their weighted sum.
SquaredErrors = Callable[[np.ndarray], tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]]


def optimize(
  problem: search_problem.Problem, num_bands: int | None = None, *, equal_norms: bool | None = None
) -> banded.Banded:
  """Returns the banded strategy with the smallest loss.

  Args:
    problem: the loss to minimise. Progress tells an estimate while the size is smaller.
    num_bands: number of bands; at most min_sep if a device may participate twice, so that the
      sensitivity is exact. None for the maximum.
    equal_norms: True if all columns have norm 1. Otherwise the squared norms of any k
      successive columns that are min_sep apart sum to k. That lowers the loss under
      `FixedSeparation` and raises it under `MinSep`. None for the better choice for the schema.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, section 4.1 (the
  problem) and appendix B (without equal norms, which is dealt with there where k·b is at least n).
  """
  schema = problem.schema
  # The most bands with an exact sensitivity.
  most = schema.num_rounds
  if schema.participations > 1:
    most = min(schema.min_sep, schema.num_rounds)
  num_bands = most if num_bands is None else num_bands
  if not 1 <= num_bands <= most:
    raise ValueError(f'num_bands must be 1 to {most} for these participations, got {num_bands!r}')
  if schema.num_rounds * num_bands > _MOST_ENTRIES:
    raise ValueError(
      f'num_bands={num_bands} for num_rounds={schema.num_rounds} would take'
      f' {schema.num_rounds * num_bands * _COPIES / 2**27:.0f} GiB; at most'
      f' {_MOST_ENTRIES // schema.num_rounds} bands are supported there'
    )
  fixed = schema.separation == schemas.Fixed.separation
  equal_norms = not fixed if equal_norms is None else equal_norms
  if not equal_norms and not fixed:
    raise ValueError(f'equal_norms={equal_norms!r} needs FixedSeparation, got {schema!r}')
  norms = (1, 1) if equal_norms else (schema.min_sep, schema.participations)
  sized = _Sized(schema.num_rounds, num_bands, norms, problem.workload)
  scale = math.sqrt(schema.participations * sized.start_value)
  report = problem.counted(lambda value: scale * math.sqrt(value))
  columns, _ = _best(sized, problem.objective, report)
  coefficients = to_rows(columns)
  # The sign of a row of C affects neither X nor the norms of rows of B.
  return banded.Banded(coefficients * np.sign(coefficients[:, :1]))


def rescale(
  norms: Norms, columns: np.ndarray
) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
  """Returns C with its norms, by the mean square of each turn, and the pull-back of gradients."""
  min_sep, participations = norms
  squares = np.einsum('ju,ju->u', columns, columns)
  round_ = np.arange(squares.size)
  offset = round_ % min_sep
  turn = offset * participations + round_ // min_sep % participations
  count = np.bincount(turn)
  mean = np.bincount(turn, squares) / np.maximum(count, 1)
  total = np.bincount(np.arange(mean.size) // participations, mean)[offset]
  mean, count = mean[turn], count[turn]
  scale = np.sqrt(participations * mean / (total * squares))
  scaled = columns * scale

  def pull_back(gradient):
    pull = np.einsum('ju,ju->u', gradient, scaled)
    d_turn, d_offset = (np.bincount(group, pull)[group] for group in (turn, offset))
    d_squares = (d_turn / mean - d_offset / total) / count - pull / squares
    return gradient * scale + columns * d_squares

  return scaled, pull_back


def sgd_errors(workload: workloads.Workload, num_rounds: int) -> SquaredErrors:
  """Returns a function for the squared errors in O(n·bands²) time."""
  right = bands.inverse_bands(workload, num_rounds)

  def squared_errors(coefficients):
    product = bands.multiply(coefficients, right)
    steps = list(bands.blocks(product))

    def pull_back(weights):
      gradient = bands.gradient(steps, weights, product.shape[1])
      return bands.multiply_gradient(gradient, right)

    return np.concatenate([step.squares for step in steps]), pull_back

  return squared_errors


class Loss(NamedTuple):
  """Weighted power mean of the squared errors of C, whose columns are rescaled to norms."""

  norms: Norms
  squared_errors: SquaredErrors
  power: int  # 1 for the mean; high values approximate the maximum
  weights: np.ndarray | float = 1.0  # of the queries, or one for all; their mean is 1

  def value_and_grad(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the loss of columns of any norms, and its gradient; infinity without an inverse."""
    scaled, pull_back = rescale(self.norms, columns)
    value, gradient = self._of_scaled(scaled)
    return value, pull_back(gradient)

  def stiffness(self, columns: np.ndarray) -> np.ndarray:
    """Returns the curvature along each column, its multiplier at the optimum, over the mean."""
    scaled, _ = rescale(self.norms, columns)
    _, gradient = self._of_scaled(scaled)
    slopes = -np.einsum('ju,ju->u', gradient, scaled)
    return np.clip(slopes / slopes.mean(), 1.0 / _STIFFEST, _STIFFEST)

  def raised_weights(self, squares: np.ndarray) -> np.ndarray:
    """Returns the weights in a mean of power 1 that has the same gradient, up to scale.

    Where C, with these squared errors, minimises this loss, it minimises the mean with these
    weights, shape [queries] and of mean 1. That mean is then a lower bound of the smallest maximum.
    """
    weights = self.weights * (squares / squares.max()) ** (self.power - 1)
    return weights / weights.mean()

  def _of_scaled(self, columns):
    if not columns[0].all():
      return np.inf, columns
    with np.errstate(over='ignore', invalid='ignore'):
      squares, pull_back = self.squared_errors(to_rows(columns))
    largest = squares.max()
    if not np.isfinite(largest):
      return np.inf, columns
    shares = self.weights * (squares / largest) ** (self.power - 1)
    mean = float(np.mean(shares * squares / largest))
    value = float(largest * mean ** (1.0 / self.power))
    weights = shares * (value / (largest * mean * squares.size))
    return value, to_columns(pull_back(weights))


def to_rows(columns: np.ndarray) -> np.ndarray:
  """Converts C by columns to C by rows: [t, j] is C[t, t − j]."""
  rows = np.zeros_like(columns)
  for j, column in enumerate(columns):
    rows[j, j:] = column[: column.size - j]
  return rows.T


def to_columns(rows: np.ndarray) -> np.ndarray:
  """Converts C by rows, [t, j] is C[t, t − j], to C by columns."""
  columns = np.zeros(rows.shape[::-1])
  for j, column in enumerate(columns):
    column[: column.size - j] = rows[j:, j]
  return columns


@dataclasses.dataclass(frozen=True)
class _Sized:
  """Problem of one size."""

  num_rounds: int
  num_bands: int
  norms: Norms
  workload: workloads.Workload

  @functools.cached_property
  def start(self) -> np.ndarray:
    root = root_coefficients(self.num_rounds, self.num_bands, self.workload.momentum)
    return toeplitz(root, self.num_rounds)

  @functools.cached_property
  def start_value(self) -> float:
    """The mean of the squared errors of the start."""
    return self.loss(1).value_and_grad(self.start)[0]

  @functools.cached_property
  def _squared_errors(self) -> SquaredErrors:
    return sgd_errors(self.workload, self.num_rounds)

  def loss(self, power: int, weights: np.ndarray | float = 1.0) -> Loss:
    return Loss(self.norms, self._squared_errors, power, weights)

  def halved(self) -> '_Sized | None':
    """Returns the problem of half the size; None if this one is small enough."""
    if self.num_rounds < 2 * _FEWEST_ROUNDS or self.num_bands < 2 * _FEWEST_BANDS:
      return None
    return _Sized(
      -(-self.num_rounds // 2),
      -(-self.num_bands // 2),
      (-(-self.norms[0] // 2), self.norms[1]),
      dataclasses.replace(self.workload, momentum=self.workload.momentum**2),
    )


def _best(
  sized: _Sized, objective: str, report: search_problem.Progress
) -> tuple[np.ndarray, np.ndarray]:
  """Returns C by columns, with its norms, and the weights of the queries' errors."""
  start, weights, smaller = sized.start, np.ones(1), sized.halved()
  if smaller is not None:
    columns, smaller_weights = _best(smaller, objective, report)
    ratios = columns / smaller.start[:, :1]
    start = start * refine(ratios, sized.num_bands, sized.num_rounds)
    weights = np.repeat(smaller_weights, 2)[: sized.num_rounds]
  if objective == 'rms':
    return _descend(sized, sized.loss(1), start, report, _MEAN), weights
  start, bound, enough = rescale(sized.norms, start)[0], math.inf, 0.0
  steps, limits = (_UNREFINED, _MAXIMUM) if smaller is None else (_REFINED, _TO_A_GAP)
  for power, proximity in steps:
    weights = np.maximum(weights, _LEAST_WEIGHT)
    loss = sized.loss(power, weights / weights.mean())
    start = _descend(sized, loss, start, report, limits, proximity, enough)
    squares, _ = loss.squared_errors(to_rows(start))
    if squares.max() <= enough:
      break
    weights = loss.raised_weights(squares)
    previous, bound = bound, float(np.mean(weights * squares))
    if smaller is not None and previous < math.inf:  # How far it moved is how good a bound it is.
      enough = (1.0 + _GAP) ** 2 * (bound - abs(previous - bound))
  return start, weights


def _descend(
  sized: _Sized,
  loss: Loss,
  start: np.ndarray,
  report: search_problem.Progress,
  limits: dict[str, Any],
  proximity: float = 0.0,
  enough: float = 0.0,
) -> np.ndarray:
  """Minimises loss + proximity · ‖x − start‖², until every squared error is at most `enough`."""
  # Larger steps suit columns that few queries depend on.
  scale = loss.stiffness(start) ** 0.25
  centre = (start * scale).reshape(-1)
  factor, largest = proximity / sized.num_rounds, [math.inf]

  def squared_errors(coefficients):
    squares, pull_back = loss.squared_errors(coefficients)
    largest[0] = squares.max()
    return squares, pull_back

  watched = loss._replace(squared_errors=squared_errors)

  def value_and_grad(free):
    value, gradient = watched.value_and_grad(free.reshape(start.shape) / scale)
    value, gradient = (x / sized.start_value for x in (value, gradient))
    gradient = (gradient / scale).reshape(-1)
    if proximity:
      way = free - centre
      value += 0.5 * factor * float(way @ way)
      gradient += factor * way
    return value, gradient

  def is_enough(step, value):
    has_stalled = report(step, value) and not proximity  # A maximum ends at a proven gap.
    return bool(largest[0] <= enough or has_stalled)

  point, _ = solver.minimize(value_and_grad, centre, progress=is_enough, **limits)
  return rescale(sized.norms, point.reshape(start.shape) / scale)[0]


def root_coefficients(num_rounds: int, num_bands: int, momentum: float = 0.0) -> np.ndarray:
  """Returns coefficients, shape [num_bands], of a near-optimal Toeplitz C.

  The coefficients are those of the square root of the workload, truncated to the bands. A
  constant is added to make up for the truncation.

  Source: Fichtenberger, Henzinger, Upadhyay 2023, for the square root of prefix sums; with
  momentum it is the product of the roots of two geometric series.
  """
  root = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1.0, num_bands)))
  counts, column = np.arange(num_rounds, 0.0, -1.0), np.ones(num_rounds)
  if momentum:
    decaying = root * momentum ** np.arange(num_bands)
    root = np.convolve(root, decaying)[:num_bands]
    column = scipy.signal.lfilter([1.0], [1.0, -momentum], column)

  def log_loss(log_shift):
    raised = root + math.exp(log_shift)
    with np.errstate(over='ignore', invalid='ignore'):
      response = scipy.signal.lfilter([1.0], raised, column)
      loss = np.sum(counts * response**2) * np.sum(raised**2)
    return math.log(loss) if np.isfinite(loss) else math.inf

  minimum = scipy.optimize.minimize_scalar(
    log_loss, bounds=(-12.0, 1.0), method='bounded', options={'xatol': 1e-2}
  )
  return root + math.exp(minimum.x)


def toeplitz(coefficients: np.ndarray, num_rounds: int) -> np.ndarray:
  """Returns a Toeplitz matrix by columns, shape [num_bands, num_rounds]."""
  lags, columns = np.arange(coefficients.size)[:, None], np.arange(num_rounds)
  return np.where(lags + columns < num_rounds, coefficients[:, None], 0.0)


def refine(ratios: np.ndarray, num_bands: int, num_rounds: int) -> np.ndarray:
  """Interpolates factors of a larger matrix's entries from a smaller matrix.

  Args:
    ratios: factors of the smaller matrix by columns, [j, u], positive within it.
    num_bands, num_rounds: shape of the result, with factors beyond the matrix too.
  """
  bands, rounds = ratios.shape
  within = np.minimum(np.arange(rounds), rounds - 1 - np.arange(bands)[:, None])
  ratios = np.take_along_axis(ratios, within, axis=1)
  centres = (np.arange(num_rounds) + 0.5) * (rounds / num_rounds) - 0.5
  lags = np.arange(num_bands) * ((bands - 1) / max(num_bands - 1, 1))
  return _interpolate(_interpolate(ratios.T, centres).T, lags)


def _interpolate(values: np.ndarray, positions: np.ndarray) -> np.ndarray:
  """Interpolates between rows; beyond them the first or last row applies."""
  positions = np.clip(positions, 0.0, len(values) - 1.0)
  lower = np.minimum(positions.astype(int), max(len(values) - 2, 0))
  upper = np.minimum(lower + 1, len(values) - 1)
  part = (positions - lower)[:, None]
  return (1.0 - part) * values[lower] + part * values[upper]
