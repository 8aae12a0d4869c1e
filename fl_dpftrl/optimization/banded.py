"""Optimal banded strategies (BandMF), for prefix sums or momentum.

The problem is convex in X = CᵀC. Every banded X has exactly one banded C with a positive
diagonal, so the search over the entries of C has no other local minima and fewer variables.
Optimal matrices for half the rounds and bands have a similar shape up to scale. The search
therefore starts at the smallest size and refines the result.

The largest error is minimised in steps, each by a weighted power mean of the squared errors:

- After a step, the weight of each query is multiplied by its part in the gradient. The weights
  approach those of the dual problem, so a moderate power suffices (the exponential method of
  multipliers).
- The maximum hardly determines C at some rounds, and a search for it alone would end wherever
  its iterations end. Each step therefore adds a multiple of the squared distance to its start
  (the proximal point method). Its minimum is found to many digits on every machine.

Source: Tseng and Bertsekas 1993, for multipliers; Rockafellar 1976, for proximal points.
"""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
from scipy import optimize as optimize_lib
from scipy import signal

from fl_dpftrl import workloads
from fl_dpftrl.families import banded
from fl_dpftrl.optimization import banded_loss, solver
from fl_dpftrl.optimization import problem as problem_lib
from fl_dpftrl.participation import schemas

_FEWEST_ROUNDS, _FEWEST_BANDS = 128, 8  # smallest size with a refined start
_MOST_ENTRIES, _COPIES = 1 << 25, 40  # maximum band entries; arrays of that size
# Powers of the squared errors in successive steps for the maximum, and the factor of the distance
# to the step's start: from a refined start, and from any other.
_REFINED = ((64, 8.0), (64, 8.0), (64, 8.0), (128, 5.0))
_UNREFINED = ((4, 1.0), (16, 1.0), (64, 1.0), (256, 1.0), (256, 1.0), (256, 1.0))
# Least weight of a query, relative to the mean. Where weights are near zero, the loss hardly
# determines the strategy.
_LEAST_WEIGHT = 0.1
# Limits of a descent for the mean, and of each step for the maximum; see `solver.minimize`.
_MEAN = {'tolerance': 1e-6, 'max_iterations': 300, 'memory': 10}
_MAXIMUM = {'tolerance': 1e-12, 'max_iterations': 300, 'memory': 20}


