"""Sensitivity against every pattern of every schema, where that is possible."""

import itertools
import math

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest

from fl_dpftrl import participation
from fl_dpftrl import sensitivity
from fl_dpftrl.sensitivity import banded as banded_sensitivity
from fl_dpftrl.sensitivity import patterns as pattern_sums
from fl_dpftrl.strategies import banded
from fl_dpftrl.strategies import blt
from fl_dpftrl.strategies import identity
from fl_dpftrl.strategies import tree

SETTINGS = hypothesis.settings(deadline=None, max_examples=60)


class Dense:
  """Any matrix, of which no more is known."""

  family = 'dense'
  max_rounds = None

  def __init__(self, matrix):
    self.matrix = np.asarray(matrix, dtype=np.float64)

  def strategy_matrix(self, num_rounds):
    return self.matrix[:, :num_rounds]


def patterns(schema: participation.MinSep) -> list[tuple[int, ...]]:
  """Every pattern that a schema allows, by its definition."""
  fixed = isinstance(schema, participation.FixedSeparation)
  most = schema.max_participations or schema.num_rounds
  found = []
  for size in range(1, min(most, schema.num_rounds) + 1):
    for pattern in itertools.combinations(range(schema.num_rounds), size):
      gaps = [j - i for i, j in zip(pattern, pattern[1:])]
      if all(
          g == schema.min_sep if fixed else g >= schema.min_sep for g in gaps
      ):
        found.append(pattern)
  return found


def worst(matrix: np.ndarray, schema: participation.MinSep) -> float:
  """Largest norm of a sum of columns: all there is where X is not negative."""
  return max(
      float(np.linalg.norm(matrix[:, list(p)].sum(axis=1)))
      for p in patterns(schema)
  )


def worst_of_vectors(matrix: np.ndarray, schema: participation.MinSep) -> float:
  """Largest norm that ascent over unit vectors finds: a lower bound."""
  best, generator = 0.0, np.random.default_rng(0)
  for pattern in patterns(schema):
    gram = matrix[:, list(pattern)].T @ matrix[:, list(pattern)]
    for _ in range(3):
      updates = generator.normal(size=(len(pattern), len(pattern)))
      updates /= np.linalg.norm(updates, axis=1, keepdims=True)
      for _ in range(30):
        for i in range(len(pattern)):
          pull = gram[i] @ updates - gram[i, i] * updates[i]
          if np.linalg.norm(pull) > 0:
            updates[i] = pull / np.linalg.norm(pull)
      best = max(best, float(np.sum(gram * (updates @ updates.T))))
  return math.sqrt(max(best, 0.0))


@st.composite
def schemas(draw, cls=participation.MinSep, most_rounds=9):
  num_rounds = draw(st.integers(1, most_rounds))
  return cls(
      num_rounds=num_rounds,
      min_sep=draw(st.integers(1, num_rounds + 1)),
      max_participations=draw(
          st.one_of(st.none(), st.integers(1, num_rounds + 1))
      ),
  )


def matrices(num_rounds, low=0.0, rows=None):
  entries = st.floats(low, 2.0).map(lambda x: round(x, 3))
  shape = (rows or num_rounds, num_rounds)
  return hnp.arrays(np.float64, shape, elements=entries)


@st.composite
def banded_strategies(draw, num_rounds, num_bands):
  coefficients = np.zeros((num_rounds, num_bands))
  values = draw(matrices(num_bands, rows=num_rounds))
  for j in range(num_bands):
    coefficients[j:, j] = values[j:, j]
  coefficients[:, 0] += 0.1
  return banded.Banded(coefficients)


@st.composite
def blts(draw):
  size = draw(st.integers(1, 3))
  scale = np.array([draw(st.floats(0.0, 1.0)) for _ in range(size)])
  return blt.BLT(
      buffer_decay=[draw(st.floats(1e-3, 0.999)) for _ in range(size)],
      output_scale=(scale / max(1.0, scale.sum() * (1 + 1e-12))).tolist(),
  )


