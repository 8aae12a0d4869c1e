"""First columns of strategies, which weigh the noise of earlier rounds."""

from typing import NamedTuple

import numpy as np
import scipy.linalg

from fl_dpftrl.families import banded_toeplitz, base, blt, tree_full

MOST_LAGS = 10_000
_LARGEST_MATRIX = 4096


class Columns(NamedTuple):
  """First columns of C and of its inverse, indexed by lag: shape [lags] each."""

  strategy: np.ndarray
  noising: np.ndarray


def first_columns(strategy: base.Strategy, num_rounds: int) -> Columns | None:
  """Returns the first columns of C and N over at most 10,000 lags.

  Returns:
    None if C is not lower triangular or too large to be written out, and for trees, whose
    entries depend on nodes and not on lags.
  """
  lags = min(num_rounds, MOST_LAGS)
  if isinstance(strategy, blt.BLT):
    return Columns(strategy.column(lags), strategy.noising_column(lags))
  if isinstance(strategy, banded_toeplitz.BandedToeplitz):
    column, norms = np.zeros(lags), strategy.column_norms(lags)
    column[: strategy.num_bands] = strategy.coefficients[:lags]
    return Columns(column / norms[0], norms * strategy.inverse_coefficients(lags))
  if (
    isinstance(strategy, tree_full.TreeFull)
    or num_rounds > _LARGEST_MATRIX
    or strategy.num_noise_rows(num_rounds) != num_rounds
  ):
    return None
  matrix = strategy.strategy_matrix(num_rounds)
  if np.triu(matrix, 1).any():
    return None
  noising = scipy.linalg.solve_triangular(matrix, np.eye(1, num_rounds)[0], lower=True)
  return Columns(matrix[:, 0], noising)
