"""Any X, by its bounds and by search, against every pattern."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import sensitivity
from fl_dpftrl.families import banded
from fl_dpftrl.participation import schemas
from fl_dpftrl.sensitivity import gram as search
from tests import drawn, oracle


@hypothesis.given(st.data())
def test_banded_beyond_min_sep_is_bounded(data):
  schema = data.draw(drawn.schemas())
  strategy = banded.Banded(data.draw(drawn.bands(schema.num_rounds, schema.num_rounds)))
  check_bound(strategy, strategy.strategy_matrix(schema.num_rounds), schema)


@hypothesis.given(st.data())
def test_any_matrix_without_negative_entries_is_bounded(data):
  schema = data.draw(drawn.schemas())
  matrix = data.draw(drawn.matrices(4, schema.num_rounds))
  hypothesis.assume(matrix.any())
  check_bound(oracle.AnyMatrix(matrix), matrix, schema)


def check_bound(strategy, matrix, schema):
  """At least the truth, exact where it says so, never above the paper's."""
  result = sensitivity.sensitivity(strategy, schema)
  truth = oracle.worst(matrix, schema)
  assert result.value >= truth * (1 - 1e-12)
  if result.kind == 'exact':
    assert result.value == pytest.approx(truth)
  else:
    assert result.kind == 'upper_bound'
  if schema.participations <= 2:
    assert result.kind == 'exact'
  gram = np.abs(matrix.T @ matrix)
  inner = [max(row[list(p)].sum() for p in oracle.patterns(schema)) for row in gram]
  outer = max(sum(inner[i] for i in p) for p in oracle.patterns(schema))
  assert result.value <= math.sqrt(outer) * (1 + 1e-12)


@hypothesis.given(st.data())
def test_fixed_separation_is_exact_without_negative_entries(data):
  schema = data.draw(drawn.schemas(schemas.FixedSeparation))
  matrix = data.draw(drawn.matrices(schema.num_rounds, schema.num_rounds))
  hypothesis.assume(matrix.any())
  result = sensitivity.sensitivity(oracle.AnyMatrix(matrix), schema)
  assert result.kind == 'exact'
  assert result.value == pytest.approx(oracle.worst(matrix, schema))


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data())
def test_vector_updates_are_bounded_where_entries_are_negative(cls, data):
  schema = data.draw(drawn.schemas(cls, most_rounds=6))
  matrix = data.draw(drawn.matrices(schema.num_rounds, schema.num_rounds, low=-2.0))
  hypothesis.assume(np.abs(matrix).sum() > 0.1)
  result = sensitivity.sensitivity(oracle.AnyMatrix(matrix), schema)
  found = oracle.worst_of_vectors(matrix, schema)
  assert result.value >= found * (1 - 1e-9)
  if result.kind == 'exact':
    assert result.value == pytest.approx(found, rel=1e-4)


NEGATIVE = np.full((3, 3), -0.5) + 1.5 * np.eye(3)


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
def test_neither_zeros_and_ones_nor_signs_are_enough(cls):
  """X is singular, so that one row of three vectors at 120° is C."""
  schema = cls(num_rounds=3)
  factor = np.linalg.cholesky(NEGATIVE + 1e-15 * np.eye(3)).T
  signs = max(np.linalg.norm(factor @ s) for s in itertools.product((-1, 0, 1), repeat=3))
  ones = np.linalg.norm(factor @ np.ones(3))
  vectors = oracle.worst_of_vectors(factor, schema)
  result = sensitivity.gram_sensitivity(NEGATIVE, schema)
  assert ones == pytest.approx(0.0, abs=1e-6)
  assert signs == pytest.approx(2.0)
  assert vectors == pytest.approx(math.sqrt(4.5))
  assert result == (pytest.approx(math.sqrt(4.5)), 'exact')


def test_two_participations_are_exact_also_where_entries_are_negative():
  schema = schemas.MinSep(num_rounds=3, max_participations=2)
  result = sensitivity.gram_sensitivity(NEGATIVE, schema)
  assert result == (pytest.approx(math.sqrt(3.0)), 'exact')


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
def test_refuses_more_rounds_than_the_strategy_has(cls):
  strategy = banded.Banded(np.ones((4, 1)))
  for min_sep in (1, 3):
    with pytest.raises(ValueError, match='num_rounds=5.*4 rounds'):
      sensitivity.sensitivity(strategy, cls(num_rounds=5, min_sep=min_sep))


