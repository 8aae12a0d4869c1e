"""Banded Toeplitz strategies: their matrix, sensitivity and errors, and what they refuse."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities, workload_error, workloads
from fl_dpftrl.mechanisms.families import banded_toeplitz
from fl_dpftrl.mechanisms.sensitivities import toeplitz_columns as toeplitz_sensitivity
from tests import drawn, oracle


def test_the_matrix_is_the_coefficients_along_its_diagonals():
  strategy = banded_toeplitz.BandedToeplitz([3.0, 2.0])
  np.testing.assert_array_equal(strategy.strategy_matrix(3), [[3, 0, 0], [2, 3, 0], [0, 2, 3]])


def test_columns_are_normalised_and_not_rows():
  matrix = banded_toeplitz.BandedToeplitz([4.0, 3.0], 3).strategy_matrix(3)
  np.testing.assert_allclose(matrix, [[0.8, 0, 0], [0.6, 0.8, 0], [0, 0.6, 1.0]])
  np.testing.assert_allclose(np.linalg.norm(matrix, axis=0), 1.0)
  assert np.linalg.norm(matrix, axis=1).max() > 1.1


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@pytest.mark.parametrize('low', [0.0, -2.0])
@hypothesis.given(st.data(), st.one_of(st.none(), st.integers(0, 3)))
def test_the_bound_from_columns_of_one_shape_holds_alone(cls, low, data, more):
  """Without the bound for any X, which is only computed up to 1024 rounds."""
  schema = data.draw(drawn.schemas(cls, 9 if low == 0.0 else 6))
  values = st.floats(low, 2.0).map(lambda x: round(x, 2))
  coefficients = data.draw(st.lists(values, min_size=1, max_size=11))
  coefficients[0] = abs(coefficients[0]) + 0.1
  normalized = None if more is None else schema.num_rounds + more
  strategy = banded_toeplitz.BandedToeplitz(coefficients, normalized)
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(banded_toeplitz, '_MOST_GRAM_ROUNDS', 0)
    value, kind = sensitivities.sensitivity(strategy, schema)
  truth = oracle.worst_of_vectors(strategy.strategy_matrix(schema.num_rounds), schema)
  assert value >= truth * (1 - 1e-9)
  if kind == 'exact':
    assert value == pytest.approx(truth, rel=1e-9 if low == 0.0 else 1e-3)


@pytest.mark.parametrize(
  'n, b, k', [(50, 3, None), (50, 3, 4), (61, 7, None), (200, 1, None), (60, 9, 6), (200, 2, 99)]
)
def test_periods_that_repeat_are_counted_and_not_summed(n, b, k):
  schema = dpftrl.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  coefficients = np.sort(np.random.default_rng(0).uniform(size=10))[::-1]
  square, grad = toeplitz_sensitivity.earliest_square(coefficients, schema)
  matrix = banded_toeplitz.BandedToeplitz(coefficients).strategy_matrix(n)
  columns = np.arange(schema.participations) * b
  total = matrix[:, columns].sum(axis=1)
  assert square == pytest.approx(float(total @ total), rel=1e-13)
  for i, way in enumerate(np.eye(10)):
    other = banded_toeplitz.BandedToeplitz([1.0, *way[1:]]).strategy_matrix(n)
    if i:
      other = other - np.eye(n)
    slope = 2.0 * total @ other[:, columns].sum(axis=1)
    assert grad[i] == pytest.approx(slope, rel=1e-12)


def test_beyond_min_sep_an_interior_that_decreases_is_exact():
  """The coefficients are not monotone, but what two columns share is."""
  coefficients = np.array([1.0, 1.2, 0.9, 0.6, 0.3])
  schema = dpftrl.MinSep(num_rounds=5000, min_sep=2, max_participations=100)
  strategy = banded_toeplitz.BandedToeplitz(coefficients)
  value, kind = sensitivities.sensitivity(strategy, schema)
  total = np.zeros(300)
  for start in range(0, 200, 2):
    total[start : start + 5] += coefficients
  assert (value, kind) == (pytest.approx(np.linalg.norm(total)), 'exact')


@pytest.mark.parametrize('workload', [workloads.Workload(), workloads.Workload(0.9)])
@pytest.mark.parametrize('normalized', [False, True])
def test_the_limit_stands_for_the_tail(monkeypatch, workload, normalized):
  num_rounds = 30_000
  strategy = banded_toeplitz.BandedToeplitz(
    1.0 / np.arange(1.0, 13.0) + 0.05, num_rounds if normalized else None
  )
  short = workload_error.error(strategy, num_rounds, workload)
  queries = workload_error.per_query_error(strategy, num_rounds, workload)
  monkeypatch.setattr('fl_dpftrl.mechanisms.toeplitz._ALWAYS_WHOLE', num_rounds)
  whole = workload_error.error(strategy, num_rounds, workload)
  assert short == pytest.approx(whole, rel=1e-9)
  np.testing.assert_allclose(
    queries, workload_error.per_query_error(strategy, num_rounds, workload), rtol=1e-9
  )


def test_refuses_errors_that_cannot_be_computed():
  schedule = workloads.Workload(0.0, cooldown_fraction=0.5)
  with pytest.raises(ValueError, match='num_rounds=1000000'):
    workload_error.error(banded_toeplitz.BandedToeplitz([1.0]), 10**6, schedule)
  with pytest.raises(ValueError, match='num_rounds=9.*8 rounds'):
    workload_error.error(banded_toeplitz.BandedToeplitz([1.0], 8), 9)


def test_sensitivity_of_a_billion_rounds():
  schema = dpftrl.MinSep(num_rounds=10**9, min_sep=100)
  coefficients = 1.0 / np.arange(1.0, 301.0)
  value, kind = sensitivities.sensitivity(banded_toeplitz.BandedToeplitz(coefficients), schema)
  period = coefficients.reshape(3, 100).sum(axis=0)
  assert kind == 'exact'
  assert value == pytest.approx(math.sqrt(1e7 * period @ period), rel=1e-6)
  mixed = banded_toeplitz.BandedToeplitz(coefficients * (-1.0) ** np.arange(300))
  bound, kind = sensitivities.sensitivity(mixed, schema)
  assert kind in ('exact', 'upper_bound')
  assert bound <= value * (1 + 1e-6)


def test_errors_of_a_billion_rounds():
  """Nearly all rounds are at the limit, and errors are those of a constant."""
  strategy = banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.25])
  result = workload_error.error(strategy, 10**9)
  assert result.max == pytest.approx(np.sqrt(1e9) / 1.75, rel=1e-6)
  assert result.rms == pytest.approx(np.sqrt(1e9 / 2) / 1.75, rel=1e-6)
  normalised = banded_toeplitz.BandedToeplitz(strategy.coefficients, 10**9)
  norm = np.linalg.norm(strategy.coefficients)
  assert workload_error.error(normalised, 10**9).max == pytest.approx(norm * result.max, rel=1e-6)
