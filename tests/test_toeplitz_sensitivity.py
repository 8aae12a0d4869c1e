"""Sensitivity of banded Toeplitz strategies against every pattern and update."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import participation, sensitivity
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.sensitivity import toeplitz as toeplitz_sensitivity

SCHEMAS = (participation.MinSep, participation.FixedSeparation)
SETTINGS = hypothesis.settings(deadline=None, max_examples=60)


def patterns(schema):
  fixed = isinstance(schema, participation.FixedSeparation)
  most = min(schema.max_participations or 99, schema.num_rounds)
  for size in range(1, most + 1):
    for pattern in itertools.combinations(range(schema.num_rounds), size):
      gaps = np.diff(pattern)
      if (gaps == schema.min_sep if fixed else gaps >= schema.min_sep).all():
        yield list(pattern)


def worst(strategy, schema):
  """The largest ‖C u‖ by ascent over unit vectors; the sum where C ≥ 0."""
  matrix = strategy.strategy_matrix(schema.num_rounds)
  if (matrix >= 0.0).all():
    return max(np.linalg.norm(matrix[:, pattern].sum(axis=1)) for pattern in patterns(schema))
  return math.sqrt(
    max(of_pattern(matrix[:, pattern].T @ matrix[:, pattern]) for pattern in patterns(schema))
  )


def of_pattern(gram):
  """max Σ X ⟨u, u⟩: from as many directions as there are participations."""
  generator, best = np.random.default_rng(0), 0.0
  for _ in range(4):
    updates = generator.normal(size=gram.shape)
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    for _ in range(60):
      for i, row in enumerate(gram):
        pull = row @ updates - row[i] * updates[i]
        length = np.linalg.norm(pull)
        if length > 0.0:
          updates[i] = pull / length
    best = max(best, float(np.sum(gram * (updates @ updates.T))))
  return best


@st.composite
def schemas(draw, cls, most_rounds):
  num_rounds = draw(st.integers(1, most_rounds))
  return cls(
    num_rounds=num_rounds,
    min_sep=draw(st.integers(1, num_rounds + 1)),
    max_participations=draw(st.one_of(st.none(), st.integers(1, num_rounds))),
  )


@st.composite
def examples(draw, low, cls, most_rounds, monotone=False):
  """A schema and a strategy, its columns normalised or not."""
  schema = draw(schemas(cls, most_rounds))
  values = st.floats(low, 2.0).map(lambda x: round(x, 2))
  coefficients = draw(st.lists(values, min_size=1, max_size=most_rounds + 2))
  coefficients[0] = abs(coefficients[0]) + 0.1
  if monotone:
    coefficients = sorted(coefficients, reverse=True)
  more = draw(st.one_of(st.none(), st.integers(0, 3)))
  normalized = None if more is None else schema.num_rounds + more
  return schema, banded_toeplitz.BandedToeplitz(coefficients, normalized)


def check(schema, strategy, tolerance):
  truth = worst(strategy, schema)
  for most_gram_rounds in (0, 1024):  # with the bound on any X and without
    with pytest.MonkeyPatch.context() as patch:
      patch.setattr(banded_toeplitz, '_MOST_GRAM_ROUNDS', most_gram_rounds)
      value, kind = sensitivity.sensitivity(strategy, schema)
    assert value >= truth * (1 - 1e-9)
    if kind == 'exact':
      assert value == pytest.approx(truth, rel=tolerance)
    else:
      assert kind == 'upper_bound'


@pytest.mark.parametrize('cls', SCHEMAS)
@hypothesis.given(st.data())
@SETTINGS
def test_non_negative_coefficients(cls, data):
  check(*data.draw(examples(0.0, cls, 9)), 1e-9)


@pytest.mark.parametrize('cls', SCHEMAS)
@hypothesis.given(st.data())
@SETTINGS
def test_monotone_coefficients_are_exact(cls, data):
  schema, strategy = data.draw(examples(0.0, cls, 10, monotone=True))
  check(schema, strategy, 1e-9)
  if strategy.max_rounds is None:
    assert sensitivity.sensitivity(strategy, schema).kind == 'exact'


@pytest.mark.parametrize('cls', SCHEMAS)
@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=25)
def test_negative_coefficients(cls, data):
  check(*data.draw(examples(-2.0, cls, 6)), 1e-3)


@pytest.mark.parametrize('cls', SCHEMAS)
@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=25)
def test_bands_that_do_not_meet_are_exact_of_any_sign(cls, data):
  schema, strategy = data.draw(examples(-2.0, cls, 8))
  bands = min(strategy.num_bands, schema.min_sep)
  strategy = banded_toeplitz.BandedToeplitz(
    strategy.coefficients[:bands], strategy.normalized_rounds
  )
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert kind == 'exact'
  # Columns that share no row: the sum of squares, whatever the updates.
  squares = np.square(strategy.strategy_matrix(schema.num_rounds)).sum(axis=0)
  assert value == pytest.approx(
    math.sqrt(max(squares[p].sum() for p in patterns(schema))), rel=1e-12
  )
  if strategy.normalized_rounds == schema.num_rounds:
    assert value == pytest.approx(math.sqrt(schema.participations), rel=1e-12)


def test_neither_zeros_and_ones_nor_signs_are_enough():
  """Some columns pull towards each other, some apart: vectors do best."""
  strategy = banded_toeplitz.BandedToeplitz([1.0, 1.1, 0.0, -0.5])
  schema = participation.MinSep(num_rounds=4)
  matrix = strategy.strategy_matrix(4)
  signs = max(np.linalg.norm(matrix @ s) for s in itertools.product((-1, 0, 1), repeat=4))
  vectors = worst(strategy, schema)
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert vectors > 1.04 * signs
  assert value >= vectors * (1 - 1e-9)
  assert kind != 'exact' or value == pytest.approx(vectors, rel=1e-4)


def test_the_root_is_taken_once():
  """Rooted inside as well, the bound would be below what is reached."""
  coefficients = np.arange(1.0, 8.0)
  strategy = banded_toeplitz.BandedToeplitz(coefficients)
  schema = participation.MinSep(num_rounds=7, min_sep=2)
  truth = worst(strategy, schema)
  gram = sensitivity.gram_matrix(strategy, 7)
  inner = [max(row[p].sum() for p in patterns(schema)) for row in gram]
  rooted = max(np.sqrt(inner)[p].sum() for p in patterns(schema))
  assert math.sqrt(rooted) < 0.5 * truth
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(banded_toeplitz, '_MOST_GRAM_ROUNDS', 0)
    value, kind = sensitivity.sensitivity(strategy, schema)
  assert kind == 'upper_bound'
  assert value >= truth


def test_columns_count_and_not_rows():
  """The first column holds both coefficients, the first row only one."""
  strategy = banded_toeplitz.BandedToeplitz([3.0, 4.0])
  once = participation.MinSep(num_rounds=2, max_participations=1)
  assert sensitivity.sensitivity(strategy, once) == (5.0, 'exact')
  assert sensitivity.sensitivity(strategy, participation.MinSep(num_rounds=1)) == (3.0, 'exact')


@hypothesis.given(st.data())
@SETTINGS
def test_gram(data):
  schema, strategy = data.draw(examples(-2.0, participation.MinSep, 12))
  matrix = strategy.strategy_matrix(schema.num_rounds)
  np.testing.assert_allclose(
    sensitivity.gram_matrix(strategy, schema.num_rounds), matrix.T @ matrix, atol=1e-12
  )


@pytest.mark.parametrize(
  'n, b, k', [(50, 3, None), (50, 3, 4), (61, 7, None), (200, 1, None), (60, 9, 6), (200, 2, 99)]
)
def test_periods_that_repeat_are_counted_and_not_summed(n, b, k):
  schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
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


def test_a_billion_rounds():
  schema = participation.MinSep(num_rounds=10**9, min_sep=100)
  coefficients = 1.0 / np.arange(1.0, 301.0)
  value, kind = sensitivity.sensitivity(banded_toeplitz.BandedToeplitz(coefficients), schema)
  period = coefficients.reshape(3, 100).sum(axis=0)
  assert kind == 'exact'
  assert value == pytest.approx(math.sqrt(1e7 * period @ period), rel=1e-6)
  mixed = banded_toeplitz.BandedToeplitz(coefficients * (-1.0) ** np.arange(300))
  bound, kind = sensitivity.sensitivity(mixed, schema)
  assert kind in ('exact', 'upper_bound')
  assert bound <= value * (1 + 1e-6)


def test_beyond_min_sep_an_interior_that_decreases_is_exact():
  """The coefficients are not monotone, but what two columns share is."""
  coefficients = np.array([1.0, 1.2, 0.9, 0.6, 0.3])
  schema = participation.MinSep(num_rounds=5000, min_sep=2, max_participations=100)
  strategy = banded_toeplitz.BandedToeplitz(coefficients)
  value, kind = sensitivity.sensitivity(strategy, schema)
  total = np.zeros(300)
  for start in range(0, 200, 2):
    total[start : start + 5] += coefficients
  assert (value, kind) == (pytest.approx(np.linalg.norm(total)), 'exact')


@pytest.mark.parametrize('cls', SCHEMAS)
def test_refuses_more_rounds_than_it_is_normalised_for(cls):
  strategy = banded_toeplitz.BandedToeplitz([1.0, 0.5], 4)
  with pytest.raises(ValueError, match='num_rounds=5.*4 rounds'):
    sensitivity.sensitivity(strategy, cls(num_rounds=5))
