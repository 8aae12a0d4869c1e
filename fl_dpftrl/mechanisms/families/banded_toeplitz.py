"""Banded lower-triangular Toeplitz strategies, and rows of their B = A N.

Without normalised columns, B is Toeplitz, and its first column w determines it. With columns
normalised for n rounds, this holds for all but the last rows of B, whose noise is smaller.
Those are computed column by column.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, linear_noise, schemas, toeplitz, workload_error, workloads
from fl_dpftrl.mechanisms.sensitivities import endless, kinds
from fl_dpftrl.mechanisms.sensitivities import toeplitz_columns as sensitivities

_MOST_GRAM_ROUNDS = 1024  # most rounds for the bound for any X
_CHUNK_ENTRIES = 1 << 20  # float64 values of working memory: 8 MiB


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BandedToeplitz(base.Strategy):
  """A C whose columns hold the same few coefficients from the diagonal down.

  The end of the run cuts the last columns short, so their norms are smaller. With
  normalized_rounds, every column of the C for that many rounds is scaled to norm 1: C = T D,
  with D diagonal.

  Attributes:
    coefficients: c, shape [num_bands], float64; c₀ is positive.
    normalized_rounds: the number of rounds for which columns are normalised, and the most that
      it can run; None for no normalisation.

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
    """Divisors of the last columns, [num_bands], by how many rounds follow, the last for more."""
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
    remaining = (self.normalized_rounds or num_rounds) - 1 - np.arange(num_rounds)
    return self.late_norms()[np.minimum(remaining, self.num_bands - 1)]

  def inverse_coefficients(self, num_rounds: int) -> np.ndarray:
    """The first column of T⁻¹, which is C's inverse without normalisation."""
    base.check_num_rounds(self, num_rounds)
    return toeplitz.reciprocal(self.coefficients, num_rounds)

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    norms = self.column_norms(num_rounds)
    return toeplitz.matrix(toeplitz.padded(self.coefficients, num_rounds)) / norms

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    inverse = toeplitz.matrix(self.inverse_coefficients(num_rounds))
    return self.column_norms(num_rounds)[:, None] * inverse

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """T y = z by forward substitution over the last rows of y; then D⁻¹ y."""
    del num_rounds
    diagonal, below, norms = self.coefficients[0], self.coefficients[1:], self.late_norms()
    update = linear_noise.Push() if below.size else None

    def step(t):
      later = below.size if self.max_rounds is None else min(below.size, self.max_rounds - 1 - t)
      return linear_noise.Step(diagonal=diagonal, below=below, update=update, scale=norms[later])

    if self.max_rounds is None:
      return linear_noise.LinearNoise(below.size, step, period=1)
    return linear_noise.LinearNoise(below.size, step, alike=self.max_rounds - below.size)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    """The bound from columns of one shape, or that for any X if smaller."""
    base.check_num_rounds(self, schema.num_rounds)
    bound = sensitivities.shifted_sensitivity(self.columns(schema.num_rounds), schema)
    return base.tightened(bound, self, schema, _MOST_GRAM_ROUNDS)

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    workloads.check_dense(num_rounds)
    entries, rounds = self.gram_entries(num_rounds), np.arange(num_rounds)
    return np.stack([entries(t, rounds) for t in rounds[:, None]])

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    norms = self.column_norms(num_rounds)
    coefficients = self.coefficients[:num_rounds]
    bands = coefficients.size
    # sums[l, t]: of cₛ cₛ₊ₗ for the first t + 1 of s.
    sums = np.zeros((bands, bands))
    for lag in range(bands):
      products = np.cumsum(coefficients[: bands - lag] * coefficients[lag:])
      sums[lag] = products[np.minimum(np.arange(bands), products.size - 1)]

    def entries_at(rows, columns):
      lag = np.abs(rows - columns)
      remaining = num_rounds - 1 - np.maximum(rows, columns)
      meet = lag < bands
      entries = sums[np.where(meet, lag, 0), np.minimum(remaining, bands - 1)]
      return np.where(meet, entries, 0.0) / (norms[rows] * norms[columns])

    return entries_at

  def endless_gram(self) -> endless.Gram:
    if self.normalized_rounds is not None:
      raise ValueError(
        'banded_toeplitz needs a last round where it is normalised: give one that is not'
      )
    return endless.column_lags(self.coefficients)

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    squares, late, tail = _squares(self, num_rounds, workload)
    middle = np.empty(0)
    if squares.size:
      more = np.arange(1.0, num_rounds - late.size - squares.size + 1.0)
      middle = squares[-1] + tail * more
    return np.sqrt(np.concatenate([squares, middle, late]))

  def error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> workload_error.Error:
    base.check_num_rounds(self, num_rounds)
    squares, late, tail = _squares(self, num_rounds, workload)
    # Sums of squares over the queries; each one left out adds the tail again.
    total, largest = float(squares.sum() + late.sum()), late.max(initial=0.0)
    if squares.size:
      more = num_rounds - late.size - squares.size
      total += more * float(squares[-1]) + tail * 0.5 * more * (more + 1.0)
      largest = max(largest, float(squares[-1]) + tail * more)
    queries = num_rounds if workload.is_toeplitz else late.size
    return workload_error.Error(float(np.sqrt(total / queries)), float(np.sqrt(largest)))