def optimize(
  problem: problem_lib.Problem, num_bands: int | None = None, *, equal_norms: bool | None = None
) -> banded.Banded:
  """Returns the banded strategy with the smallest loss.

  Args:
    problem: the loss to minimise. Progress tells an estimate while the size is smaller.
    num_bands: number of bands; at most min_sep if a device may participate twice, so that the
      sensitivity is exact. None for the maximum.
    equal_norms: True if all columns have norm 1. Otherwise the squared norms of any k
      successive columns that are min_sep apart sum to k. That lowers the loss under
      `FixedSeparation` and raises it under `MinSep`. None for the better choice for the schema.

  Raises:
    ValueError: if num_bands is out of range, or equal_norms is False for a `MinSep`.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, section 4.1 (the
  problem) and appendix B (without equal norms, which is dealt with there where k·b is at least
  n).
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
  fixed = isinstance(schema, schemas.FixedSeparation)
  equal_norms = not fixed if equal_norms is None else equal_norms
  if not equal_norms and not fixed:
    raise ValueError(f'equal_norms={equal_norms!r} needs FixedSeparation, got {schema!r}')
  norms = banded_loss.Norms()
  if not equal_norms:
    norms = banded_loss.Norms(schema.min_sep, schema.participations)
  sized = _Sized(schema.num_rounds, num_bands, norms, problem.workload)
  scale = math.sqrt(schema.participations * sized.start_value)
  report = problem.counted(lambda value: scale * math.sqrt(value))
  columns, _ = _best(sized, problem.objective, report)
  coefficients = banded_loss.to_rows(columns)
  # The sign of a row of C affects neither X nor the norms of rows of B.
  return banded.Banded(coefficients * np.sign(coefficients[:, :1]))


@dataclasses.dataclass(frozen=True)
class _Sized:
  """Problem of one size; matrices are held by columns, as in `banded_loss`."""

  num_rounds: int
  num_bands: int
  norms: banded_loss.Norms
  workload: workloads.Queries

  @functools.cached_property
  def start(self) -> np.ndarray:
    momentum = self.workload.momentum if isinstance(self.workload, workloads.Workload) else 0.0
    return toeplitz(root_coefficients(self.num_rounds, self.num_bands, momentum), self.num_rounds)

  @functools.cached_property
  def start_value(self) -> float:
    """The mean of the squared errors of the start."""
    return self.loss(1).value_and_grad(self.start)[0]

  @functools.cached_property
  def _squared_errors(self) -> banded_loss.SquaredErrors:
    if isinstance(self.workload, workloads.Workload):
      return banded_loss.sgd_errors(self.workload, self.num_rounds)
    return banded_loss.dense_errors(self.workload.matrix(self.num_rounds))

  def loss(self, power: int, weights: np.ndarray | float = 1.0) -> banded_loss.Loss:
    return banded_loss.Loss(self.norms, self._squared_errors, power, weights)

  def halved(self) -> '_Sized | None':
    """Returns the problem of half the size; None if this one is small enough."""
    if (
      self.num_rounds < 2 * _FEWEST_ROUNDS
      or self.num_bands < 2 * _FEWEST_BANDS
      or not isinstance(self.workload, workloads.Workload)
    ):
      return None
    return _Sized(
      -(-self.num_rounds // 2),
      -(-self.num_bands // 2),
      self.norms._replace(min_sep=-(-self.norms.min_sep // 2)),
      dataclasses.replace(self.workload, momentum=self.workload.momentum**2),
    )


def _best(
  sized: _Sized, objective: str, report: problem_lib.Progress
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
  start = sized.norms.rescale(start)[0]
  for power, proximity in _UNREFINED if smaller is None else _REFINED:
    weights = np.maximum(weights, _LEAST_WEIGHT)
    loss = sized.loss(power, weights / weights.mean())
    start = _descend(sized, loss, start, report, _MAXIMUM, proximity)
    weights = loss.raised_weights(start)
  return start, weights


def _descend(
  sized: _Sized,
  loss: banded_loss.Loss,
  start: np.ndarray,
  report: problem_lib.Progress,
  limits: dict[str, Any],
  proximity: float = 0.0,
) -> np.ndarray:
  """Returns the C by columns, with its norms, that minimises the loss and the distance to start.

  Proximity is the factor of the squared distance, relative to the loss per column.
  """
  # Larger steps suit columns that few queries depend on.
  scale = loss.stiffness(start) ** 0.25
  centre = (start * scale).reshape(-1)
  factor = proximity / sized.num_rounds

  def value_and_grad(free):
    value, gradient = loss.value_and_grad(free.reshape(start.shape) / scale)
    value, gradient = (x / sized.start_value for x in (value, gradient))
    gradient = (gradient / scale).reshape(-1)
    if proximity:
      way = free - centre
      value += 0.5 * factor * float(way @ way)
      gradient += factor * way
    return value, gradient

  minimum = solver.minimize(value_and_grad, centre, progress=report, **limits)
  return sized.norms.rescale(minimum.point.reshape(start.shape) / scale)[0]


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
    column = signal.lfilter([1.0], [1.0, -momentum], column)

  def log_loss(log_shift):
    raised = root + math.exp(log_shift)
    with np.errstate(over='ignore', invalid='ignore'):
      response = signal.lfilter([1.0], raised, column)
      loss = np.sum(counts * response**2) * np.sum(raised**2)
    return math.log(loss) if np.isfinite(loss) else math.inf

  minimum = optimize_lib.minimize_scalar(
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
  before = np.minimum(positions.astype(int), max(len(values) - 2, 0))
  after = np.minimum(before + 1, len(values) - 1)
  part = (positions - before)[:, None]
  return (1.0 - part) * values[before] + part * values[after]
