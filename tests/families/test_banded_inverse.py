"""Strategies with a banded Toeplitz inverse."""

import numpy as np
import pytest
import scipy.linalg

from fl_dpftrl import sensitivity
from fl_dpftrl.families import banded_inverse
from fl_dpftrl.participation import schemas

SCHEMA = schemas.MinSep(num_rounds=12, min_sep=4, max_participations=3)


def test_coefficients_are_those_of_the_inverse():
  strategy = banded_inverse.BandedInverse([2.0, -1.0, 0.5])
  noising = scipy.linalg.toeplitz([2.0, -1.0, 0.5, 0.0, 0.0], np.zeros(5))
  np.testing.assert_array_equal(strategy.noising_matrix(5), noising)
  np.testing.assert_allclose(strategy.strategy_matrix(5), np.linalg.inv(noising), atol=1e-15)
  assert strategy.max_rounds is None and strategy.memory_copies(5) == 0


def test_two_bands_give_geometric_columns_of_exact_sensitivity():
  strategy = banded_inverse.BandedInverse([1.0, -0.7])
  found = sensitivity.sensitivity(strategy, SCHEMA)
  column = 0.7 ** np.arange(12)
  total = sum(np.concatenate([np.zeros(4 * j), column[: 12 - 4 * j]]) for j in range(3))
  assert found == (pytest.approx(np.linalg.norm(total)), 'exact')


def test_a_column_that_is_not_monotone_has_a_bound():
  """C has coefficients 1, 0, 0.8, 0, 0.64, …: its majorant is 1, 0.8, 0.8, 0.64, …"""
  strategy = banded_inverse.BandedInverse([1.0, 0.0, -0.8])
  column = strategy.column(6)
  np.testing.assert_allclose(column, [1, 0, 0.8, 0, 0.64, 0], atol=1e-15)
  above = banded_inverse.majorant(column)
  np.testing.assert_allclose(above, [1, 0.8, 0.8, 0.64, 0.64, 0], atol=1e-15)


@pytest.mark.parametrize('num_rounds', [1, 40, 3000])
def test_rounding_of_a_constant_column_changes_no_kind(num_rounds):
  """With coefficients that sum to 0 a column tends to a constant."""
  strategy = banded_inverse.BandedInverse([1.0, -0.7, -0.2, -0.1])
  schema = schemas.MinSep(num_rounds=num_rounds, min_sep=7)
  found = sensitivity.sensitivity(strategy, schema)
  reached = strategy.column(num_rounds)
  total = np.zeros(num_rounds)
  for j in range(0, num_rounds, 7):
    total[j:] += reached[: num_rounds - j]
  assert found.kind in ('exact', 'upper_bound')
  assert found.value == pytest.approx(np.linalg.norm(total), rel=1e-2)
  assert found.value >= np.linalg.norm(total) * (1 - 1e-12)


@pytest.mark.parametrize(
  'coefficients, message',
  [
    ([], r'shape \(0,\)'),
    ([[1.0]], r'shape \(1, 1\)'),
    ([1.0, np.nan], 'finite'),
    ([0.0, 1.0], 'positive one, got 0.0'),
  ],
)
def test_refuses_other_coefficients(coefficients, message):
  with pytest.raises(ValueError, match=message):
    banded_inverse.BandedInverse(coefficients)


def test_an_inverse_that_overflows_is_refused():
  with pytest.raises(ValueError, match='overflows within 2000 rounds'):
    banded_inverse.BandedInverse([1.0, -3.0]).strategy_matrix(2000)
