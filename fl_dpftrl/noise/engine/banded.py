"""The recurrences of banded strategies: a ring of the last rows."""

import numpy as np

from fl_dpftrl.noise.engine import dispatch
from fl_dpftrl.strategies import banded
from fl_dpftrl.strategies import banded_inverse
from fl_dpftrl.strategies import base as strategies
from fl_dpftrl.strategies import toeplitz


@dispatch.recurrence.register
def _(strategy: banded.Banded, num_rounds: int) -> dispatch.Recurrence:
  """C y = z by forward substitution, over the last num_bands − 1 rows of y."""
  strategies.check_num_rounds(strategy, num_rounds)
  norms = banded_inverse.row_norms(strategy.coefficients[:num_rounds])
  return dispatch.Recurrence(
      strategy.num_bands - 1,
      norms,
      lambda t: _step(t, strategy.coefficients[t], 1.0),
  )


@dispatch.recurrence.register
def _(
    strategy: toeplitz.BandedToeplitz, num_rounds: int
) -> dispatch.Recurrence:
  """T y = z by forward substitution over the last rows of y; then D⁻¹ y."""
  strategies.check_num_rounds(strategy, num_rounds)
  scales = strategy.column_norms(num_rounds)
  norms = scales * np.sqrt(
      np.cumsum(_impulse(strategy.coefficients, num_rounds) ** 2)
  )
  return dispatch.Recurrence(
      strategy.num_bands - 1,
      norms,
      lambda t: _step(t, strategy.coefficients, float(scales[t])),
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


def _step(t: int, coefficients: np.ndarray, scale: float) -> dispatch.Step:
  """Row t of y, and of N·Z as scale times it.

  Row r is in buffer r modulo their number: one buffer is written in a round, and
  all are read once.
  """
  kept = coefficients.size - 1
  filled = min(t, kept)
  weights = np.zeros(filled)
  lags = np.arange(1, filled + 1)
  if filled:
    weights[(t - lags) % kept] = coefficients[lags] / coefficients[0]
  own = float(1.0 / coefficients[0])

  def apply(draw, buffers, part, scratch):
    draw(t, part)
    np.multiply(part, own, out=part)
    if filled:
      # Not BLAS, whose sums depend on its number of threads.
      np.einsum(
          'j,jd->d', weights.astype(part.dtype), buffers[:filled], out=scratch
      )
      np.subtract(part, scratch, out=part)
    if kept:
      buffers[t % kept] = part
    if scale != 1.0:
      np.multiply(part, scale, out=part)

  return dispatch.Step(apply, [t % kept] if kept else [])