@pytest.mark.parametrize('gram', [np.eye(3), np.ones(4), np.full((4, 4), np.nan)])
def test_refuses_other_grams(gram):
  with pytest.raises(ValueError, match='gram'):
    sensitivity.gram_sensitivity(gram, schemas.MinSep(num_rounds=4))


def test_fixed_separation_may_start_late():
  """The heavy columns lie beyond the first min_sep rounds."""
  gram = np.diag([1.0, 1.0, 1.0, 1.0, 9.0, 9.0])
  schema = schemas.FixedSeparation(num_rounds=6, max_participations=2)
  assert sensitivity.gram_sensitivity(gram, schema).value == math.sqrt(18.0)


@pytest.fixture
def no_search(monkeypatch):
  monkeypatch.setattr(search, '_MOST_STEPS', -1)


def test_the_root_is_taken_once(no_search):
  """Rooting the inner maxima as well would give √27 rather than 9."""
  del no_search
  ones = oracle.AnyMatrix(np.ones((1, 9)))
  result = sensitivity.sensitivity(ones, schemas.MinSep(num_rounds=9))
  assert result == (pytest.approx(9.0), 'upper_bound')


@hypothesis.given(st.data())
@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
def test_the_bound_by_rows_is_one(no_search, data):
  del no_search
  schema = data.draw(drawn.schemas())
  matrix = data.draw(drawn.matrices(4, schema.num_rounds))
  hypothesis.assume(matrix.any())
  check_bound(oracle.AnyMatrix(matrix), matrix, schema)


@pytest.mark.parametrize('power', [1, 4])
@pytest.mark.parametrize('n, b, k', [(15, 1, 4), (20, 3, 6), (24, 4, 5)])
def test_a_search_that_ends_is_exact(power, n, b, k):
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  matrix = np.random.default_rng(n).uniform(size=(n, n)) ** power
  found, exact = search.worst_square(matrix.T @ matrix, b, k)
  assert exact
  assert found == pytest.approx(oracle.worst(matrix, schema) ** 2)


@pytest.mark.parametrize('visits', [0, 3000])
def test_a_search_that_is_cut_short_is_a_bound(monkeypatch, visits):
  generator = np.random.default_rng(1)
  matrix = np.tril(generator.uniform(size=(18, 18))) ** 8
  schema = schemas.MinSep(num_rounds=18, min_sep=2)
  whole = search.worst_square(matrix.T @ matrix, 2, 9)
  monkeypatch.setattr(search, '_MOST_VISITS', visits)
  cut, _ = search.worst_square(matrix.T @ matrix, 2, 9)
  truth = oracle.worst(matrix, schema) ** 2
  assert whole == (pytest.approx(truth), True)
  assert cut >= truth * (1 - 1e-12)


def test_tighter_than_the_bound_by_rows():
  """Columns of a square-root C, normalised, overlap beyond min_sep."""
  c = np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / np.arange(1, 256)]))
  matrix = np.tril(c[np.abs(np.subtract.outer(np.arange(256), np.arange(256)))])
  matrix /= np.linalg.norm(matrix, axis=0)
  schema = schemas.MinSep(num_rounds=256, min_sep=40, max_participations=3)
  result = sensitivity.gram_sensitivity(matrix.T @ matrix, schema)
  assert result == (pytest.approx(2.2250828, abs=1e-6), 'exact')


@pytest.mark.parametrize('n, b, k', [(40, 5, 6), (64, 20, None)])
def test_signed_entries_of_longer_runs_are_bounded(n, b, k):
  generator = np.random.default_rng(n)
  matrix = np.tril(generator.normal(size=(n, n))) + 2.0 * np.eye(n)
  gram = matrix.T @ matrix
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  value, _ = sensitivity.gram_sensitivity(gram, schema)
  for _ in range(20):
    size = schema.participations
    slack = generator.multinomial(n - 1 - (size - 1) * b, np.full(size + 1, 1.0 / (size + 1)))
    p = np.cumsum(slack[:size] + np.append(0, np.full(size - 1, b)))
    assert oracle.ascent(gram[np.ix_(p, p)]) <= value**2 * (1 + 1e-10)
  assert value**2 < np.abs(gram).sum()
