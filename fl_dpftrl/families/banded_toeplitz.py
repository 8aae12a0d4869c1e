"""Banded lower-triangular Toeplitz strategies."""

import dataclasses
from typing import ClassVar

import numpy as np
import scipy.linalg

from fl_dpftrl import error as error_lib
from fl_dpftrl import workloads
from fl_dpftrl.families import base, linear_noise, power_series, toeplitz, toeplitz_rows
from fl_dpftrl.participation import schemas
from fl_dpftrl.sensitivity import base as sensitivity_lib
from fl_dpftrl.sensitivity import toeplitz as sensitivities

_MOST_GRAM_ROUNDS = 1024  # most rounds for the bound for any X


@dataclasses.dataclass(frozen=True, eq=False)
class BandedToeplitz(base.Strategy):
  """A C whose columns hold the same few coefficients from the diagonal down.

  The end of the run cuts the last columns short, so their norms are smaller. With
  normalized_rounds, every column of the C for that many rounds is scaled to norm 1: C = T D,
  with D diagonal.

  Attributes:
    coefficients: c, shape [num_bands], float64; c₀ is positive.
    normalized_rounds: the number of rounds for which columns are normalised, and the most that
      it can run; None for no normalisation.

  Raises:
    ValueError: for coefficients of another shape, not finite or with a c₀ that is not positive,
      and for normalized_rounds that is not a number of rounds.

  Source: Choquette-Choo et al. 2024 (scaling up banded matrix factorisation), section 3.2,
  "column normalization" included.
  """

  coefficients: np.ndarray
  normalized_rounds: int | None = None
  family: ClassVar[str] = 'banded_toeplitz'

  def __post_init__(self):
    toeplitz.keep_coefficients(self)
    base.keep_rounds(self, 'normalized_rounds')

  @property
  def max_rounds(self) -> int | None:
    return self.normalized_rounds

  @property
  def num_bands(self) -> int:
    return self.coefficients.size

  def late_norms(self) -> np.ndarray:
    """The divisors of the last columns, shape [num_bands].

    Entry j is for the column with j more rounds after it. The last entry is for all columns
    with more rounds after them.
    """
    if self.normalized_rounds is None:
      return np.ones(self.num_bands)
    return np.sqrt(np.cumsum(np.square(self.coefficients)))

  def columns(self, num_rounds: int) -> sensitivities.Columns:
    """The columns of C for the first num_rounds of its rounds."""
    return sensitivities.Columns(
      self.coefficients, self.late_norms(), (self.normalized_rounds or num_rounds) - num_rounds
    )

  def column_norms(self, num_rounds: int) -> np.ndarray:
    """The divisor of each column, the diagonal of D⁻¹, shape [num_rounds]."""
    base.check_num_rounds(self, num_rounds)
    after = (self.normalized_rounds or num_rounds) - 1 - np.arange(num_rounds)
    return self.late_norms()[np.minimum(after, self.num_bands - 1)]

  def inverse_coefficients(self, num_rounds: int) -> np.ndarray:
    """The first column of T⁻¹, which is C's inverse without normalisation."""
    base.check_num_rounds(self, num_rounds)
    return power_series.reciprocal(self.coefficients, num_rounds)

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    column = np.zeros(num_rounds)
    column[: self.num_bands] = self.coefficients[:num_rounds]
    matrix = scipy.linalg.toeplitz(column, np.zeros(num_rounds))
    return matrix / self.column_norms(num_rounds)

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    matrix = scipy.linalg.toeplitz(self.inverse_coefficients(num_rounds), np.zeros(num_rounds))
    return self.column_norms(num_rounds)[:, None] * matrix

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """T y = z by forward substitution over the last rows of y; then D⁻¹ y."""
    del num_rounds
    (own, *_), kept, norms = self.coefficients, self.num_bands - 1, self.late_norms()
    update = linear_noise.Push() if kept else None

    def step(t):
      after = kept if self.max_rounds is None else min(kept, self.max_rounds - 1 - t)
      return linear_noise.Step(
        own=own, below=self.coefficients[1:], update=update, scale=norms[after]
      )

    return linear_noise.LinearNoise(kept, step, period=1 if self.max_rounds is None else None)

  def sensitivity(self, schema: schemas.MinSep) -> sensitivity_lib.Sensitivity:
    """The bound from columns of one shape, or that for any X if smaller."""
    base.check_num_rounds(self, schema.num_rounds)
    columns = self.columns(schema.num_rounds)
    bound = sensitivities.shifted_sensitivity(columns, schema)
    return base.tightened(bound, self, schema, _MOST_GRAM_ROUNDS)

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    workloads.check_dense(num_rounds)
    coefficients = self.coefficients[:num_rounds]
    total = np.zeros((num_rounds, num_rounds))
    for lag in range(coefficients.size):
      products = np.cumsum(coefficients[lag:] * coefficients[: coefficients.size - lag])
      columns = np.arange(lag, num_rounds)
      entries = products[np.minimum(num_rounds - columns, products.size) - 1]
      total[columns, columns - lag] = total[columns - lag, columns] = entries
    norms = self.column_norms(num_rounds)
    return total / np.outer(norms, norms)

  def gram_entries(self, num_rounds: int) -> sensitivity_lib.Entries:
    base.check_num_rounds(self, num_rounds)
    coefficients = self.coefficients[:num_rounds]
    bands = coefficients.size
    # sums[l, t]: of cₛ cₛ₊ₗ for the first t + 1 of s.
    sums = np.zeros((bands, bands))
    for lag in range(bands):
      products = np.cumsum(coefficients[: bands - lag] * coefficients[lag:])
      sums[lag] = products[np.minimum(np.arange(bands), products.size - 1)]
    norms = self.column_norms(num_rounds)

    def of_rounds(rows, columns):
      lag = np.abs(rows - columns)
      after = num_rounds - 1 - np.maximum(rows, columns)
      meet = lag < bands
      entries = sums[np.where(meet, lag, 0), np.minimum(after, bands - 1)]
      return np.where(meet, entries, 0.0) / (norms[rows] * norms[columns])

    return of_rounds

  def per_query_error(
    self, num_rounds: int, workload: workloads.Queries = workloads.Workload()
  ) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    squares, late, tail = _squares(self, num_rounds, workload)
    middle = np.empty(0)
    if squares.size:
      more = np.arange(1.0, num_rounds - late.size - squares.size + 1.0)
      middle = squares[-1] + tail * more
    return np.sqrt(np.concatenate([squares, middle, late]))

  def error(
    self, num_rounds: int, workload: workloads.Queries = workloads.Workload()
  ) -> error_lib.Error:
    base.check_num_rounds(self, num_rounds)
    squares, late, tail = _squares(self, num_rounds, workload)
    # Sums of squares over the queries; each one left out adds the tail again.
    total, largest = float(squares.sum() + late.sum()), late.max(initial=0.0)
    if squares.size:
      more = num_rounds - late.size - squares.size
      total += more * float(squares[-1]) + tail * 0.5 * more * (more + 1.0)
      largest = max(largest, float(squares[-1]) + tail * more)
    queries = num_rounds if workload.is_toeplitz else late.size
    return error_lib.Error(float(np.sqrt(total / queries)), float(np.sqrt(largest)))


def _squares(
  strategy: BandedToeplitz, num_rounds: int, workload: workloads.Queries
) -> tuple[np.ndarray, np.ndarray, float]:
  """Squared errors of the first queries and of the last, and the step between.

  Each query left out in between has the step more than the one before.
  """
  if not workload.is_toeplitz:
    workloads.check_dense(num_rounds)
    response, limit = np.zeros(num_rounds), None
  else:
    response, limit = toeplitz_rows.decoder_column(strategy.coefficients, num_rounds, workload)
  if strategy.max_rounds is None and workload.is_toeplitz:
    return np.cumsum(np.square(response)), np.empty(0), (limit or 0.0) ** 2
  rows = toeplitz_rows.late_rows(strategy.columns(num_rounds), num_rounds, workload, response)
  step = (rows.base * (limit or 0.0)) ** 2
  if rows.scales.size:
    late = rows.squares() + step * (num_rounds - response.size)
  else:
    late = np.empty(0)
  early = min(response.size, num_rounds - rows.scales.size)
  return np.cumsum(np.square(rows.base * response[:early])), late, step
