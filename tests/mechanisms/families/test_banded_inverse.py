"""Strategies with a banded Toeplitz inverse, of two bands (DP-λCGD) too."""

import numpy as np
import pytest
import scipy.linalg

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import banded_inverse
from tests import oracle


def test_coefficients_are_those_of_the_inverse():
  strategy = banded_inverse.BandedInverse([2.0, -1.0, 0.5])
  noising = scipy.linalg.toeplitz([2.0, -1.0, 0.5, 0.0, 0.0], np.zeros(5))
  np.testing.assert_array_equal(strategy.noising_matrix(5), noising)
  np.testing.assert_allclose(strategy.strategy_matrix(5), np.linalg.inv(noising), atol=1e-15)
  assert strategy.max_rounds is None and strategy.memory_copies(5) == 0


def test_a_column_that_is_not_monotone_has_a_bound():
  """C has coefficients 1, 0, 0.8, 0, 0.64, …: its majorant is 1, 0.8, 0.8, 0.64, …"""
  strategy = banded_inverse.BandedInverse([1.0, 0.0, -0.8])
  column = strategy.column(6)
  np.testing.assert_allclose(column, [1, 0, 0.8, 0, 0.64, 0], atol=1e-15)
  above = banded_inverse.majorant(column)
  np.testing.assert_allclose(above, [1, 0.8, 0.8, 0.64, 0.64, 0], atol=1e-15)


@pytest.mark.parametrize('n, b, k', [(8, 1, 3), (9, 1, 4), (9, 3, 3)])
def test_the_earliest_pattern_of_such_a_column_is_not_the_worst(monkeypatch, n, b, k):
  strategy, schema = banded_inverse.BandedInverse([1.0, 0.0, -0.8]), dpftrl.MinSep(n, b, k)
  truth = oracle.worst(strategy.strategy_matrix(n), schema)
  earliest, _ = oracle.pattern_sensitivity(strategy, n, [np.arange(0, k * b, b)])
  assert earliest[0] < 0.95 * truth
  assert sensitivities.sensitivity(strategy, schema) == (pytest.approx(truth), 'exact')
  monkeypatch.setattr(banded_inverse, '_MOST_GRAM_ROUNDS', 0)
  value, kind = sensitivities.sensitivity(strategy, schema)
  assert kind == 'upper_bound' and value >= truth


@pytest.mark.parametrize('num_rounds', [1, 40, 3000])
def test_rounding_of_a_constant_column_changes_no_kind(num_rounds):
  """With coefficients that sum to 0 a column tends to a constant."""
  strategy = banded_inverse.BandedInverse([1.0, -0.7, -0.2, -0.1])
  bound = sensitivities.sensitivity(strategy, dpftrl.MinSep(num_rounds=num_rounds, min_sep=7))
  column, total = strategy.column(num_rounds), np.zeros(num_rounds)
  for j in range(0, num_rounds, 7):
    total[j:] += column[: num_rounds - j]
  reached = np.linalg.norm(total)
  assert bound.kind in ('exact', 'upper_bound')
  assert reached * (1 - 1e-12) <= bound.value <= reached * 1.01


def test_an_inverse_that_overflows_is_refused():
  with pytest.raises(ValueError, match='overflows within 2000 rounds'):
    banded_inverse.BandedInverse([1.0, -3.0]).strategy_matrix(2000)
