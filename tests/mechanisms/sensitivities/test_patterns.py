"""Patterns of rounds: sums over them, their worst updates, and those that occurred."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.sensitivities import patterns
from tests import drawn, oracle

# Three vectors at right angles to their sum.
NEGATIVE = np.full((3, 3), -0.5) + 1.5 * np.eye(3)


@hypothesis.given(st.data())
def test_max_min_sep_sum_is_the_maximum(data):
  schema = data.draw(drawn.schemas(dpftrl.MinSep))
  values = data.draw(drawn.matrices(3, schema.num_rounds))
  sums = patterns.max_min_sep_sum(values, schema.min_sep, schema.max_participations)
  expected = [max(row[list(p)].sum() for p in oracle.patterns(schema)) for row in values]
  np.testing.assert_allclose(sums, expected, atol=1e-12)


@pytest.mark.parametrize('size', [1, 2, 7])
@pytest.mark.parametrize('step', [1, 2, 3, 9])
@pytest.mark.parametrize('count', [1, 2, 4, 9])
def test_repeated_is_a_sum_of_shifts(size, step, count):
  values = np.random.default_rng(0).normal(size=size)
  expected = [sum(values[i - a * step] for a in range(count) if i >= a * step) for i in range(size)]
  np.testing.assert_allclose(patterns.repeated(values, step, count), expected, atol=1e-14)


def grams(count, size, rank):
  matrices = np.random.default_rng(size).normal(size=(count, rank, size))
  return np.einsum('prk,prl->pkl', matrices, matrices)


def test_neither_zeros_and_ones_nor_signs_are_enough():
  """0/1 gives 0, signs 4, the truth is 4.5 and the sum of sizes 6."""
  signs = max(np.array(s) @ NEGATIVE @ s for s in itertools.product((-1, 1), repeat=3))
  assert NEGATIVE.sum() == pytest.approx(0.0)
  assert signs == pytest.approx(4.0)
  squares, exact = patterns.worst_squares(NEGATIVE[None])
  assert squares[0] == pytest.approx(4.5) and exact[0]
  for cls in drawn.SCHEMAS:
    result = sensitivities.gram_sensitivity(NEGATIVE, cls(num_rounds=3))
    assert result == (pytest.approx(math.sqrt(4.5)), 'exact')
  factor = oracle.AnyMatrix(np.linalg.cholesky(NEGATIVE + 1e-15 * np.eye(3)).T)
  values, kind = oracle.pattern_sensitivity(factor, 3, [(2, 0), (0, 1, 2), (1,)])
  np.testing.assert_allclose(values, np.sqrt([3.0, 4.5, 1.0]))
  assert kind == 'exact'


@pytest.mark.slow
@pytest.mark.parametrize('size', [3, 4, 5, 8])
@pytest.mark.parametrize('rank', [1, 2, 8])
def test_never_below_and_exact_where_it_says_so(size, rank):
  many = grams(20, size, rank)
  squares, exact = patterns.worst_squares(many)
  reached = oracle.ascent(many)
  assert (squares >= reached * (1 - 1e-12)).all()
  assert (squares <= np.abs(many).sum(axis=(1, 2)) * (1 + 1e-12)).all()
  np.testing.assert_allclose(squares[exact], reached[exact], rtol=1e-4)
  assert exact.mean() > 0.9


def test_two_and_those_without_negative_entries_need_no_search():
  squares, exact = patterns.worst_squares(np.array([[[2.0, -1], [-1, 3.0]]]))
  assert squares[0] == 7.0 and exact[0]
  gram = np.abs(grams(1, 5, 5))
  squares, exact = patterns.worst_squares(gram)
  assert squares[0] == pytest.approx(gram.sum()) and exact[0]


def test_signs_that_can_be_turned_away_reach_the_sum_of_sizes():
  signs = np.array([1.0, -1.0, -1.0, 1.0])
  gram = np.outer(signs, signs) * np.abs(grams(1, 4, 4)[0])
  squares, _ = patterns.worst_squares(gram[None])
  assert math.isclose(squares[0], np.abs(gram).sum(), rel_tol=1e-9)


@pytest.mark.parametrize('limit', ['_MOST_SIGNED', 'CHUNK_ENTRIES'])
@pytest.mark.parametrize('negative', [False, True])
def test_too_many_patterns_are_bounded_by_the_sum_of_sizes(monkeypatch, limit, negative):
  monkeypatch.setattr(patterns, limit, 1)
  matrix = np.random.default_rng(0).uniform(-1.0 if negative else 0.0, 1.0, (6, 6))
  gram = matrix.T @ matrix
  chosen = [(0, 2, 4), (1, 3, 5), (0, 1, 2, 3, 4, 5), (3,), ()]
  values, kind = oracle.pattern_sensitivity(oracle.AnyMatrix(matrix), 6, chosen)
  expected = [np.sqrt(np.abs(gram[np.ix_(p, p)]).sum()) if p else 0.0 for p in chosen]
  np.testing.assert_allclose(values, expected)
  assert kind == ('upper_bound' if negative else 'exact')


def test_some_of_too_many_patterns_are_searched(monkeypatch):
  """One pattern of three rounds, the one with the largest sum of sizes."""
  monkeypatch.setattr(patterns, '_MOST_SIGNED', 27)
  matrix = oracle.AnyMatrix(np.random.default_rng(0).uniform(-1.0, 1.0, (6, 6)))
  gram, chosen = matrix.gram_matrix(6), [(0, 2, 4), (1, 3, 5), (0, 1, 5)]
  values, kind = oracle.pattern_sensitivity(matrix, 6, chosen)
  truth = np.sqrt([oracle.ascent(gram[np.ix_(p, p)]) for p in chosen])
  assert (values >= truth * (1 - 1e-9)).all() and kind == 'upper_bound'


@hypothesis.given(drawn.schemas(cls=dpftrl.MinSep, most_rounds=7))
def test_a_schema_allows_the_patterns_of_its_numbers(schema):
  rounds = range(schema.num_rounds)
  subsets = itertools.chain(*(itertools.combinations(rounds, n + 1) for n in rounds))
  allowed = {pattern for pattern in subsets if schema.allows(np.array(pattern))}
  assert allowed == set(oracle.patterns(schema))
