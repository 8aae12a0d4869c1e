"""Banded lower-triangular matrices, stored and multiplied by their bands.

Coefficients of a matrix have shape [num_rounds, num_bands]: [t, j] is entry t, t − j, and 0 where
t < j.

The rows y of L⁻¹ Z follow from L y = z. A block of them follows from a window: the num_bands −
1 rows before it. The algorithm carries the covariance of the window along, so norms of rows
cost O(n·bands²) time and the inverse is never written out.

The inverse of an SGD workload has two or three bands: it undoes momentum, learning rates and sums.
So C A⁻¹, the inverse of B = A C⁻¹, is banded too, and errors are norms of rows of its inverse.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy

from fl_dpftrl.mechanisms import workloads

_SMALLEST_BLOCK = 64


def dense_rows(coefficients: np.ndarray) -> np.ndarray:
  """Returns rows, given by bands, as a dense matrix up to the last diagonal."""
  count, num_bands = coefficients.shape
  width = count + num_bands - 1
  # Bands run diagonally; in rows longer by one entry they become columns.
  upright = np.zeros((count, width + 1))
  upright[:, :num_bands] = coefficients[:, ::-1]
  return upright.reshape(-1)[: count * width].reshape(count, width)


def to_matrix(coefficients: np.ndarray) -> np.ndarray:
  """Returns the square matrix with these bands."""
  num_rounds, num_bands = coefficients.shape
  matrix = np.zeros((num_rounds, num_rounds))
  for j in range(min(num_bands, num_rounds)):
    np.fill_diagonal(matrix[j:], coefficients[j:, j])
  return matrix


def check(name: str, coefficients: np.ndarray) -> None:
  """Raises ValueError unless these are bands, no more than rounds, with a positive diagonal."""
  num_rounds, num_bands = coefficients.shape
  if num_bands > num_rounds:
    raise ValueError(f'{name} must have at most {num_rounds} bands, got {num_bands}')
  if (coefficients[:, 0] <= 0).any():
    raise ValueError(
      f'{name} must have a positive diagonal (column 0), got {coefficients[:, 0].min()!r}'
    )
  if coefficients[np.arange(num_rounds)[:, None] < np.arange(num_bands)].any():
    raise ValueError(f'{name} [t, j] must be 0 where t < j')


def inverse_bands(workload: workloads.Workload, num_rounds: int) -> np.ndarray:
  """Returns the 2 or, with momentum, 3 bands of A⁻¹ = (I − βS) diag(1/η) (I − S), S a shift."""
  weights = 1.0 / workload.learning_rates(num_rounds)
  bands = _by_bands(num_rounds, 3 if workload.momentum else 2)
  bands[:, 0] = weights
  bands[1:, 1] = -weights[1:]
  if workload.momentum:
    bands[1:, 1] -= workload.momentum * weights[:-1]
    bands[2:, 2] = workload.momentum * weights[1:-1]
  return bands


def multiply(first: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns the product of matrices with l and r bands, by its l + r − 1 bands."""
  num_rounds, num_bands = first.shape
  product = _by_bands(num_rounds, num_bands + second.shape[1] - 1)
  for j in range(num_bands):
    for i in range(second.shape[1]):
      product[j:, j + i] += first[j:, j] * second[: num_rounds - j, i]
  return product


def multiply_gradient(gradient: np.ndarray, second: np.ndarray) -> np.ndarray:
  """Returns the gradient in first from the gradient in `multiply`'s product."""
  num_rounds, extra = second.shape
  result = _by_bands(num_rounds, gradient.shape[1] - extra + 1)
  for j in range(result.shape[1]):
    for i in range(extra):
      result[j:, j] += gradient[j:, j + i] * second[: num_rounds - j, i]
  return result


def _by_bands(num_rounds: int, num_bands: int) -> np.ndarray:
  """Returns zeros of shape [num_rounds, num_bands], each band contiguous."""
  return np.zeros((num_bands, num_rounds)).T


class BandBlock(NamedTuple):
  """A block of rows of y in L y = z, for z of variance 1.

  Attributes:
    rows: the rows of the block.
    inverse: inverse of the block on the diagonal of L, shape [rows, rows].
    transition: matrix that maps the window to its part of y, shape [rows, window]. The window
      is shorter if fewer rounds came before.
    covariance: covariance of the window followed by the block, shape [window + rows, window +
      rows].
  """

  rows: slice
  inverse: np.ndarray
  transition: np.ndarray
  covariance: np.ndarray

  @property
  def squares(self) -> np.ndarray:
    """Squared norms of these rows of L⁻¹."""
    return np.diagonal(self.covariance)[self.transition.shape[1] :]


def blocks(coefficients: np.ndarray) -> Iterator[BandBlock]:
  """Yields the blocks of rows of L, whose diagonal is not 0, from the first to the last."""
  num_rounds, num_bands = coefficients.shape
  most = num_bands - 1
  size = max(_SMALLEST_BLOCK, -(-most // 4))
  covariance = np.zeros((0, 0))
  for start in range(0, num_rounds, size):
    rows = slice(start, min(start + size, num_rounds))
    window, stop = len(covariance), rows.stop
    matrix = dense_rows(coefficients[rows])[:, most - window :]
    inverse, _ = scipy.linalg.lapack.dtrtri(matrix[:, window:], lower=1)
    transition = -(inverse @ matrix[:, :window])
    joint = np.empty((window + stop - start, window + stop - start))
    joint[:window, :window] = covariance
    joint[window:, :window] = transition @ covariance
    joint[:window, window:] = joint[window:, :window].T
    joint[window:, window:] = joint[window:, :window] @ transition.T
    joint[window:, window:] += inverse @ inverse.T
    yield BandBlock(rows, inverse, transition, joint)
    window_start = len(joint) - min(most, stop)
    covariance = joint[window_start:, window_start:]


def row_norms(coefficients: np.ndarray) -> np.ndarray:
  """Returns ‖row t of L⁻¹‖ for each row, shape [num_rounds]."""
  return np.sqrt(np.concatenate([block.squares for block in blocks(coefficients)]))


def gradient(steps: list[BandBlock], weights: np.ndarray, num_bands: int) -> np.ndarray:
  """Returns the gradient of Σ weights[t]·‖row t of L⁻¹‖² in the bands of L, given its blocks."""
  result = np.empty((weights.size, num_bands))
  # Gradient of the terms from here on, in the covariance of the window.
  adjoint = np.zeros((0, 0))
  for rows, inverse, transition, covariance in reversed(steps):
    window = transition.shape[1]
    joint = np.zeros_like(covariance)
    window_start = len(joint) - len(adjoint)
    joint[window_start:, window_start:] = adjoint
    index = np.arange(window, len(joint))
    joint[index, index] += weights[rows]
    result[rows] = _from_dense(inverse.T @ (joint[window:] @ covariance), num_bands)
    half = 0.5 * joint[window:, window:] @ transition + joint[window:, :window]
    half = transition.T @ half
    adjoint = joint[:window, :window] + half + half.T
  return -2.0 * result


def _from_dense(matrix: np.ndarray, num_bands: int) -> np.ndarray:
  """Undoes `dense_rows`: returns the bands of rows."""
  count, width = len(matrix), len(matrix) + num_bands - 1
  flat = np.zeros(count * (width + 1))
  flat[: count * width].reshape(count, width)[:, -matrix.shape[1] :] = matrix
  return flat.reshape(count, width + 1)[:, num_bands - 1 :: -1]
