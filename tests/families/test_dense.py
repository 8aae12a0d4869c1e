"""Dense and low-rank strategies: what they refuse, and their sensitivity."""

import math

import hypothesis
import numpy as np
import pytest
import scipy.linalg
from hypothesis import strategies as st

from fl_dpftrl import sensitivity
from fl_dpftrl.families import dense, low_rank
from fl_dpftrl.participation import schemas
from tests import drawn, oracle

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


def low_rank_example(num_rounds, seed):
  generator = np.random.default_rng(seed)
  near = generator.uniform(0.5, 1.5, (num_rounds, 1))
  left, right = generator.uniform(-1.0, 1.0, (2, num_rounds, 2))
  return low_rank.LowRank(near, left, right)


@hypothesis.given(drawn.schemas(most_rounds=6), st.integers(0, 20), st.integers(0, 2))
def test_bounds_hold_for_vector_updates(schema, seed, kind):
  if kind == 2:
    strategy = low_rank_example(schema.num_rounds, seed)
  else:
    strategy = dense.Dense(drawn.triangle(6, seed, -1.0 if kind else 0.0))
  matrix = strategy.strategy_matrix(schema.num_rounds)
  found = oracle.worst_of_vectors(matrix, schema)
  result = sensitivity.sensitivity(strategy, schema)
  assert result.kind in ('exact', 'upper_bound')
  assert result.value >= found * (1.0 - 1e-9)
  if result.kind == 'exact':
    assert result.value == pytest.approx(found, rel=1e-4)


def test_entries_that_are_zero_but_for_rounding_are_exact():
  """X of 3 rounds a device, whose columns are orthogonal up to 1e-17."""
  gram = np.eye(6) + np.diag([0.4, -0.3, 0.5, 0.2, 0.1], 1)
  gram = np.tril(gram + gram.T - np.eye(6)) + np.triu(gram, 1)
  strategy = dense.from_gram(gram)
  for cls in (schemas.MinSep, schemas.FixedSeparation):
    schema = cls(num_rounds=6, min_sep=2)
    assert sensitivity.sensitivity(strategy, schema) == (pytest.approx(math.sqrt(3.0)), 'exact')


def test_cross_terms_count():
  """Two equal updates reach twice the norm of one."""
  strategy = dense.Dense([[1.0, 0.0], [10.0, 0.1]])
  schema = schemas.MinSep(num_rounds=2)
  assert sensitivity.sensitivity(strategy, schema).value == pytest.approx(
    np.linalg.norm([1.0, 10.1])
  )


def test_what_was_rounded_off_counts():
  """The trap: the sensitivity of the C that a noising matrix came from.

  N is that of a C with unit columns, and its entries off the diagonal are made
  one number: what is added is no longer the noise of a C of sensitivity 1.
  """
  root = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1.0, 8.0)))
  matrix = np.tril(scipy.linalg.toeplitz(root))
  matrix /= np.linalg.norm(matrix, axis=0)
  noising = np.linalg.inv(matrix)
  rounded = low_rank.LowRank(np.diagonal(noising)[:, None], np.full((8, 1), -0.3), np.ones((8, 1)))
  once = schemas.MinSep(num_rounds=8, max_participations=1)
  assert sensitivity.sensitivity(dense.Dense(matrix), once).value == (pytest.approx(1.0))
  result = sensitivity.sensitivity(rounded, once)
  columns = np.linalg.norm(np.linalg.inv(rounded.noising_matrix(8)), axis=0)
  assert result == (pytest.approx(columns.max()), 'exact')
  assert result.value > 1.1
