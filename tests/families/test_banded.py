"""Banded strategies: their matrix, their sensitivity, their errors, and what they refuse."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import banded, bands
from fl_dpftrl.participation import schemas
from tests import drawn, oracle

SGD = st.builds(
  workloads.Workload,
  momentum=st.sampled_from([0.0, 0.5, 0.95]),
  warmup_fraction=st.sampled_from([0.0, 0.15, 0.5]),
  cooldown_fraction=st.sampled_from([0.0, 0.25, 0.5]),
)


def example(n, num_bands):
  generator = np.random.default_rng(n)
  values = generator.normal(size=(n, num_bands)) / np.sqrt(4.0 * num_bands)
  values[:, 0] = 1.0 + values[:, 0] ** 2
  values[np.arange(n)[:, None] < np.arange(num_bands)] = 0.0
  return banded.Banded(values)


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


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data())
def test_is_exact_up_to_min_sep_bands(cls, data):
  schema = data.draw(drawn.schemas(cls))
  num_bands = data.draw(st.integers(1, min(schema.min_sep, schema.num_rounds)))
  strategy = banded.Banded(data.draw(drawn.bands(schema.num_rounds, num_bands)))
  result = sensitivity.sensitivity(strategy, schema)
  matrix = strategy.strategy_matrix(schema.num_rounds)
  assert result == (pytest.approx(oracle.worst(matrix, schema), rel=1e-12), 'exact')
  assert sensitivity.gram_sensitivity(matrix.T @ matrix, schema) == pytest.approx(result)


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data())
def test_entries_of_any_sign_are_never_too_small(cls, data):
  schema = data.draw(drawn.schemas(cls, 8))
  num_bands = data.draw(st.integers(1, schema.num_rounds))
  strategy = banded.Banded(data.draw(drawn.bands(schema.num_rounds, num_bands, low=-2.0)))
  found = oracle.worst_of_vectors(strategy.strategy_matrix(schema.num_rounds), schema)
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert value >= found * (1 - 1e-9)
  if strategy.num_bands <= schema.min_sep or schema.participations == 1:
    assert (value, kind) == (pytest.approx(found), 'exact')


@hypothesis.given(st.data(), st.integers(1, 12))
def test_gram_matrix(data, num_rounds):
  strategy = banded.Banded(
    data.draw(drawn.bands(num_rounds, data.draw(st.integers(1, num_rounds)), low=-2.0))
  )
  for n in {1, num_rounds // 2 or 1, num_rounds}:
    matrix = strategy.strategy_matrix(n)
    np.testing.assert_allclose(strategy.gram_matrix(n), matrix.T @ matrix, atol=1e-12)


def test_columns_count_and_not_rows():
  coefficients = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]])
  strategy = banded.Banded(coefficients)
  once = schemas.MinSep(num_rounds=3, max_participations=1)
  assert strategy.column_squares(3).tolist() == [5.0, 1.0, 1.0]
  assert sensitivity.sensitivity(strategy, once).value == math.sqrt(5.0)
  apart = schemas.MinSep(num_rounds=3, min_sep=2)
  assert sensitivity.sensitivity(strategy, apart).value == math.sqrt(6.0)


def test_a_shorter_run_cuts_columns_short():
  strategy = banded.Banded(np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]]))
  schema = schemas.MinSep(num_rounds=1)
  assert sensitivity.sensitivity(strategy, schema) == (1.0, 'exact')


@pytest.mark.slow
def test_sensitivity_of_more_rounds_than_a_dense_matrix_could_have():
  strategy = banded.Banded(
    np.tile([3.0, 0.0, 4.0], (10**5, 1)) * (np.arange(10**5)[:, None] >= np.arange(3))
  )
  schema = schemas.MinSep(num_rounds=10**5, min_sep=1000, max_participations=9)
  assert sensitivity.sensitivity(strategy, schema) == (15.0, 'exact')
  once = schemas.MinSep(num_rounds=10**5, max_participations=1)
  assert sensitivity.sensitivity(strategy, once) == (5.0, 'exact')


@hypothesis.given(st.integers(1, 90), st.integers(1, 90), SGD)
def test_errors_are_row_norms_of_the_decoder(n, num_bands, workload):
  strategy = example(n, min(num_bands, n))
  for rounds in {n, (n + 1) // 2}:
    expected = oracle.per_query_error(strategy, rounds, workload)
    np.testing.assert_allclose(
      error.per_query_error(strategy, rounds, workload), expected, rtol=1e-10
    )


@hypothesis.given(st.integers(1, 30), SGD)
def test_inverse_of_the_workload(n, workload):
  undone = bands.inverse_bands(workload, n)
  inverse = np.zeros((n, n))
  for j in range(min(undone.shape[1], n)):
    inverse[np.arange(j, n), np.arange(n - j)] = undone[j:, j]
  np.testing.assert_allclose(workload.matrix(n) @ inverse, np.eye(n), atol=1e-11)


def test_errors_of_a_hundred_thousand_rounds():
  """With one band of ones, the t-th sum has a variance of t."""
  ones = banded.Banded(np.ones((100_000, 1)))
  np.testing.assert_allclose(
    error.per_query_error(ones, 100_000), np.sqrt(np.arange(1.0, 100_001.0)), rtol=1e-10
  )


def test_errors_of_more_rounds_than_there_are_are_refused():
  with pytest.raises(ValueError, match='num_rounds=6.*5 rounds'):
    error.per_query_error(example(5, 2), 6)
