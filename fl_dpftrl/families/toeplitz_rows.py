"""Rows of B = A N of banded Toeplitz strategies.

Without normalised columns, B is Toeplitz, and its first column w determines it. With columns
normalised for n rounds, this holds for all but the last rows of B, whose noise is smaller.
Those are computed column by column.
"""

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.families import power_series
from fl_dpftrl.sensitivity import toeplitz

_CHUNK_ENTRIES = 1 << 20  # float64 values of working memory: 8 MiB


def decoder_column(
  coefficients: np.ndarray, num_rounds: int, workload: workloads.Queries
) -> tuple[np.ndarray, float | None]:
  """Returns the first column of A T⁻¹, and the limit of the terms left out.

  See `power_series.step_response`, applied to the coefficients times 1 − β z if A has momentum
  β.
  """
  if isinstance(workload, workloads.Workload):
    return power_series.step_response(
      np.convolve(coefficients, [1.0, -workload.momentum]), num_rounds
    )
  inverse = power_series.reciprocal(coefficients, num_rounds)
  return workload.apply(inverse), None


@dataclasses.dataclass(frozen=True, eq=False)
class LateRows:
  """The last rows of B, as sums over its columns, in chunks of columns.

  Row r of the last R, and column q from the right, of B are base · w[r − q] + A (scales ⊙ h[· −
  q]). Lags are counted so that the last row and the last column have lag 0.

  Attributes:
    inverse: h, the first column of T⁻¹, with a term for each column considered.
    response: w, with the same number of terms.
    scales: shape [R], the factor of each late row of T⁻¹, less base.
    base: the common factor of all rows of T⁻¹, inside w; 0 if A is not Toeplitz, and R is all
      rows.
    workload: A.
  """

  inverse: np.ndarray
  response: np.ndarray
  scales: np.ndarray
  base: float
  workload: workloads.Queries

  def windows(self, values: np.ndarray) -> np.ndarray:
    """Returns values at each lag, shape [columns, R]."""
    padded = np.concatenate([np.zeros(self.scales.size - 1), values])
    return np.lib.stride_tricks.sliding_window_view(padded, self.scales.size)

  def chunks(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Yields columns, their late rows of T⁻¹, and of B: shape [R, columns]."""
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
    return functools.reduce(np.add, chunks)


def late_rows(
  columns: toeplitz.Columns, num_rounds: int, workload: workloads.Queries, response: np.ndarray
) -> LateRows:
  """Returns the rows of B that are not those of a Toeplitz matrix.

  These are the rows of the columns cut short, or all rows if A is not Toeplitz.
  """
  norms, unused = columns.norms, columns.unused
  common, late = 0.0, num_rounds
  if workload.is_toeplitz:
    common = float(norms[-1])
    late = min(max(norms.size - 1 - unused, 0), num_rounds)
  after = unused + np.arange(late)
  return LateRows(
    power_series.reciprocal(columns.coefficients, response.size),
    response,
    norms[np.minimum(after, norms.size - 1)][::-1] - common,
    common,
    workload,
  )
