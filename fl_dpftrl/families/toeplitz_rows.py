"""Errors of banded Toeplitz strategies.

With columns as they are, B is Toeplitz: its first column, w, says it all. With
columns normalised for n rounds, that is so of B's rows but the last, whose
noise is smaller; those are gone through column by column.
"""

import dataclasses
from typing import Iterator

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.error import base
from fl_dpftrl.error import dispatch
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import power_series

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
    strategy: banded_toeplitz.BandedToeplitz,
    num_rounds: int,
    workload: workloads.Queries,
    response: np.ndarray,
) -> LateRows:
  """The rows of B that are not those of a Toeplitz matrix.

  Those of the columns cut short; all of them where A is not Toeplitz.
  """
  norms = strategy.late_norms()
  common, late = 0.0, num_rounds
  if workload.is_toeplitz:
    common = float(norms[-1])
    unused = (strategy.max_rounds or num_rounds) - num_rounds
    late = min(max(norms.size - 1 - unused, 0), num_rounds)
  after = (strategy.max_rounds or num_rounds) - num_rounds + np.arange(late)
  return LateRows(
      power_series.reciprocal(strategy.coefficients, response.size),
      response,
      norms[np.minimum(after, norms.size - 1)][::-1] - common,
      common,
      workload,
  )


@dispatch.per_query_error.register
def _(
    strategy: banded_toeplitz.BandedToeplitz,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> np.ndarray:
  strategies.check_num_rounds(strategy, num_rounds)
  squares, late, tail = _squares(strategy, num_rounds, workload)
  middle = np.empty(0)
  if squares.size:
    more = np.arange(1.0, num_rounds - late.size - squares.size + 1.0)
    middle = squares[-1] + tail * more
  return np.sqrt(np.concatenate([squares, middle, late]))


@dispatch.error.register
def _(
    strategy: banded_toeplitz.BandedToeplitz,
    num_rounds: int,
    workload: workloads.Queries = workloads.Workload(),
) -> base.Error:
  strategies.check_num_rounds(strategy, num_rounds)
  squares, late, tail = _squares(strategy, num_rounds, workload)
  # Sums of the squares over the queries; those left out grow by the tail.
  total, largest = float(squares.sum() + late.sum()), late.max(initial=0.0)
  if squares.size:
    more = num_rounds - late.size - squares.size
    total += more * float(squares[-1]) + tail * 0.5 * more * (more + 1.0)
    largest = max(largest, float(squares[-1]) + tail * more)
  queries = num_rounds if workload.is_toeplitz else late.size
  return base.Error(float(np.sqrt(total / queries)), float(np.sqrt(largest)))


def _squares(
    strategy: banded_toeplitz.BandedToeplitz,
    num_rounds: int,
    workload: workloads.Queries,
) -> tuple[np.ndarray, np.ndarray, float]:
  """Squared errors of the first queries and of the last, and the step between.

  Those in between, left out of the first, each add the same to the one before.
  """
  if not workload.is_toeplitz:
    workloads.check_dense(num_rounds)
    response, limit = np.zeros(num_rounds), None
  else:
    response, limit = decoder_column(
        strategy.coefficients, num_rounds, workload
    )
  if strategy.max_rounds is None and workload.is_toeplitz:
    return np.cumsum(np.square(response)), np.empty(0), (limit or 0.0) ** 2
  rows = late_rows(strategy, num_rounds, workload, response)
  step = (rows.base * (limit or 0.0)) ** 2
  if rows.scales.size:
    late = rows.squares() + step * (num_rounds - response.size)
  else:
    late = np.empty(0)
  early = min(response.size, num_rounds - rows.scales.size)
  return np.cumsum(np.square(rows.base * response[:early])), late, step
