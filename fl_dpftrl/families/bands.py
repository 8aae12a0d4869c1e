"""Rows of the inverse of a banded lower-triangular matrix L, by a recurrence.

The rows y of L⁻¹ Z follow from L y = z: a block of them from a window, the
num_bands − 1 rows before it. Carried along is the covariance of the window, so
norms of rows cost O(n·bands²) time, and the inverse is never written out.
"""

from typing import Iterator, NamedTuple

import numpy as np
from scipy.linalg import lapack

from fl_dpftrl.families import banded

_SMALLEST_BLOCK = 64


class Block(NamedTuple):
  """A block of rows of y in L y = z, for z of variance 1.

  Attributes:
    rows: of the block.
    inverse: of the block of L on the diagonal, shape [rows, rows].
    transition: the part of y that follows from the window is this times it,
      shape [rows, window]. The window is shorter where fewer rounds came before.
    covariance: of the window and then the block, shape
      [window + rows, window + rows].
  """

  rows: slice
  inverse: np.ndarray
  transition: np.ndarray
  covariance: np.ndarray

  @property
  def squares(self) -> np.ndarray:
    """Squared norms of these rows of L⁻¹."""
    return np.diagonal(self.covariance)[self.transition.shape[1] :]


def blocks(coefficients: np.ndarray) -> Iterator[Block]:
  """The blocks of rows of L, from the first to the last.

  Args:
    coefficients: shape [num_rounds, num_bands]; [t, j] is L[t, t − j], and 0
      where t < j. The diagonal, [t, 0], is not 0.
  """
  num_rounds, num_bands = coefficients.shape
  most = num_bands - 1
  size = max(_SMALLEST_BLOCK, -(-most // 4))
  covariance = np.zeros((0, 0))
  for start in range(0, num_rounds, size):
    rows = slice(start, min(start + size, num_rounds))
    window, stop = len(covariance), rows.stop
    matrix = banded.dense_rows(coefficients[rows])[:, most - window :]
    inverse, _ = lapack.dtrtri(matrix[:, window:], lower=1)
    transition = -(inverse @ matrix[:, :window])
    joint = np.empty((window + stop - start, window + stop - start))
    joint[:window, :window] = covariance
    joint[window:, :window] = transition @ covariance
    joint[:window, window:] = joint[window:, :window].T
    joint[window:, window:] = joint[window:, :window] @ transition.T
    joint[window:, window:] += inverse @ inverse.T
    yield Block(rows, inverse, transition, joint)
    after = len(joint) - min(most, stop)
    covariance = joint[after:, after:]


def row_norms(coefficients: np.ndarray) -> np.ndarray:
  """‖row t of L⁻¹‖ of each row, shape [num_rounds].

  Args:
    coefficients: as of `blocks`.
  """
  return np.sqrt(
      np.concatenate([block.squares for block in blocks(coefficients)])
  )


def gradient(
    steps: list[Block], weights: np.ndarray, num_bands: int
) -> np.ndarray:
  """The gradient of Σ weights[t]·‖row t of L⁻¹‖² in the coefficients of L.

  Args:
    steps: all `blocks` of L.
    weights: shape [num_rounds].
    num_bands: of L.

  Returns:
    Shape [num_rounds, num_bands], 0 where t < j.
  """
  result = np.empty((weights.size, num_bands))
  # Of the terms from here on, in the covariance of the window.
  adjoint = np.zeros((0, 0))
  for rows, inverse, transition, covariance in reversed(steps):
    window = transition.shape[1]
    joint = np.zeros_like(covariance)
    after = len(joint) - len(adjoint)
    joint[after:, after:] = adjoint
    index = np.arange(window, len(joint))
    joint[index, index] += weights[rows]
    result[rows] = _from_dense(
        inverse.T @ (joint[window:] @ covariance), num_bands
    )
    half = 0.5 * joint[window:, window:] @ transition + joint[window:, :window]
    half = transition.T @ half
    adjoint = joint[:window, :window] + half + half.T
  return -2.0 * result


def _from_dense(matrix: np.ndarray, num_bands: int) -> np.ndarray:
  """The bands of rows whose last column is that of the last row's diagonal.

  Undoes `banded.dense_rows`.
  """
  count, width = len(matrix), len(matrix) + num_bands - 1
  flat = np.zeros(count * (width + 1))
  flat[: count * width].reshape(count, width)[:, -matrix.shape[1] :] = matrix
  return flat.reshape(count, width + 1)[:, num_bands - 1 :: -1]