def _squares(
  strategy: BandedToeplitz, num_rounds: int, workload: workloads.Workload
) -> tuple[np.ndarray, np.ndarray, float]:
  """Squared errors of the first and of the last queries, and the step to each one in between."""
  if not workload.is_toeplitz:
    workloads.check_dense(num_rounds)
    response, limit = np.zeros(num_rounds), None
  else:
    response, limit = decoder_column(strategy.coefficients, num_rounds, workload)
  if strategy.max_rounds is None and workload.is_toeplitz:
    return np.cumsum(np.square(response)), np.empty(0), (limit or 0.0) ** 2
  rows = late_rows(strategy.columns(num_rounds), num_rounds, workload, response)
  step = (rows.base * (limit or 0.0)) ** 2
  late = rows.squares() + step * (num_rounds - response.size)
  early = min(response.size, num_rounds - rows.scales.size)
  return np.cumsum(np.square(rows.base * response[:early])), late, step


def decoder_column(
  coefficients: np.ndarray, num_rounds: int, workload: workloads.Workload
) -> tuple[np.ndarray, float | None]:
  """Returns the first column of A T⁻¹, and the limit of what is left out; see `step_response`."""
  return toeplitz.step_response(np.convolve(coefficients, [1.0, -workload.momentum]), num_rounds)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LateRows:
  """The last rows of B, as sums over its columns, in chunks of columns.

  Row r of the last R, and column q from the right, of B are base · w[r − q] + A (scales ⊙ h[· −
  q]). Lags are counted so that the last row and the last column have lag 0.
  """

  inverse: np.ndarray  # h, the first column of T⁻¹, with a term for each column considered
  response: np.ndarray  # w, with the same number of terms
  scales: np.ndarray  # shape [R], the factor of each late row of T⁻¹, less base
  base: float  # the common factor of all rows, inside w; 0 if A is not Toeplitz, and R is all
  workload: workloads.Workload  # A

  def windows(self, values: np.ndarray) -> np.ndarray:
    """Returns values at each lag, shape [columns, R]."""
    padded = np.concatenate([np.zeros(self.scales.size - 1), values])
    return np.lib.stride_tricks.sliding_window_view(padded, self.scales.size)

  def chunks(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yields columns, their late rows of T⁻¹, and of B: shape [R, columns]."""
    if not self.scales.size:
      return
    inverse = self.windows(self.inverse)
    response = self.windows(self.response) if self.base else None
    size = max(1, _CHUNK_ENTRIES // self.scales.size)
    for start in range(0, len(inverse), size):
      columns = slice(start, min(start + size, len(inverse)))
      rows = inverse[columns].T
      decoder = self.workload.apply(self.scales[:, None] * rows)
      if response is not None:
        decoder = decoder + self.base * response[columns].T
      yield columns, rows, decoder

  def squares(self) -> np.ndarray:
    """Squared norms of the rows over the columns considered: [queries]."""
    chunks = (np.einsum('ij,ij->i', decoder, decoder) for _, _, decoder in self.chunks())
    return functools.reduce(np.add, chunks) if self.scales.size else np.empty(0)


def late_rows(
  columns: sensitivities.Columns,
  num_rounds: int,
  workload: workloads.Workload,
  response: np.ndarray,
) -> LateRows:
  """Returns the rows of B that are not Toeplitz: of columns cut short, or all if A is not."""
  norms, unused = columns.norms, columns.unused
  common, late = 0.0, num_rounds
  if workload.is_toeplitz:
    common = float(norms[-1])
    late = min(max(norms.size - 1 - unused, 0), num_rounds)
  remaining = unused + np.arange(late)
  return LateRows(
    toeplitz.reciprocal(columns.coefficients, response.size),
    response,
    norms[np.minimum(remaining, norms.size - 1)][::-1] - common,
    common,
    workload,
  )
