"""Any X, by its bounds and by search, against every pattern."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import banded
from fl_dpftrl.mechanisms.sensitivities import gram_search
from tests import drawn, oracle


def check_bound(matrix, schema):
  """At least the truth, exact where it says so, never above the paper's."""
  result = sensitivities.sensitivity(oracle.AnyMatrix(matrix), schema)
  truth = oracle.worst(matrix, schema)
  assert result.value >= truth * (1 - 1e-12)
  if schema.participations <= 2 or isinstance(schema, dpftrl.FixedSeparation):
    assert result.kind == 'exact'
  if result.kind == 'exact':
    assert result.value == pytest.approx(truth)
  gram = np.abs(matrix.T @ matrix)
  inner = [max(row[list(p)].sum() for p in oracle.patterns(schema)) for row in gram]
  outer = max(sum(inner[i] for i in p) for p in oracle.patterns(schema))
  assert result.value <= math.sqrt(outer) * (1 + 1e-12)


@pytest.mark.parametrize('steps', [gram_search._MOST_STEPS, -1], ids=['search', 'bound by rows'])
@hypothesis.given(st.data(), st.booleans())
def test_any_matrix_without_negative_entries_is_bounded(steps, data, triangular):
  schema = data.draw(drawn.schemas())
  if triangular:
    matrix = banded.Banded(data.draw(drawn.bands(schema.num_rounds, schema.num_rounds)))
    matrix = matrix.strategy_matrix(schema.num_rounds)
  else:
    matrix = data.draw(drawn.matrices(4, schema.num_rounds))
  hypothesis.assume(matrix.any())
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(gram_search, '_MOST_STEPS', steps)
    check_bound(matrix, schema)


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
@hypothesis.given(st.data())
def test_vector_updates_are_bounded_where_entries_are_negative(cls, data):
  schema = data.draw(drawn.schemas(cls, most_rounds=6))
  matrix = data.draw(drawn.matrices(schema.num_rounds, schema.num_rounds, low=-2.0))
  hypothesis.assume(np.abs(matrix).sum() > 0.1)
  result = sensitivities.sensitivity(oracle.AnyMatrix(matrix), schema)
  truth = oracle.worst_of_vectors(matrix, schema)
  assert result.value >= truth * (1 - 1e-9)
  if schema.participations <= 2:
    assert result.kind == 'exact'
  if result.kind == 'exact':
    assert result.value == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize('cls', drawn.SCHEMAS)
def test_refuses_more_rounds_than_the_strategy_has(cls):
  with pytest.raises(ValueError, match='num_rounds=5.*4 rounds'):
    sensitivities.sensitivity(banded.Banded(np.ones((4, 1))), cls(num_rounds=5, min_sep=3))


@pytest.mark.parametrize('gram', [np.eye(3), np.ones(4), np.full((4, 4), np.nan)])
def test_refuses_other_grams(gram):
  with pytest.raises(ValueError, match='gram'):
    sensitivities.gram_sensitivity(gram, dpftrl.MinSep(num_rounds=4))


def test_fixed_separation_may_start_late():
  """The heavy columns lie beyond the first min_sep rounds."""
  gram = np.diag([1.0, 1.0, 1.0, 1.0, 9.0, 9.0])
  schema = dpftrl.FixedSeparation(num_rounds=6, max_participations=2)
  assert sensitivities.gram_sensitivity(gram, schema).value == math.sqrt(18.0)


def test_the_root_is_taken_once(monkeypatch):
  """Rooting the inner maxima as well would give √27 rather than 9."""
  monkeypatch.setattr(gram_search, '_MOST_STEPS', -1)
  result = sensitivities.gram_sensitivity(np.ones((9, 9)), dpftrl.MinSep(num_rounds=9))
  assert result == (pytest.approx(9.0), 'upper_bound')


@pytest.mark.parametrize('power', [1, 4])
@pytest.mark.parametrize('n, b, k', [(15, 1, 4), (20, 3, 6), (24, 4, 5)])
def test_a_search_that_ends_is_exact(power, n, b, k):
  matrix = np.random.default_rng(n).uniform(size=(n, n)) ** power
  square = oracle.worst(matrix, dpftrl.MinSep(n, b, k)) ** 2
  assert gram_search.worst_square(matrix.T @ matrix, b, k) == (pytest.approx(square), True)


def test_what_a_search_passes_over_as_rounding_is_counted():
  """Else ε is less than the exact one, if by 5e-12."""
  gram = np.diag(1.0 + 1e-12 * np.array([0, -9, -9, 0, 3.9, -9, 0, -1]))
  gram[0, 3:] = gram[3:, 0] = 1e-17  # Without it, rows alone prove the square.
  assert gram_search.worst_square(gram, 3, 3)[0] >= gram[np.ix_((0, 4, 7), (0, 4, 7))].sum()


@pytest.mark.parametrize('visits', [0, 3000])
def test_a_search_that_is_cut_short_is_a_bound(monkeypatch, visits):
  matrix = np.tril(np.random.default_rng(1).uniform(size=(18, 18))) ** 8
  truth = oracle.worst(matrix, dpftrl.MinSep(num_rounds=18, min_sep=2)) ** 2
  assert gram_search.worst_square(matrix.T @ matrix, 2, 9) == (pytest.approx(truth), True)
  monkeypatch.setattr(gram_search, '_MOST_VISITS', visits)
  cut, _ = gram_search.worst_square(matrix.T @ matrix, 2, 9)
  assert cut >= truth * (1 - 1e-12)


def test_tighter_than_the_bound_by_rows():
  """Columns of a square-root C, normalised, overlap beyond min_sep."""
  c = np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / np.arange(1, 256)]))
  matrix = np.tril(c[np.abs(np.subtract.outer(np.arange(256), np.arange(256)))])
  matrix /= np.linalg.norm(matrix, axis=0)
  result = sensitivities.gram_sensitivity(matrix.T @ matrix, dpftrl.MinSep(256, 40, 3))
  assert result == (pytest.approx(2.2250828, abs=1e-6), 'exact')


@pytest.mark.parametrize('work', [0, 20, 60])
def test_runs_that_are_not_all_tried_are_bounded(monkeypatch, work):
  monkeypatch.setattr(gram_search, '_MOST_SIGNED', work)
  for seed in range(10):
    matrix = np.random.default_rng(seed).uniform(-1.0, 1.0, (8, 8))
    schema = dpftrl.FixedSeparation(num_rounds=8, min_sep=2, max_participations=3)
    result = sensitivities.gram_sensitivity(matrix.T @ matrix, schema)
    truth = oracle.worst_of_vectors(matrix, schema)
    assert result.value >= truth * (1 - 1e-9)
    if result.kind == 'exact':
      assert result.value == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize('n, b, k', [(40, 5, 6), (64, 20, None)])
def test_signed_entries_of_longer_runs_are_bounded(n, b, k):
  generator = np.random.default_rng(n)
  matrix = np.tril(generator.normal(size=(n, n))) + 2.0 * np.eye(n)
  gram = matrix.T @ matrix
  schema = dpftrl.MinSep(n, b, k)
  value, _ = sensitivities.gram_sensitivity(gram, schema)
  size = schema.participations
  for _ in range(20):
    slack = generator.multinomial(n - 1 - (size - 1) * b, np.full(size + 1, 1.0 / (size + 1)))
    p = np.cumsum(slack[:size] + np.append(0, np.full(size - 1, b)))
    assert oracle.ascent(gram[np.ix_(p, p)]) <= value**2 * (1 + 1e-10)
  assert value**2 < np.abs(gram).sum()
