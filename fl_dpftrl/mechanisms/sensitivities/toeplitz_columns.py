"""Sensitivity of matrices with one column, shifted from round to round.

The end of the run cuts the last columns short, and these may be scaled by norms of their own: C
= T D, with T Toeplitz and D diagonal.
"""

import math
from typing import NamedTuple

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.mechanisms.sensitivities import kinds, patterns

_ROUNDING = 1e-13


class Columns(NamedTuple):
  """Columns of a C with num_rounds rounds: scaled shifts of c.

  Attributes:
    coefficients: c, shape [num_bands].
    norms: divisors of the columns, shape [num_bands]. Entry j is for the column with j more rounds
      after it in the run that the matrix was made for; the last one is for all columns with more.
    unused: rounds of that run after the last of these.
  """

  coefficients: np.ndarray
  norms: np.ndarray
  unused: int


def earliest_square(coefficients: np.ndarray, schema: schemas.Schema) -> tuple[float, np.ndarray]:
  """‖Σ columns 0, b, …, (k − 1) b‖² of a Toeplitz C, and its gradient.

  This is the squared sensitivity if c is non-negative and non-increasing, and at most that for
  any other c. Between its build-up and its decay, the sum of columns repeats every b rounds.
  One of those periods is enough, whatever n is.

  Args:
    coefficients: c, at most num_rounds.

  Returns:
    The square, and its gradient in c, of c's shape.

  Source: Kalinin and Lampert 2024 (Banded Square Root), theorem 2.
  """
  bands, min_sep = coefficients.size, schema.min_sep
  overlapping = -(-bands // min_sep)
  periods = max(0, schema.participations - 2 * overlapping - 2)
  count = schema.participations - periods
  size = min(schema.num_rounds - periods * min_sep, (count - 1) * min_sep + bands)
  total = np.zeros(size)
  total[:bands] = coefficients
  total = patterns.repeated(total, min_sep, count)
  square = float(total @ total)
  grad = patterns.repeated(total[::-1], min_sep, count)[::-1][:bands]
  if periods:
    folded = np.zeros(overlapping * min_sep)
    folded[:bands] = coefficients
    period = folded.reshape(overlapping, min_sep).sum(axis=0)
    square += periods * float(period @ period)
    grad = grad + periods * np.tile(period, overlapping)[:bands]
  return square, 2.0 * grad


def shifted_sensitivity(columns: Columns, schema: schemas.Schema) -> kinds.Sensitivity:
  """Exact if no columns of a pattern overlap, or c is monotone; else `_lag_bound`."""
  coefficients, count = columns.coefficients, schema.participations
  bands = np.trim_zeros(coefficients, 'b').size
  if bands <= schema.min_sep or count == 1:
    return kinds.Sensitivity.from_square(_apart_square(columns, schema))
  coefficients, reached = coefficients[: schema.num_rounds], 0.0
  if (columns.norms == 1.0).all():
    square, _ = earliest_square(coefficients, schema)
    if coefficients[-1] >= 0.0 and (np.diff(coefficients) <= 0.0).all():
      return kinds.Sensitivity.from_square(square)
    reached = math.sqrt(square)
  bound = math.sqrt(_lag_bound(columns, schema))
  exact = reached >= bound * (1.0 - _ROUNDING)
  return kinds.Sensitivity(bound, kinds.EXACT if exact else kinds.UPPER_BOUND)


def _apart_square(columns: Columns, schema: schemas.Schema) -> float:
  """The largest sum of squared column norms over a pattern.

  No column is longer than those that the end does not cut. If the columns of a pattern do not
  overlap, the end cuts at most the last.
  """
  num_rounds, count = schema.num_rounds, schema.participations
  norms = columns.norms
  # Squared norm of a column that ends j rounds after its diagonal.
  squares = np.cumsum(np.square(columns.coefficients))
  cut = min(squares.size, num_rounds)
  first = max((count - 1) * schema.min_sep, num_rounds - cut)
  later = num_rounds - 1 - np.arange(first, num_rounds)
  last = squares[np.minimum(later, cut - 1)] / np.square(
    norms[np.minimum(later + columns.unused, norms.size - 1)]
  )
  whole = squares[-1] / norms[-1] ** 2
  return (count - 1) * float(whole) + float(last.max())


def _lag_bound(columns: Columns, schema: schemas.Schema) -> float:
  """A bound on Σ |X[i, j]| over a pattern, from the largest entry at each lag.

  A round's lags from the rounds before it are min_sep apart, the least of them at least
  min_sep; with m rounds before it they add up to F[m] at most.
  """
  count, min_sep = schema.participations, schema.min_sep
  largest = _largest_entries(columns, schema.num_rounds, min_sep)
  diagonal = largest[0]
  if isinstance(schema, schemas.Fixed):
    sums = np.cumsum(largest[1::min_sep])
  else:
    fits = -(-(largest.size - 1) // min_sep)
    sums = patterns.separated_sums(largest[None, 1:], min_sep, fits)[:, 0]
  sums = np.concatenate([[0.0], sums])
  more = max(0, count - sums.size)
  return float(count * diagonal + 2.0 * (sums[:count].sum() + more * sums[-1]))


def _largest_entries(columns: Columns, num_rounds: int, min_sep: int) -> np.ndarray:
  """max |X[j − l, j]| over j, at lags 0, min_sep, min_sep + 1, …; column j has t = n − j rounds."""
  norms, unused = columns.norms, columns.unused
  bands = min(columns.coefficients.size, num_rounds)
  coefficients = columns.coefficients[:bands]
  largest = []
  for lag in (0, *range(min_sep, bands)):
    products = np.cumsum(coefficients[lag:] * coefficients[: bands - lag])
    later = np.arange(min(bands, num_rounds - lag))  # t − 1
    entries = np.abs(products[np.minimum(later, products.size - 1)])
    entries = entries / (
      norms[np.minimum(later + unused, norms.size - 1)]
      * norms[np.minimum(later + unused + lag, norms.size - 1)]
    )
    largest.append(entries.max())
  return np.array(largest)
