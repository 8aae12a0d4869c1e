"""Dense and low-rank strategies: what they refuse, and their sensitivity."""

import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import dense, low_rank

GOOD = np.array([[1.0, 0.0], [0.5, 2.0]])


def test_factor_of_a_gram_matrix():
  root = np.random.default_rng(0).normal(size=(9, 7))
  matrix = dense.from_gram(root.T @ root).strategy_matrix(7)
  np.testing.assert_allclose(matrix.T @ matrix, root.T @ root)
  assert not np.triu(matrix, 1).any() and (np.diagonal(matrix) > 0).all()
  with pytest.raises(np.linalg.LinAlgError):
    dense.from_gram(np.array([[1.0, 2.0], [2.0, 1.0]]))


@pytest.mark.parametrize('cls', [dpftrl.MinSep, dpftrl.FixedSeparation])
def test_entries_that_are_zero_but_for_rounding_are_exact(cls):
  """X of 3 rounds a device, whose columns are orthogonal up to 1e-17."""
  gram = np.eye(6) + np.diag([0.4, -0.3, 0.5, 0.2, 0.1], 1)
  gram = np.tril(gram + gram.T - np.eye(6)) + np.triu(gram, 1)
  result = sensitivities.sensitivity(dense.from_gram(gram), cls(num_rounds=6, min_sep=2))
  assert result == (pytest.approx(math.sqrt(3.0)), 'exact')


def test_bands_and_products():
  strategy = low_rank.LowRank(
    near=[[1.0, 0.0], [2.0, 0.5], [3.0, 0.25]],
    row_factors=[[7.0], [7.0], [2.0]],
    column_factors=[[3.0], [7.0], [7.0]],
  )
  np.testing.assert_array_equal(
    strategy.noising_matrix(3), [[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [6.0, 0.25, 3.0]]
  )
  assert (strategy.num_bands, strategy.rank, strategy.memory_copies(3)) == (2, 1, 1)
