"""Banded lower-triangular strategies (BandMF)."""

import dataclasses
import functools
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import bands, base, linear_noise, schemas, workloads
from fl_dpftrl.mechanisms.sensitivities import kinds, patterns


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Banded(base.Strategy):
  """A lower-triangular C with num_bands non-zero diagonals.

  Attributes:
    coefficients: shape [num_rounds, num_bands], float64; entry [t, j] is C[t, t − j], and 0
      where t < j. Column 0, the diagonal, is positive.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization.
  """

  coefficients: np.ndarray
  family: ClassVar[str] = 'banded'

  def __post_init__(self):
    coefficients = base.keep_array(self, 'coefficients', 'num_rounds', 'num_bands')
    bands.check('coefficients', coefficients)

  @property
  def max_rounds(self) -> int | None:
    return self.coefficients.shape[0]

  @property
  def num_bands(self) -> int:
    return self.coefficients.shape[1]

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    return bands.to_matrix(self.coefficients[:num_rounds])

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return base.lower_inverse(self.strategy_matrix(num_rounds))

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """C y = z by forward substitution, over the last num_bands − 1 rows of y."""
    del num_rounds
    norms = functools.cache(lambda: bands.row_norms(self.coefficients))

    def step(t):
      diagonal, below = self.coefficients[t, 0], self.coefficients[t, 1:]
      update = linear_noise.Push() if below.size else None
      return linear_noise.Step(diagonal=diagonal, below=below, update=update, norm=norms()[t])

    return linear_noise.LinearNoise(self.num_bands - 1, step)

  def column_squares(self, num_rounds: int) -> np.ndarray:
    """Squared column norms of C, shape [num_rounds]."""
    base.check_num_rounds(self, num_rounds)
    squares = np.zeros(num_rounds)
    for j in range(min(self.num_bands, num_rounds)):
      squares[: num_rounds - j] += self.coefficients[j:num_rounds, j] ** 2
    return squares

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    """Exact if columns of a pattern do not overlap; else as for any X."""
    if self.num_bands > schema.min_sep and schema.participations > 1:
      return super().sensitivity(schema)
    squares = self.column_squares(schema.num_rounds)
    return kinds.Sensitivity.from_square(patterns.worst_sum(squares, schema))

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    workloads.check_dense(num_rounds)
    total = np.zeros((num_rounds, num_rounds))
    for start in range(0, num_rounds, self.num_bands):
      rows = self.coefficients[start : start + self.num_bands]
      rows = bands.dense_rows(rows[: num_rounds - start])
      stop = min(start + self.num_bands, num_rounds)
      first = max(stop - rows.shape[1], 0)
      rows = rows[:, rows.shape[1] - (stop - first) :]
      total[first:stop, first:stop] += rows.T @ rows
    return total

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    """Looks entries up in the diagonals of X, as many as C has."""
    base.check_num_rounds(self, num_rounds)
    coefficients = self.coefficients[:num_rounds]
    num_bands = min(self.num_bands, num_rounds)
    diagonals = np.zeros((num_rounds, num_bands))  # [j, l] is X[j − l, j].
    for lag in range(num_bands):
      for depth in range(num_bands - lag):
        rows = np.arange(lag + depth, num_rounds)
        diagonals[rows - depth, lag] += coefficients[rows, depth] * coefficients[rows, depth + lag]

    def entries_at(rows, columns):
      lag = np.abs(rows - columns)
      band = np.minimum(lag, num_bands - 1)
      entries = diagonals[np.maximum(rows, columns), band]
      return np.where(lag < num_bands, entries, 0.0)

    return entries_at

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    """Computes errors in O(n·bands²) without a dense matrix; see `bands`."""
    base.check_num_rounds(self, num_rounds)
    coefficients = self.coefficients[:num_rounds, :num_rounds]
    return bands.row_norms(bands.multiply(coefficients, bands.inverse_bands(workload, num_rounds)))
