"""The loss of banded strategies and its gradient, free of constraints.

A banded C is held by columns: [j, u] is C[u + j, u], and 0 beyond the matrix.
Its columns are rescaled to the norms that make the sensitivity √k, so that any
numbers will do, and the loss is the error.
"""

from typing import Callable, NamedTuple

import numpy as np
import scipy.linalg

from fl_dpftrl import workloads
from fl_dpftrl.families import bands

_STIFFEST = 30.0  # relative to the mean

# From C by rows to squared errors, and what takes weights of these to the
# gradient of their weighted sum.
SquaredErrors = Callable[
    [np.ndarray], tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]
]


class Norms(NamedTuple):
  """Which columns share a norm, and what norms add up to.

  Columns `min_sep` apart take turns: each of `participations` turns has a norm
  of its own, and the squares of these add up to `participations`. With 1 and 1
  every column has norm 1.
  """

  min_sep: int = 1
  participations: int = 1

  def rescale(
      self, columns: np.ndarray
  ) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """C with its norms, and what takes gradients in it to those in columns.

    Of every turn of an offset, relative to its other turns, the square is the
    mean of the squares that columns come with.
    """
    squares = np.einsum('ju,ju->u', columns, columns)
    round_ = np.arange(squares.size)
    offset = round_ % self.min_sep
    turn = (
        offset * self.participations
        + round_ // self.min_sep % self.participations
    )
    count = np.bincount(turn)
    mean = _group_sums(squares, turn) / np.maximum(count, 1)
    total = _group_sums(
        mean, np.arange(mean.size) // self.participations
    )[offset]
    mean, count = mean[turn], count[turn]
    scale = np.sqrt(self.participations * mean / (total * squares))
    scaled = columns * scale

    def pull_back(gradient):
      pull = np.einsum('ju,ju->u', gradient, scaled)
      of_turn, of_offset = (
          _group_sums(pull, group)[group] for group in (turn, offset)
      )
      of_squares = (
          (of_turn / mean - of_offset / total) / count - pull / squares
      )
      return gradient * scale + columns * of_squares

    return scaled, pull_back


def _group_sums(values: np.ndarray, group: np.ndarray) -> np.ndarray:
  return np.bincount(group, weights=values)


def sgd_errors(
    workload: workloads.Workload, num_rounds: int
) -> SquaredErrors:
  """Squared errors in O(n·bands²) time."""
  right = bands.inverse_bands(workload, num_rounds)

  def squared_errors(coefficients):
    product = bands.multiply(coefficients, right)
    steps = list(bands.blocks(product))

    def pull_back(weights):
      gradient = bands.gradient(steps, weights, product.shape[1])
      return bands.multiply_gradient(gradient, right)

    return np.concatenate([step.squares for step in steps]), pull_back

  return squared_errors


def dense_errors(queries: np.ndarray) -> SquaredErrors:
  """Squared errors of any A, of shape [queries, num_rounds], in O(n³) time."""

  def squared_errors(coefficients):
    num_rounds, num_bands = coefficients.shape
    matrix = np.zeros((num_rounds, num_rounds))
    for j in range(num_bands):
      np.fill_diagonal(matrix[j:], coefficients[j:, j])
    inverse = scipy.linalg.solve_triangular(
        matrix, np.eye(num_rounds), lower=True
    )
    decoder = queries @ inverse

    def pull_back(weights):
      dense = decoder.T @ (weights[:, None] * decoder) @ inverse.T
      gradient = np.zeros_like(coefficients)
      for j in range(num_bands):
        gradient[j:, j] = -2.0 * np.diagonal(dense, -j)
      return gradient

    return np.einsum('ij,ij->i', decoder, decoder), pull_back

  return squared_errors


class Loss(NamedTuple):
  """The power mean of the squared errors of a C.

  Attributes:
    norms: what columns are rescaled to.
    squared_errors: of C by rows.
    power: 1 for the mean, high for nearly the maximum.
  """

  norms: Norms
  squared_errors: SquaredErrors
  power: int

  def value_and_grad(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
    """For C by columns, shape [num_bands, num_rounds], of any norms.

    Returns:
      Value and gradient in columns; infinity where C has no inverse.
    """
    scaled, pull_back = self.norms.rescale(columns)
    value, gradient = self._of_scaled(scaled)
    return value, pull_back(gradient)

  def stiffness(self, columns: np.ndarray) -> np.ndarray:
    """About how fast the loss turns along each column, relative to the mean.

    At the best C it is the multiplier of the norm of the column.

    Returns:
      Shape [num_rounds], positive.
    """
    scaled, _ = self.norms.rescale(columns)
    _, gradient = self._of_scaled(scaled)
    slopes = -np.einsum('ju,ju->u', gradient, scaled)
    return np.clip(slopes / slopes.mean(), 1.0 / _STIFFEST, _STIFFEST)

  def _of_scaled(self, columns):
    if not columns[0].all():
      return np.inf, columns
    with np.errstate(over='ignore', invalid='ignore'):
      squares, pull_back = self.squared_errors(to_rows(columns))
    largest = squares.max()
    if not np.isfinite(largest):
      return np.inf, columns
    shares = (squares / largest) ** (self.power - 1)
    mean = float(np.mean(shares * squares / largest))
    value = float(largest * mean ** (1.0 / self.power))
    weights = shares * (value / (largest * mean * squares.size))
    return value, to_columns(pull_back(weights))


def to_rows(columns: np.ndarray) -> np.ndarray:
  """[t, j], C[t, t − j], from C by columns."""
  num_bands, num_rounds = columns.shape
  rows = np.zeros((num_bands, num_rounds))
  for j in range(num_bands):
    rows[j, j:] = columns[j, : num_rounds - j]
  return rows.T


def to_columns(rows: np.ndarray) -> np.ndarray:
  """C by columns from [t, j], C[t, t − j]."""
  num_rounds, num_bands = rows.shape
  columns = np.zeros((num_bands, num_rounds))
  for j in range(num_bands):
    columns[j, : num_rounds - j] = rows[j:, j]
  return columns
