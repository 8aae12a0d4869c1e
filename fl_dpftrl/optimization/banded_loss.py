"""Loss of banded strategies and its gradient, without constraints.

A banded C is held by columns: [j, u] is C[u + j, u], and 0 beyond the matrix. Columns are
rescaled to norms that make the sensitivity √k. Any values are thus feasible, and the loss is
the error.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from fl_dpftrl import workloads
from fl_dpftrl.families import bands, base

_STIFFEST = 30.0  # maximum stiffness relative to the mean

# Maps C by rows to its squared errors and a pull-back, which maps weights of these errors to
# the gradient of their weighted sum.
SquaredErrors = Callable[[np.ndarray], tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]]


class Norms(NamedTuple):
  """Groups of columns that share a norm, and constraints on the norms.

  Columns take turns of `min_sep`. Each of `participations` successive turns has its own norm,
  and their squares sum to `participations`. If both are 1, every column has norm 1.
  """

  min_sep: int = 1
  participations: int = 1

  def rescale(self, columns: np.ndarray) -> tuple[np.ndarray, Callable[[np.ndarray], np.ndarray]]:
    """Returns C with its norms, and the pull-back of gradients to columns.

    The relative squared norm of a turn of columns is the mean of the squares of the given
    columns.
    """
    squares = np.einsum('ju,ju->u', columns, columns)
    round_ = np.arange(squares.size)
    offset = round_ % self.min_sep
    turn = offset * self.participations + round_ // self.min_sep % self.participations
    count = np.bincount(turn)
    mean = np.bincount(turn, squares) / np.maximum(count, 1)
    total = np.bincount(np.arange(mean.size) // self.participations, mean)[offset]
    mean, count = mean[turn], count[turn]
    scale = np.sqrt(self.participations * mean / (total * squares))
    scaled = columns * scale

    def pull_back(gradient):
      pull = np.einsum('ju,ju->u', gradient, scaled)
      d_turn, d_offset = (np.bincount(group, pull)[group] for group in (turn, offset))
      d_squares = (d_turn / mean - d_offset / total) / count - pull / squares
      return gradient * scale + columns * d_squares

    return scaled, pull_back


def sgd_errors(workload: workloads.Workload, num_rounds: int) -> SquaredErrors:
  """Returns a function for the squared errors in O(n·bands²) time."""
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
  """Returns a function for the squared errors of any A, shape [queries, n], in O(n³) time."""

  def squared_errors(coefficients):
    inverse = base.lower_inverse(bands.to_matrix(coefficients))
    decoder = queries @ inverse

    def pull_back(weights):
      dense = decoder.T @ (weights[:, None] * decoder) @ inverse.T
      return -2.0 * bands.of_matrix(dense, coefficients.shape[1])

    return np.einsum('ij,ij->i', decoder, decoder), pull_back

  return squared_errors


class Loss(NamedTuple):
  """Weighted power mean of the squared errors of C.

  Attributes:
    norms: norms to which columns are rescaled.
    squared_errors: squared errors of C by rows, with a pull-back.
    power: 1 for the mean; high values approximate the maximum.
    weights: weights of the queries in the mean, shape [queries] or one for all; their mean is 1.
  """

  norms: Norms
  squared_errors: SquaredErrors
  power: int
  weights: np.ndarray | float = 1.0

  def value_and_grad(self, columns: np.ndarray) -> tuple[float, np.ndarray]:
    """Returns the loss of columns of any norms, and its gradient; infinity without an inverse."""
    scaled, pull_back = self.norms.rescale(columns)
    value, gradient = self._of_scaled(scaled)
    return value, pull_back(gradient)

  def stiffness(self, columns: np.ndarray) -> np.ndarray:
    """Returns the approximate curvature of the loss along each column, relative to the mean.

    At the optimal C it is the multiplier of the column's norm constraint. It is positive.
    """
    scaled, _ = self.norms.rescale(columns)
    _, gradient = self._of_scaled(scaled)
    slopes = -np.einsum('ju,ju->u', gradient, scaled)
    return np.clip(slopes / slopes.mean(), 1.0 / _STIFFEST, _STIFFEST)

  def raised_weights(self, columns: np.ndarray) -> np.ndarray:
    """Returns the weights in a mean of power 1 that has the same gradient, up to scale.

    Where C minimises this loss, it minimises the mean with these weights, shape [queries] and of
    mean 1. That mean is then a lower bound of the smallest maximum.
    """
    squares, _ = self.squared_errors(to_rows(self.norms.rescale(columns)[0]))
    weights = self.weights * (squares / squares.max()) ** (self.power - 1)
    return weights / weights.mean()

  def _of_scaled(self, columns):
    if not columns[0].all():
      return np.inf, columns
    with np.errstate(over='ignore', invalid='ignore'):
      squares, pull_back = self.squared_errors(to_rows(columns))
    largest = squares.max()
    if not np.isfinite(largest):
      return np.inf, columns
    shares = self.weights * (squares / largest) ** (self.power - 1)
    mean = float(np.mean(shares * squares / largest))
    value = float(largest * mean ** (1.0 / self.power))
    weights = shares * (value / (largest * mean * squares.size))
    return value, to_columns(pull_back(weights))


def to_rows(columns: np.ndarray) -> np.ndarray:
  """Converts C by columns to C by rows: [t, j] is C[t, t − j]."""
  rows = np.zeros_like(columns)
  for j, column in enumerate(columns):
    rows[j, j:] = column[: column.size - j]
  return rows.T


def to_columns(rows: np.ndarray) -> np.ndarray:
  """Converts C by rows, [t, j] is C[t, t − j], to C by columns."""
  columns = np.zeros(rows.shape[::-1])
  for j, column in enumerate(columns):
    column[: column.size - j] = rows[j:, j]
  return columns
