"""Banded lower-triangular strategies (BandMF)."""

import dataclasses
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from fl_dpftrl.families import base


@dataclasses.dataclass(frozen=True, eq=False)
class Banded:
  """A lower-triangular C with num_bands non-zero diagonals.

  Attributes:
    coefficients: shape [num_rounds, num_bands], float64; entry [t, j] is
      C[t, t − j], and 0 where t < j. Column 0, the diagonal, is positive.

  Raises:
    ValueError: for another shape, values that are not finite, a diagonal that
      is not positive, or a value outside the matrix that is not 0.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization.
  """

  coefficients: np.ndarray
  family: ClassVar[str] = 'banded'

  def __post_init__(self):
    coefficients = np.array(self.coefficients, dtype=np.float64)
    if coefficients.ndim != 2 or not coefficients.size:
      raise ValueError(
          'coefficients must have shape [num_rounds, num_bands], got shape'
          f' {coefficients.shape}'
      )
    num_rounds, num_bands = coefficients.shape
    if num_bands > num_rounds:
      raise ValueError(
          f'coefficients have {num_bands} bands for {num_rounds} rounds'
      )
    if not np.isfinite(coefficients).all():
      raise ValueError('coefficients must be finite')
    if (coefficients[:, 0] <= 0).any():
      raise ValueError(
          'coefficients must have a positive diagonal (column 0), got'
          f' {coefficients[:, 0].min()!r}'
      )
    outside = np.arange(num_rounds)[:, None] < np.arange(num_bands)
    if coefficients[outside].any():
      raise ValueError('coefficients [t, j] must be 0 where t < j')
    coefficients.setflags(write=False)
    object.__setattr__(self, 'coefficients', coefficients)

  @property
  def max_rounds(self) -> int | None:
    return self.coefficients.shape[0]

  @property
  def num_bands(self) -> int:
    return self.coefficients.shape[1]

  def num_noise_rows(self, num_rounds: int) -> int:
    return num_rounds

  def memory_copies(self, num_rounds: int) -> int:
    del num_rounds
    return self.num_bands - 1

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    matrix = np.zeros((num_rounds, num_rounds))
    for j in range(min(self.num_bands, num_rounds)):
      rows = np.arange(j, num_rounds)
      matrix[rows, rows - j] = self.coefficients[rows, j]
    return matrix

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return scipy.linalg.solve_triangular(
        self.strategy_matrix(num_rounds), np.eye(num_rounds), lower=True
    )

  def parameters(self) -> dict[str, Any]:
    return {'coefficients': self.coefficients}


def dense_rows(coefficients: np.ndarray) -> np.ndarray:
  """Rows of a banded matrix, from the first row's first band to its last.

  Args:
    coefficients: shape [rows, num_bands]; [r, j] is the entry j left of the
      diagonal.

  Returns:
    Shape [rows, num_bands − 1 + rows]; the last columns are those of these rows.
  """
  count, num_bands = coefficients.shape
  width = count + num_bands - 1
  # In rows that are longer by one, what was slanted stands upright.
  upright = np.zeros((count, width + 1))
  upright[:, :num_bands] = coefficients[:, ::-1]
  return upright.reshape(-1)[: count * width].reshape(count, width)