@hypothesis.given(schemas())
@SETTINGS
def test_identity_is_exact(schema):
  result = sensitivity.sensitivity(identity.Identity(), schema)
  assert result.kind == 'exact'
  assert result.value == pytest.approx(worst(np.eye(schema.num_rounds), schema))


@pytest.mark.parametrize('cls', [
    participation.MinSep, participation.FixedSeparation,
])
@hypothesis.given(st.data())
@SETTINGS
def test_blt_is_exact(cls, data):
  schema, strategy = data.draw(schemas(cls)), data.draw(blts())
  result = sensitivity.sensitivity(strategy, schema)
  matrix = strategy.strategy_matrix(schema.num_rounds)
  assert result.kind == 'exact'
  assert result.value == pytest.approx(worst(matrix, schema), rel=1e-12)


@pytest.mark.parametrize('cls', [
    participation.MinSep, participation.FixedSeparation,
])
@hypothesis.given(st.data())
@SETTINGS
def test_banded_is_exact_up_to_min_sep_bands(cls, data):
  schema = data.draw(schemas(cls))
  num_bands = data.draw(
      st.integers(1, min(schema.min_sep, schema.num_rounds))
  )
  strategy = data.draw(banded_strategies(schema.num_rounds, num_bands))
  result = sensitivity.sensitivity(strategy, schema)
  matrix = strategy.strategy_matrix(schema.num_rounds)
  assert result.kind == 'exact'
  assert result.value == pytest.approx(worst(matrix, schema), rel=1e-12)
  general = sensitivity.gram_sensitivity(matrix.T @ matrix, schema)
  assert general == pytest.approx(result)


@hypothesis.given(st.data())
@SETTINGS
def test_banded_beyond_min_sep_is_bounded(data):
  schema = data.draw(schemas())
  strategy = data.draw(
      banded_strategies(schema.num_rounds, schema.num_rounds)
  )
  check_bound(strategy, strategy.strategy_matrix(schema.num_rounds), schema)


@hypothesis.given(schemas(most_rounds=10))
@SETTINGS
def test_tree_is_exact_and_its_gram_bounded(schema):
  strategy = tree.TreeOnline()
  matrix = strategy.strategy_matrix(schema.num_rounds)
  result = sensitivity.sensitivity(strategy, schema)
  assert result.kind == 'exact'
  assert result.value == pytest.approx(worst(matrix, schema), rel=1e-12)
  check_bound(Dense(matrix), matrix, schema)


@hypothesis.given(st.data())
@SETTINGS
def test_any_matrix_without_negative_entries_is_bounded(data):
  schema = data.draw(schemas())
  matrix = data.draw(matrices(schema.num_rounds, rows=4))
  hypothesis.assume(matrix.any())
  check_bound(Dense(matrix), matrix, schema)


def check_bound(strategy, matrix, schema):
  """At least the truth, exact where it says so, never above the paper's."""
  result = sensitivity.sensitivity(strategy, schema)
  truth = worst(matrix, schema)
  assert result.value >= truth * (1 - 1e-12)
  if result.kind == 'exact':
    assert result.value == pytest.approx(truth)
  else:
    assert result.kind == 'upper_bound'
  if schema.participations <= 2:
    assert result.kind == 'exact'
  gram = np.abs(matrix.T @ matrix)
  inner = [
      max(row[list(p)].sum() for p in patterns(schema)) for row in gram
  ]
  outer = max(sum(inner[i] for i in p) for p in patterns(schema))
  assert result.value <= math.sqrt(outer) * (1 + 1e-12)


@hypothesis.given(st.data())
@SETTINGS
def test_fixed_separation_is_exact_without_negative_entries(data):
  schema = data.draw(schemas(participation.FixedSeparation))
  matrix = data.draw(matrices(schema.num_rounds))
  hypothesis.assume(matrix.any())
  result = sensitivity.sensitivity(Dense(matrix), schema)
  assert result.kind == 'exact'
  assert result.value == pytest.approx(worst(matrix, schema))


