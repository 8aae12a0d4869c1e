"""Strategies whose inverse is banded and Toeplitz (BISR, BandInvMF)."""

import dataclasses
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, linear_noise, schemas, toeplitz
from fl_dpftrl.mechanisms.sensitivities import endless, kinds
from fl_dpftrl.mechanisms.sensitivities import toeplitz_columns as sensitivities

_MOST_GRAM_ROUNDS = 1024  # most rounds for the bound for any X
_ROUNDING = 1e-13


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BandedInverse(toeplitz.Toeplitz):
  """A Toeplitz C whose inverse N has few non-zero diagonals.

  A noise row is a sum over the last num_bands rows of Z, which are drawn again. So no vector is
  kept between rounds, and a round costs num_bands draws.

  Attributes:
    coefficients: first column of N, shape [num_bands], float64; the first is positive.

  Source: Kalinin, McKenna, Upadhyay, Lampert 2025 (Back to Square Roots).
  """

  coefficients: np.ndarray
  family: ClassVar[str] = 'banded_inverse'

  def __post_init__(self):
    toeplitz.keep_coefficients(self)

  def column(self, num_rounds: int) -> np.ndarray:
    """Returns the first column of C, shape [num_rounds].

    Raises:
      ValueError: if it has entries too large for float64.
    """
    base.check_num_rounds(self, num_rounds)
    column = toeplitz.reciprocal(self.coefficients, num_rounds)
    if not np.isfinite(column).all():
      raise ValueError(f'coefficients have an inverse that overflows within {num_rounds} rounds')
    return column

  def noising_column(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    return toeplitz.padded(self.coefficients, num_rounds)

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """Sums over the last rows of Z, drawn again."""
    del num_rounds
    norms = np.sqrt(np.cumsum(np.square(self.coefficients)))

    def step(t):
      count = min(t + 1, norms.size)
      draws = self.coefficients[:count][::-1]
      return linear_noise.Step(draws=draws, earlier=count - 1, norm=norms[count - 1])

    return linear_noise.LinearNoise(0, step, period=1, settles=norms.size - 1)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    """Exact if the first column of C is non-negative and non-increasing.

    Otherwise the result is the least of three bounds: that of columns of one shape; that of the
    least non-increasing column nowhere below a non-negative one; and that for any X. BISR has
    non-increasing columns.

    Source: Kalinin, McKenna, Upadhyay, Lampert 2025; for monotone columns, Kalinin and Lampert
    2024 (Banded Square Root), theorem 2.
    """
    column = self.column(schema.num_rounds)
    columns = sensitivities.Columns(column, np.ones(1), 0)
    bound = sensitivities.shifted_sensitivity(columns, schema)
    if bound.kind != kinds.EXACT and (column >= 0.0).all():
      reached, _ = sensitivities.earliest_square(column, schema)
      square, _ = sensitivities.earliest_square(majorant(column), schema)
      exact = square <= reached * (1.0 + _ROUNDING)
      above = kinds.Sensitivity.from_square(square, exact)
      bound = kinds.better(bound, above)
    return base.tightened(bound, self, schema, _MOST_GRAM_ROUNDS)

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    """Sums products of the first column of C, lag by lag."""
    column = self.column(num_rounds)

    def entries_at(rows, columns):
      rows, columns = np.broadcast_arrays(rows, columns)
      lags = np.abs(rows - columns)
      remaining = num_rounds - 1 - np.maximum(rows, columns)
      entries = np.empty(lags.shape)
      for lag in np.unique(lags):
        which = lags == lag
        entries[which] = np.cumsum(column[: num_rounds - lag] * column[lag:])[remaining[which]]
      return entries

    return entries_at

  def endless_gram(self) -> endless.Gram:
    """X of the first rows of c, with a bound on those that follow; see `settled_reciprocal`."""
    return endless.column_lags(*toeplitz.settled_reciprocal(self.coefficients))


def majorant(column: np.ndarray) -> np.ndarray:
  """Returns the least non-increasing column that is nowhere below this one."""
  return np.maximum.accumulate(column[::-1])[::-1]
