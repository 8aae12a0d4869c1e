"""Optimal strategies with a banded Toeplitz inverse: of any bands, of two, of the square root."""

import math

import numpy as np

from fl_dpftrl.mechanisms import toeplitz as toeplitz_family
from fl_dpftrl.mechanisms import workloads
from fl_dpftrl.mechanisms.families import banded_inverse, lambda_cgd
from fl_dpftrl.mechanisms.search import search_problem, solver, toeplitz_search
from fl_dpftrl.mechanisms.sensitivities import toeplitz_columns as sensitivities

DEFAULT_BANDS = 8  # draws a round
_LARGEST = 1e6  # largest entry of C in a search


def square_root(
  problem: search_problem.Problem, num_bands: int | None = None
) -> banded_inverse.BandedInverse:
  """Returns the first coefficients of (1 − z)^½, the inverse of the square root.

  Only n of the problem and num_bands, as in `optimize`, matter.

  Source: Kalinin, McKenna, Upadhyay, Lampert 2025 (Back to Square Roots), BISR.
  """
  toeplitz_search.check(problem, num_bands)
  num_bands = min(problem.schema.num_rounds, DEFAULT_BANDS) if num_bands is None else num_bands
  return banded_inverse.BandedInverse(
    np.cumprod(np.append(1.0, 1.0 - 1.5 / np.arange(1.0, num_bands)))
  )


def optimize(
  problem: search_problem.Problem, num_bands: int | None = None
) -> banded_inverse.BandedInverse:
  """Returns the best strategy with a banded inverse that was found.

  C stays non-negative. The squared error is a quadratic form in the coefficients of N. A
  workload that is not Toeplitz is replaced by the Toeplitz one with its momentum.

  Source: Kalinin, McKenna, Upadhyay, Lampert 2025 (Back to Square Roots), BandInvMF.
  """
  start = square_root(problem, num_bands)
  report = problem.counted(toeplitz_search.root)
  point, size = np.empty(0), 1
  while size < start.coefficients.size:
    size = min(2 * size, start.coefficients.size)
    log_square = _log_square(problem, size)
    # The loss has many kinks: the result for half as many bands is a start too.
    starts = (np.pad(point, (0, size - 1 - point.size)), start.coefficients[1:size])
    solutions = (
      solver.minimize(
        log_square, begin, max_iterations=1000, tolerance=1e-9, patience=20, progress=report
      )
      for begin in starts
    )
    point, _ = min(solutions, key=lambda solution: solution[1])
  return banded_inverse.BandedInverse(np.append(1.0, point))


def decayed(problem: search_problem.Problem) -> lambda_cgd.LambdaCGD:
  """Returns DP-λCGD with the best λ that was found: the banded inverse of two bands."""
  two = optimize(problem, min(2, problem.schema.num_rounds))
  # λ is at most 1 in this family; the banded inverse itself may do without that.
  return lambda_cgd.LambdaCGD(min(1.0, -float(two.coefficients[1:].sum())))


def _log_square(problem: search_problem.Problem, num_bands: int) -> solver.ValueAndGrad:
  """Returns ln loss² and its gradient in the coefficients after the first, 1.

  It takes the sensitivity of the least non-increasing columns that are nowhere below those of
  C. That is the sensitivity of C, or a bound on it.
  """
  num_rounds = problem.schema.num_rounds
  weights = np.ones(num_rounds)
  if problem.objective == 'rms':
    weights = np.arange(num_rounds, 0, -1.0) / num_rounds
  responses = workloads.Workload(problem.workload.momentum).apply(np.eye(num_rounds, num_bands))
  form = (responses.T * weights) @ responses

  def value_and_grad(rest):
    noising = np.append(1.0, rest)
    with np.errstate(over='ignore', invalid='ignore'):  # checked below
      column = toeplitz_family.reciprocal(noising, num_rounds)
    if not (column >= 0.0).all() or column.max() > _LARGEST:
      return math.inf, rest
    above = banded_inverse.majorant(column)
    square, grad = sensitivities.earliest_square(above, problem.schema)
    # Each entry of the majorant is the next entry of the column that reaches it.
    reaches = np.where(column == above, np.arange(num_rounds), num_rounds - 1)
    reaching = np.minimum.accumulate(reaches[::-1])[::-1]
    grad = np.bincount(reaching, grad, num_rounds)
    # Coefficient j of N changes the column by its own square, j rounds later.
    squared = toeplitz_family.divide(column, noising)
    in_noising = [-(grad[j:] @ squared[: num_rounds - j]) for j in range(num_bands)]
    error = float(noising @ form @ noising)
    gradient = 2.0 * form @ noising / error + np.array(in_noising) / square
    return math.log(error) + math.log(square), gradient[1:]

  return value_and_grad
