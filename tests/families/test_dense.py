import numpy as np
import pytest

from fl_dpftrl.families import dense

GOOD = np.array([[1.0, 0.0], [0.5, 2.0]])


def test_factor_of_a_gram_matrix():
  generator = np.random.default_rng(0)
  root = generator.normal(size=(9, 7))
  strategy = dense.from_gram(root.T @ root)
  matrix = strategy.strategy_matrix(7)
  np.testing.assert_allclose(matrix.T @ matrix, root.T @ root)
  assert not np.triu(matrix, 1).any() and (np.diagonal(matrix) > 0).all()


def test_refuses_a_gram_matrix_that_is_none():
  with pytest.raises(np.linalg.LinAlgError):
    dense.from_gram(np.array([[1.0, 2.0], [2.0, 1.0]]))


def test_a_change_of_what_it_gives_does_not_reach_it():
  strategy = dense.Dense(GOOD)
  strategy.strategy_matrix(2)[0, 0] = 9.0
  np.testing.assert_array_equal(strategy.coefficients, GOOD)


@pytest.mark.parametrize(
  'wrong, message',
  [
    (np.ones(3), 'shape'),
    (np.ones((2, 3)), 'shape'),
    (np.zeros((0, 0)), 'shape'),
    ([[np.nan]], 'finite'),
    ([[1.0, 0.0], [0.0, 0.0]], 'positive diagonal'),
    ([[1.0, 0.1], [0.0, 1.0]], '0 above the diagonal'),
  ],
)
def test_refuses_other_matrices(wrong, message):
  with pytest.raises(ValueError, match=message):
    dense.Dense(wrong)
