"""Rows of B = A N of banded Toeplitz strategies.

With columns as they are, B is Toeplitz: its first column, w, says it all. With
columns normalised for n rounds, that is so of B's rows but the last, whose
noise is smaller; those are gone through column by column.
"""

import dataclasses
from typing import Iterator

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.families import power_series
from fl_dpftrl.sensitivity import toeplitz

_CHUNK_ENTRIES = 1 << 20  # float64 values of working memory: 8 MiB


def decoder_column(
    coefficients: np.ndarray, num_rounds: int, workload: workloads.Queries
) -> tuple[np.ndarray, float | None]:
  """The first column of A T⁻¹, and the limit of what is left out of it.

  As of `power_series.step_response`, of the coefficients times 1 − β z where A
  has momentum β.
  """
  if isinstance(workload, workloads.Workload):
    return power_series.step_response(
        np.convolve(coefficients, [1.0, -workload.momentum]), num_rounds
    )
  inverse = power_series.reciprocal(coefficients, num_rounds)
  return workload.apply(inverse), None


@dataclasses.dataclass(frozen=True, eq=False)
class LateRows:
  """The last rows of B, as sums over its columns, in chunks of those.

  Row r of the last R, and column q from the right, of B are
  base · w[r − q] + A (scales ⊙ h[· − q]), lags counted so that the last row
  meets the last column at lag 0.

  Attributes:
    inverse: h, the first column of T⁻¹: as many terms as columns are looked at.
    response: w, of as many terms.
    scales: shape [R], what to multiply each late row of T⁻¹ by, less base.
    base: the common factor of all rows of T⁻¹, inside w; 0 where A is not
      Toeplitz, and R is all rows.
    workload: A.
  """

  inverse: np.ndarray
  response: np.ndarray
  scales: np.ndarray
  base: float
  workload: workloads.Queries

  def windows(self, values: np.ndarray) -> np.ndarray:
    """values at each lag: shape [columns, R]."""
    padded = np.concatenate([np.zeros(self.scales.size - 1), values])
    return np.lib.stride_tricks.sliding_window_view(padded, self.scales.size)

  def chunks(self) -> Iterator[tuple[slice, np.ndarray, np.ndarray]]:
    """Columns, their late rows of T⁻¹, and of B: shape [R, columns] each."""
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
    """Squared norms of the rows over the columns looked at, shape [queries]."""
    total = 0.0
    for _, _, decoder in self.chunks():
      total = total + np.einsum('ij,ij->i', decoder, decoder)
    return total


def late_rows(
    columns: toeplitz.Columns,
    num_rounds: int,
    workload: workloads.Queries,
    response: np.ndarray,
) -> LateRows:
  """The rows of B that are not those of a Toeplitz matrix.

  Those of the columns cut short; all of them where A is not Toeplitz.
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