@pytest.mark.parametrize('cls', [
    participation.MinSep, participation.FixedSeparation,
])
@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=25)
def test_vector_updates_are_bounded_where_entries_are_negative(cls, data):
  schema = data.draw(schemas(cls, most_rounds=6))
  matrix = data.draw(matrices(schema.num_rounds, low=-2.0))
  hypothesis.assume(np.abs(matrix).sum() > 0.1)
  result = sensitivity.sensitivity(Dense(matrix), schema)
  found = worst_of_vectors(matrix, schema)
  assert result.value >= found * (1 - 1e-9)
  if result.kind == 'exact':
    assert result.value == pytest.approx(found, rel=1e-4)


NEGATIVE = np.full((3, 3), -0.5) + 1.5 * np.eye(3)


@pytest.mark.parametrize('cls', [
    participation.MinSep, participation.FixedSeparation,
])
def test_neither_zeros_and_ones_nor_signs_are_enough(cls):
  """X is singular, so that one row of three vectors at 120° is C."""
  schema = cls(num_rounds=3)
  factor = np.linalg.cholesky(NEGATIVE + 1e-15 * np.eye(3)).T
  signs = max(
      np.linalg.norm(factor @ s)
      for s in itertools.product((-1, 0, 1), repeat=3)
  )
  ones = np.linalg.norm(factor @ np.ones(3))
  vectors = worst_of_vectors(factor, schema)
  result = sensitivity.gram_sensitivity(NEGATIVE, schema)
  assert ones == pytest.approx(0.0, abs=1e-6)
  assert signs == pytest.approx(2.0)
  assert vectors == pytest.approx(math.sqrt(4.5))
  assert result == (pytest.approx(math.sqrt(4.5)), 'exact')


def test_two_participations_are_exact_also_where_entries_are_negative():
  schema = participation.MinSep(num_rounds=3, max_participations=2)
  result = sensitivity.gram_sensitivity(NEGATIVE, schema)
  assert result == (pytest.approx(math.sqrt(3.0)), 'exact')


def test_the_root_is_taken_once():
  """Rooting the inner maxima as well would give √27 rather than 9."""
  ones = Dense(np.ones((1, 9)))
  result = sensitivity.sensitivity(ones, participation.MinSep(num_rounds=9))
  assert result.value == pytest.approx(9.0)


def test_columns_count_and_not_rows():
  coefficients = np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]])
  strategy = banded.Banded(coefficients)
  once = participation.MinSep(num_rounds=3, max_participations=1)
  assert banded_sensitivity.column_squares(strategy, 3).tolist() == [5.0, 1.0, 1.0]
  assert sensitivity.sensitivity(strategy, once).value == math.sqrt(5.0)
  apart = participation.MinSep(num_rounds=3, min_sep=2)
  assert sensitivity.sensitivity(strategy, apart).value == math.sqrt(6.0)


def test_a_shorter_run_of_a_banded_strategy_cuts_columns_short():
  strategy = banded.Banded(np.array([[1.0, 0.0], [1.0, 2.0], [1.0, 0.0]]))
  schema = participation.MinSep(num_rounds=1)
  assert sensitivity.sensitivity(strategy, schema) == (1.0, 'exact')


def test_fixed_separation_may_start_late():
  """The heavy columns lie beyond the first min_sep rounds."""
  gram = np.diag([1.0, 1.0, 1.0, 1.0, 9.0, 9.0])
  schema = participation.FixedSeparation(num_rounds=6, max_participations=2)
  assert sensitivity.gram_sensitivity(gram, schema).value == math.sqrt(18.0)


@pytest.mark.parametrize('cls', [
    participation.MinSep, participation.FixedSeparation,
])
def test_refuses_more_rounds_than_the_strategy_has(cls):
  strategy = banded.Banded(np.ones((4, 1)))
  for min_sep in (1, 3):
    with pytest.raises(ValueError, match='num_rounds=5.*4 rounds'):
      sensitivity.sensitivity(strategy, cls(num_rounds=5, min_sep=min_sep))


