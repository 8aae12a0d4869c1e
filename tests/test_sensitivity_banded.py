"""Banded strategies under vector updates, entries of any sign."""

import itertools

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fl_dpftrl import participation, sensitivity
from fl_dpftrl.families import banded

SCHEMAS = (participation.MinSep, participation.FixedSeparation)


def patterns(schema):
  """Every pattern that a schema allows, by its definition."""
  fixed = isinstance(schema, participation.FixedSeparation)
  most = min(schema.max_participations or schema.num_rounds, schema.num_rounds)
  for size in range(1, most + 1):
    for pattern in itertools.combinations(range(schema.num_rounds), size):
      gaps = np.diff(pattern)
      if np.all(gaps == schema.min_sep if fixed else gaps >= schema.min_sep):
        yield list(pattern)


def worst_vectors(matrix, schema):
  """Largest ‖C u‖ that ascent over unit vectors finds: a lower bound."""
  best, generator = 0.0, np.random.default_rng(0)
  for pattern in patterns(schema):
    gram = matrix[:, pattern].T @ matrix[:, pattern]
    updates = generator.normal(size=(len(pattern), len(pattern)))
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    for _ in range(20):
      for i in range(len(pattern)):
        pull = gram[i] @ updates - gram[i, i] * updates[i]
        if np.linalg.norm(pull) > 0:
          updates[i] = pull / np.linalg.norm(pull)
    best = max(best, float(np.sum(gram * (updates @ updates.T))))
  return np.sqrt(best)


@st.composite
def cases(draw, cls, most_rounds):
  n = draw(st.integers(1, most_rounds))
  num_bands = draw(st.integers(1, n))
  entries = st.floats(-2.0, 2.0).map(lambda x: round(x, 3))
  values = draw(hnp.arrays(np.float64, (n, num_bands), elements=entries))
  values[:, 0] = np.abs(values[:, 0]) + 0.1
  values[np.arange(n)[:, None] < np.arange(num_bands)] = 0.0
  schema = cls(
    num_rounds=n,
    min_sep=draw(st.integers(1, n + 1)),
    max_participations=draw(st.none() | st.integers(1, n)),
  )
  return banded.Banded(values), schema


@pytest.mark.parametrize('cls', SCHEMAS)
@hypothesis.given(st.data())
@hypothesis.settings(deadline=None, max_examples=40)
def test_exact_up_to_min_sep_bands_and_never_too_small(cls, data):
  strategy, schema = data.draw(cases(cls, 8))
  matrix = strategy.strategy_matrix(schema.num_rounds)
  found = worst_vectors(matrix, schema)
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert value >= found * (1 - 1e-9)
  if strategy.num_bands <= schema.min_sep or schema.participations == 1:
    assert (value, kind) == (pytest.approx(found), 'exact')


@hypothesis.given(cases(participation.MinSep, 12))
@hypothesis.settings(deadline=None, max_examples=40)
def test_gram_matrix(case):
  strategy, schema = case
  for n in {1, schema.num_rounds // 2 or 1, schema.num_rounds}:
    matrix = strategy.strategy_matrix(n)
    np.testing.assert_allclose(sensitivity.gram_matrix(strategy, n), matrix.T @ matrix, atol=1e-12)


def test_more_rounds_than_a_dense_matrix_could_have():
  strategy = banded.Banded(
    np.tile([3.0, 0.0, 4.0], (10**5, 1)) * (np.arange(10**5)[:, None] >= np.arange(3))
  )
  schema = participation.MinSep(num_rounds=10**5, min_sep=1000, max_participations=9)
  assert sensitivity.sensitivity(strategy, schema) == (15.0, 'exact')
  once = participation.MinSep(num_rounds=10**5, max_participations=1)
  assert sensitivity.sensitivity(strategy, once) == (5.0, 'exact')
