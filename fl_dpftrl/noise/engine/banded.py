"""The recurrences of banded strategies: a ring buffer of the last rows.

Reading the ring takes most of the time. So several rows are made in one pass
over it, as one matrix product, when the first of them is requested.
"""

from collections.abc import Callable

import numpy as np
from scipy.linalg import lapack

from fl_dpftrl.families import banded, bands
from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise.engine import dispatch

# (vectors, rows): that are made together in rings of so many vectors or more.
# Smaller ones would become much larger by it.
_ROWS_AT_ONCE = ((16, 8), (8, 4), (2, 2), (0, 1))
# Products of at most 8 × 64 × 512 numbers: OpenBLAS gives them to one thread, so
# that its number of threads changes no sum.
_VECTORS, _COLUMNS = 64, 512


@dispatch.recurrence.register
def _(strategy: banded.Banded, num_rounds: int) -> dispatch.Recurrence:
  """C y = z by forward substitution, over the last num_bands − 1 rows of y."""
  strategies.check_num_rounds(strategy, num_rounds)
  coefficients = strategy.coefficients[:num_rounds]
  return _ring(
    lambda first, last: coefficients[first:last],
    strategy.num_bands - 1,
    bands.row_norms(coefficients),
    np.ones(num_rounds),
  )


@dispatch.recurrence.register
def _(strategy: toeplitz.BandedToeplitz, num_rounds: int) -> dispatch.Recurrence:
  """T y = z by forward substitution over the last rows of y; then D⁻¹ y."""
  strategies.check_num_rounds(strategy, num_rounds)
  scales = strategy.column_norms(num_rounds)
  norms = scales * np.sqrt(np.cumsum(_impulse(strategy.coefficients, num_rounds) ** 2))
  return _ring(
    lambda first, last: np.tile(strategy.coefficients, (last - first, 1)),
    strategy.num_bands - 1,
    norms,
    scales,
  )


def _impulse(coefficients: np.ndarray, num_rounds: int) -> np.ndarray:
  """The first column of T⁻¹."""
  first, *below = coefficients / coefficients[0]
  column = np.zeros(num_rounds)
  column[0] = first / coefficients[0]
  reverse = np.asarray(below)[::-1]
  for t in range(1, num_rounds):
    last = column[max(0, t - reverse.size) : t]
    column[t] = -(reverse[reverse.size - last.size :] @ last)
  return column


def _ring(
  coefficients: Callable[[int, int], np.ndarray], kept: int, norms: np.ndarray, scales: np.ndarray
) -> dispatch.Recurrence:
  """Solves L y = z, where a row of y needs the rows before it in the band.

  Row t is multiplied by scales[t]. Row r of y is in buffer r modulo their
  number.

  Args:
    coefficients: (first, last) → those rows of L by bands.
    kept: number of bands below the diagonal.
    norms: norms of the rows of N.
    scales: shape [num_rounds].
  """
  at_once = next(rows for least, rows in _ROWS_AT_ONCE if kept >= least)
  num_buffers = at_once * (1 + -(-kept // at_once)) if kept else 0

  def step(t):
    scale = float(scales[t])
    if not kept:
      ((own,),) = 1.0 / coefficients(t, t + 1)
      return dispatch.Step(_drawn(t), scale=float(own) * scale)
    if t % at_once:
      return dispatch.Step(_kept(t % num_buffers), scale=scale)
    last = min(t + at_once, scales.size)
    made = [row % num_buffers for row in range(t, last)]
    weights = _weights(coefficients(t, last), t, num_buffers)

    def apply(draw, buffers, part, scratch):
      for row, buffer in enumerate(made, t):
        draw(row, buffers[buffer])
      _multiply(weights, buffers, slice(made[0], made[-1] + 1))
      return buffers[made[0]]

    return dispatch.Step(apply, made, scale)

  return dispatch.Recurrence(num_buffers, norms, step, at_once)


def _drawn(t: int) -> dispatch.Apply:
  def apply(draw, buffers, part, scratch):
    del buffers, scratch
    draw(t, part)
    return part

  return apply


def _kept(buffer: int) -> dispatch.Apply:
  return lambda draw, buffers, part, scratch: buffers[buffer]


def _weights(coefficients: np.ndarray, t: int, num_buffers: int) -> np.ndarray:
  """Weights on the buffers that give rows t, t + 1, … of y.

  The buffers hold the rows of y before t, and rows t, t + 1, … of z.

  Args:
    coefficients: the rows of L from t, by bands.
  """
  num_rows, num_bands = coefficients.shape
  window = min(t, num_bands - 1)
  matrix = bands.dense_rows(coefficients)[:, num_bands - 1 - window :]
  inverse, _ = lapack.dtrtri(matrix[:, window:], lower=1)
  weights = np.zeros((num_rows, num_buffers))
  rows = np.arange(t - window, t + num_rows) % num_buffers
  weights[:, rows[window:]] = inverse
  weights[:, rows[:window]] = -(inverse @ matrix[:, :window])
  return weights


def _multiply(weights: np.ndarray, buffers: np.ndarray, made: slice) -> None:
  """Writes weights times the buffers into the buffers of the new rows."""
  weights = weights.astype(buffers.dtype)
  groups = [
    (np.ascontiguousarray(weights[:, at : at + _VECTORS]), slice(at, at + _VECTORS))
    for at in range(0, len(buffers), _VECTORS)
  ]
  for at in range(0, buffers.shape[1], _COLUMNS):
    columns = buffers[:, at : at + _COLUMNS]
    total, *others = (own @ columns[group] for own, group in groups)
    for other in others:
      total += other
    columns[made] = total