@pytest.mark.parametrize(
    'gram', [np.eye(3), np.ones(4), np.full((4, 4), np.nan)]
)
def test_refuses_other_grams(gram):
  with pytest.raises(ValueError, match='gram'):
    sensitivity.gram_sensitivity(gram, participation.MinSep(num_rounds=4))


@hypothesis.given(st.data())
@SETTINGS
def test_max_min_sep_sum_is_the_maximum(data):
  schema = data.draw(schemas())
  values = data.draw(matrices(schema.num_rounds, rows=3))
  found = pattern_sums.max_min_sep_sum(
      values, schema.min_sep, schema.max_participations
  )
  expected = [
      max(row[list(p)].sum() for p in patterns(schema)) for row in values
  ]
  np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize('size', [1, 2, 7])
@pytest.mark.parametrize('step', [1, 2, 3, 9])
@pytest.mark.parametrize('count', [1, 2, 4, 9])
def test_repeated_is_a_sum_of_shifts(size, step, count):
  values = np.random.default_rng(0).normal(size=size)
  expected = [
      sum(values[i - a * step] for a in range(count) if i >= a * step)
      for i in range(size)
  ]
  np.testing.assert_allclose(
      pattern_sums.repeated(values, step, count), expected, atol=1e-14
  )


@pytest.mark.parametrize('num_rounds', [1, 2, 7, 16, 37])
def test_gram_of_the_tree(num_rounds):
  matrix = tree.TreeOnline().strategy_matrix(num_rounds)
  np.testing.assert_array_equal(
      sensitivity.gram_matrix(tree.TreeOnline(), num_rounds), matrix.T @ matrix
  )


def test_large_trees_are_bounded_in_reasonable_time():
  schema = participation.MinSep(
      num_rounds=4096, min_sep=400, max_participations=11
  )
  exact = sensitivity.sensitivity(tree.TreeOnline(), schema)
  bound = sensitivity.gram_sensitivity(
      sensitivity.gram_matrix(tree.TreeOnline(), 4096), schema
  )
  assert (exact.kind, bound.kind) == ('exact', 'upper_bound')
  assert exact.value <= bound.value <= 1.05 * exact.value


@hypothesis.given(st.data())
@SETTINGS
def test_pattern_sensitivity_is_the_norm_of_each_sum(data):
  schema, strategy = data.draw(schemas()), data.draw(blts())
  every = patterns(schema)
  values, kind = sensitivity.pattern_sensitivity(
      strategy, schema.num_rounds, every + [()]
  )
  matrix = strategy.strategy_matrix(schema.num_rounds)
  expected = [np.linalg.norm(matrix[:, list(p)].sum(axis=1)) for p in every]
  assert kind == 'exact'
  np.testing.assert_allclose(values, expected + [0.0], rtol=1e-10)


def test_pattern_sensitivity_is_exact_where_entries_are_negative():
  factor = np.linalg.cholesky(NEGATIVE + 1e-15 * np.eye(3)).T
  values, kind = sensitivity.pattern_sensitivity(
      Dense(factor), 3, [(2, 0), (0, 1, 2)]
  )
  np.testing.assert_allclose(values, np.sqrt([3.0, 4.5]))
  assert kind == 'exact'
  _, kind = sensitivity.pattern_sensitivity(Dense(factor), 3, [(2, 0), (1,)])
  assert kind == 'exact'


@pytest.mark.parametrize(
    'pattern, message',
    [((0, 4), '0 to 3'), ((-1, 2), '0 to 3'), ((2, 2), 'twice'),
     ((0.5, 1.5), 'whole')],
)
def test_pattern_sensitivity_refuses_impossible_patterns(pattern, message):
  with pytest.raises(ValueError, match=message):
    sensitivity.pattern_sensitivity(identity.Identity(), 4, [pattern])
