"""First columns of strategies, which weigh the noise of earlier rounds."""

import functools
from typing import NamedTuple

import numpy as np
import scipy.linalg

from fl_dpftrl.families import banded_toeplitz, base, blt, power_series, tree_full

MOST_LAGS = 10_000
_LARGEST_MATRIX = 4096


class Columns(NamedTuple):
  """First columns of C and of its inverse, indexed by lag: shape [lags] each."""

  strategy: np.ndarray
  noising: np.ndarray


@functools.singledispatch
def first_columns(strategy: base.Strategy, num_rounds: int) -> Columns | None:
  """Returns the first columns of C and N over at most 10,000 lags.

  Returns:
    None if C is not lower triangular or too large to be written out, and for
    trees, whose entries depend on nodes and not on lags.
  """
  if num_rounds > _LARGEST_MATRIX or strategy.num_noise_rows(num_rounds) != num_rounds:
    return None
  matrix = strategy.strategy_matrix(num_rounds)
  if np.triu(matrix, 1).any():
    return None
  impulse = np.zeros(num_rounds)
  impulse[0] = 1.0
  noising = scipy.linalg.solve_triangular(matrix, impulse, lower=True)
  return Columns(matrix[:, 0], noising)


@first_columns.register
def _(strategy: blt.BLT, num_rounds: int) -> Columns:
  lags = min(num_rounds, MOST_LAGS)
  return Columns(strategy.coefficients(lags), strategy.inverse_coefficients(lags))


@first_columns.register
def _(strategy: tree_full.TreeFull, num_rounds: int) -> None:
  del strategy, num_rounds


@first_columns.register
def _(strategy: banded_toeplitz.BandedToeplitz, num_rounds: int) -> Columns:
  lags = min(num_rounds, MOST_LAGS)
  column, norms = np.zeros(lags), strategy.column_norms(lags)
  column[: strategy.num_bands] = strategy.coefficients[:lags]
  inverse = power_series.reciprocal(strategy.coefficients, lags)
  return Columns(column / norms[0], norms * inverse)
