"""First columns of C and of its inverse."""

import numpy as np
import pytest

from fl_dpftrl.comparison import figures
from fl_dpftrl.families import banded, banded_toeplitz, blt, identity, tree_full, tree_online
from fl_dpftrl.strategies import files


@pytest.mark.parametrize(
  'strategy',
  [
    identity.Identity(),
    blt.BLT([0.9, 0.5], [0.2, 0.3]),
    banded.Banded(np.tril(np.ones((9, 3))) + np.eye(9, 3, -2)),
    banded_toeplitz.BandedToeplitz([1.0, 0.6, 0.3]),
    banded_toeplitz.BandedToeplitz([2.0, 0.6, 0.3], 9),
  ],
)
def test_columns_are_those_of_the_matrices(strategy):
  found = figures.first_columns(strategy, 9)
  for column, matrix in zip(found, (strategy.strategy_matrix(9), strategy.noising_matrix(9))):
    np.testing.assert_allclose(column, matrix[:, 0], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize(
  'strategy', [files.load_strategy('blt-b400'), banded_toeplitz.BandedToeplitz([1.0, 0.6, 0.3])]
)
def test_long_ones_are_cut(strategy):
  found = figures.first_columns(strategy, 10**9)
  assert found.strategy.shape == found.noising.shape == (10_000,)


def test_none_where_there_is_no_column_of_lags():
  assert figures.first_columns(tree_online.TreeOnline(), 8) is None
  assert figures.first_columns(tree_full.TreeFull(), 8) is None
  assert figures.first_columns(identity.Identity(), 10**6) is None
