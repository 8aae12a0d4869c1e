"""Banded strategies refuse what is not banded, or has no inverse."""

import numpy as np
import pytest

from fl_dpftrl.families import banded


def test_coefficients_are_diagonals():
  strategy = banded.Banded([[2.0, 0.0], [3.0, 5.0], [7.0, 11.0]])
  np.testing.assert_array_equal(strategy.strategy_matrix(3), [[2, 0, 0], [5, 3, 0], [0, 11, 7]])
  assert strategy.num_bands == 2
  assert strategy.max_rounds == 3
  assert strategy.memory_copies(3) == 1


@pytest.mark.parametrize(
  'coefficients, message',
  [
    (np.ones(3), 'shape'),
    (np.ones((0, 0)), 'shape'),
    (np.tri(2, 3), 'bands'),
    ([[1.0], [np.nan]], 'finite'),
    ([[1.0], [np.inf]], 'finite'),
    ([[1.0], [0.0]], 'positive'),
    ([[1.0], [-2.0]], 'positive'),
    ([[1.0, 0.5], [1.0, 0.5]], 't < j'),
  ],
)
def test_refuses(coefficients, message):
  with pytest.raises(ValueError, match=message):
    banded.Banded(coefficients)


def test_keeps_its_own_copy():
  coefficients = np.ones((3, 1))
  strategy = banded.Banded(coefficients)
  coefficients[1] = 9.0
  np.testing.assert_array_equal(strategy.strategy_matrix(3), np.eye(3))
