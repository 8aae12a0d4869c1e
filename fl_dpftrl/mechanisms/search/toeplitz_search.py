"""Optimal banded Toeplitz strategies, and families of them with few parameters.

If the columns of a pattern do not overlap, coefficients are unconstrained, and L-BFGS finds
them. If columns overlap, coefficients are kept non-negative and non-increasing, which gives the
sensitivity an exact closed form. Rounds after the errors have settled add no cost.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_dpftrl.mechanisms import schemas, workloads
from fl_dpftrl.mechanisms.families import banded_toeplitz
from fl_dpftrl.mechanisms.search import search_problem, solver, toeplitz_loss

MOST_DEFAULT_BANDS = 1024  # default limit if columns of a pattern do not overlap
MOST_MEETING_BANDS = 4096  # default limit if they do

# Relative gains in loss that justify columns normalised for one n, or a search with more rows
# of noise.
_WORTHWHILE, _PROMISING = 1e-3, 7e-4
_MOST_LATE_ENTRIES = 1 << 24  # maximum entries of B changed by normalisation
_POWERS = {'rms': (1,), 'max': (64, 2048)}  # stages towards the largest error
_MOST_ROOT_BANDS = 1 << 16
_FIRST_TERMS, _FIRST_PERIODS = 1 << 14, 16

# A minimiser of ln loss² from given coefficients.
Search = Callable[[np.ndarray, toeplitz_loss.LogSquare], np.ndarray]


def default_bands(schema: schemas.Schema) -> tuple[int, ...]:
  """Returns the values of num_bands to try by default, ascending.

  The first is min_sep, at most 1024, or n if k is 1. If participations leave rounds of the run
  free, n, at most 4096, is tried too, because more non-increasing coefficients are never worse.
  """
  if schema.participations == 1:
    return (min(schema.num_rounds, MOST_DEFAULT_BANDS),)
  fewest = min(schema.min_sep, schema.num_rounds, MOST_DEFAULT_BANDS)
  if schema.min_sep * schema.participations >= schema.num_rounds:
    return (fewest,)
  return fewest, min(schema.num_rounds, MOST_MEETING_BANDS)


def optimize(
  problem: search_problem.Problem, num_bands: int | None = None
) -> banded_toeplitz.BandedToeplitz:
  """Returns the best banded Toeplitz strategy found.

  With at most min_sep bands, or if k is 1, its columns are normalised for n rounds if that
  lowers the loss by more than 0.1 %. The strategy then supports at most n rounds. With more
  bands its coefficients are non-negative and non-increasing.

  Args:
    problem: the loss to minimise.
    num_bands: number of bands, at most n. None means the smaller of `default_bands`, or the
      larger if it lowers the loss by over 0.1 %.

  Source: Choquette-Choo et al. 2024 (scaling up banded matrix factorisation), section 3.2,
  appendices D, I and K.
  """
  check(problem, num_bands)
  report = problem.counted(root)
  sizes = default_bands(problem.schema) if num_bands is None else (num_bands,)
  best, *others = (_optimize(problem, size, report) for size in sizes)
  for other in others:
    if problem.loss(other) < (1.0 - _WORTHWHILE) * problem.loss(best):
      best = without_zeros(other)
  return best


def without_zeros(strategy: banded_toeplitz.BandedToeplitz) -> banded_toeplitz.BandedToeplitz:
  """Returns the same C without trailing zero coefficients, which saves memory."""
  return dataclasses.replace(strategy, coefficients=np.trim_zeros(strategy.coefficients, 'b'))


def _optimize(
  problem: search_problem.Problem, num_bands: int, report: search_problem.Progress
) -> banded_toeplitz.BandedToeplitz:
  start, schema = shifted_harmonic(problem, num_bands), problem.schema
  if num_bands > schema.min_sep and schema.participations > 1:
    search = lambda start, log_square: solver.minimize_monotone(log_square, start, report)[0]
    return _search(problem, start, False, search)
  search = lambda start, log_square: _free_search(start, log_square, report)
  return _normalized(problem, _search(problem, start, False, search), search)


def check(problem: search_problem.Problem, num_bands: int | None) -> None:
  """Raises ValueError if num_bands is out of range, or a matrix of the workload too large."""
  num_rounds = problem.schema.num_rounds
  if not problem.workload.is_toeplitz:
    workloads.check_dense(num_rounds)
  if num_bands is not None and not 1 <= num_bands <= num_rounds:
    raise ValueError(f'num_bands must be 1 to {num_rounds}, got {num_bands!r}')


def root(log_square: float) -> float:
  """Returns a loss, given ln of its square."""
  return math.exp(0.5 * log_square)


def _free_search(
  start: np.ndarray, log_square: toeplitz_loss.LogSquare, report: search_problem.Progress
) -> np.ndarray:
  """Searches over all coefficients after the first, which is fixed to 1."""
  if start.size == 1:
    return start

  def value_and_grad(rest):
    value, grad = log_square(np.append(1.0, rest))
    return value, grad[1:]

  rest, _ = solver.minimize(
    value_and_grad, start[1:] / start[0], tolerance=1e-11, patience=10, progress=report
  )
  return np.append(1.0, rest)


def _search(
  problem: search_problem.Problem, start: np.ndarray, normalized: bool, search: Search
) -> banded_toeplitz.BandedToeplitz:
  """Runs a search per stage of the objective, over as many terms as needed."""
  schema, workload = problem.schema, problem.workload
  sensitivity_square = toeplitz_loss.sensitivity(schema)

  def log_square(error):
    def both(coefficients):
      value, grad = error(coefficients)
      if not math.isfinite(value):
        return value, grad
      if normalized:
        return value + math.log(schema.participations), grad
      sensitivity, sensitivity_grad = sensitivity_square(coefficients)
      return value + sensitivity, grad + sensitivity_grad

    return both

  def settled(point, num_terms):
    terms = schema.num_rounds, problem.objective, workload, num_terms
    return search(point, log_square(toeplitz_loss.response_error(*terms)))

  if normalized or not workload.is_toeplitz:
    for power in _POWERS[problem.objective]:
      error = toeplitz_loss.rows_error(schema.num_rounds, power, workload, normalized=normalized)
      start = search(start, log_square(error))
  else:
    start = settle(start, schema.num_rounds, workload, settled)
  return banded_toeplitz.BandedToeplitz(start / start[0], schema.num_rounds if normalized else None)


def settle(
  start: np.ndarray,
  num_rounds: int,
  workload: workloads.Workload,
  search: Callable[[np.ndarray, int], np.ndarray],
) -> np.ndarray:
  """Repeats a search (start, number of terms) → coefficients until its terms are enough."""

  def terms(coefficients):
    return banded_toeplitz.decoder_column(coefficients, num_rounds, workload)[0].size

  num_terms = min(terms(start), max(_FIRST_TERMS, _FIRST_PERIODS * start.size))
  while True:
    start = search(start, num_terms)
    needed = terms(start)
    if needed <= num_terms:
      return start
    num_terms = needed


def _normalized(
  problem: search_problem.Problem, strategy: banded_toeplitz.BandedToeplitz, search: Search
) -> banded_toeplitz.BandedToeplitz:
  """Returns the best with columns normalised for n, if the gain justifies it."""
  num_rounds, loss = problem.schema.num_rounds, problem.loss(strategy)
  other = banded_toeplitz.BandedToeplitz(strategy.coefficients, num_rounds)
  if problem.loss(other) > (1.0 - _PROMISING) * loss:
    return strategy
  late = strategy.num_bands if problem.workload.is_toeplitz else num_rounds
  if late * num_rounds <= _MOST_LATE_ENTRIES:
    searched = _search(problem, other.coefficients, True, search)
    other = min(other, searched, key=problem.loss)
  return other if problem.loss(other) < (1.0 - _WORTHWHILE) * loss else strategy


def shifted_harmonic(problem: search_problem.Problem, num_bands: int) -> np.ndarray:
  """Returns coefficients 1 / (t + 1) + c, c above −1 / num_bands, which decrease, for a Toeplitz A.

  Source: Choquette-Choo et al. 2024 (scaling up banded matrix factorisation), appendix J.
  """
  schema = problem.schema
  workload = workloads.Workload(problem.workload.momentum)
  harmonic = 1.0 / np.arange(1.0, num_bands + 1.0)
  log_sensitivity = toeplitz_loss.sensitivity(schema)

  def coefficients(logarithm):
    return harmonic + math.exp(logarithm) - harmonic[-1]

  def search(_, num_terms):
    terms = schema.num_rounds, problem.objective, workload, num_terms
    log_error = toeplitz_loss.response_error(*terms)

    def log_square(logarithm):
      shifted = coefficients(logarithm)
      return log_error(shifted)[0] + log_sensitivity(shifted)[0]

    within = {'bounds': (math.log(1e-6 / num_bands), math.log(10.0)), 'options': {'xatol': 1e-4}}
    return coefficients(scipy.optimize.minimize_scalar(log_square, method='bounded', **within).x)

  return settle(harmonic, schema.num_rounds, workload, search)


def square_root(
  problem: search_problem.Problem, num_bands: int | None = None
) -> banded_toeplitz.BandedToeplitz:
  """Returns coefficients of (1 − z)^(−½), for n of the problem; num_bands None for n.

  Source: Fichtenberger, Henzinger, Upadhyay 2023; Kalinin and Lampert 2024 for prefixes.
  """
  num_rounds = problem.schema.num_rounds
  if num_bands is None and num_rounds > _MOST_ROOT_BANDS:
    raise ValueError(
      f'num_rounds={num_rounds} is too many for as many bands: choose'
      f' num_bands, at most {_MOST_ROOT_BANDS} or so'
    )
  check(problem, num_bands)
  num_bands = num_rounds if num_bands is None else num_bands
  return banded_toeplitz.BandedToeplitz(
    np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1.0, num_bands)))
  )
