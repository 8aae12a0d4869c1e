"""Stamped strategies against every pattern that a schema allows."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import participation, sensitivity
from fl_dpftrl.families import banded, blt, dense, identity, stamped, tree_online

SETTINGS = hypothesis.settings(deadline=None, max_examples=80)


def patterns(schema):
  fixed = isinstance(schema, participation.FixedSeparation)
  most = schema.max_participations or schema.num_rounds
  for size in range(1, min(most, schema.num_rounds) + 1):
    for pattern in itertools.combinations(range(schema.num_rounds), size):
      gaps = np.diff(pattern)
      if (gaps == schema.min_sep if fixed else gaps >= schema.min_sep).all():
        yield list(pattern)


def worst(matrix, schema):
  """The largest norm of a sum of columns."""
  return max(np.linalg.norm(matrix[:, p].sum(axis=1)) for p in patterns(schema))


def ascent(gram, starts, generator):
  """The largest Σ X[i, j] ⟨uᵢ, uⱼ⟩ over unit vectors that was found."""
  best = 0.0
  for _ in range(starts):
    updates = generator.normal(size=gram.shape)
    updates /= np.linalg.norm(updates, axis=1, keepdims=True)
    for _, i in itertools.product(range(40), range(len(gram))):
      pull = gram[i] @ updates - gram[i, i] * updates[i]
      if np.linalg.norm(pull) > 0:
        updates[i] = pull / np.linalg.norm(pull)
    best = max(best, float(np.sum(gram * (updates @ updates.T))))
  return best


@st.composite
def schemas(draw, most_rounds=10):
  num_rounds = draw(st.integers(1, most_rounds))
  cls = draw(st.sampled_from([participation.MinSep, participation.FixedSeparation]))
  return cls(
    num_rounds=num_rounds,
    min_sep=draw(st.integers(1, num_rounds + 1)),
    max_participations=draw(st.one_of(st.none(), st.integers(1, 6))),
  )


def triangle(size, seed, low):
  matrix = np.random.default_rng(seed).uniform(low, 1.0, (size, size))
  return np.tril(matrix, -1) + np.diag(0.1 + np.abs(np.diagonal(matrix)))


def check(strategy, schema):
  """At least the truth, and it where it says so, for X without negatives."""
  matrix = strategy.strategy_matrix(schema.num_rounds)
  result = sensitivity.sensitivity(strategy, schema)
  truth = worst(matrix, schema)
  assert result.kind in ('exact', 'upper_bound')
  assert result.value >= truth * (1.0 - 1e-12)
  if result.kind == 'exact':
    assert result.value == pytest.approx(truth, rel=1e-12)
  return result


@hypothesis.given(schemas(), st.integers(1, 6), st.integers(0, 9))
@SETTINGS
def test_dense_blocks(schema, block_rounds, seed):
  strategy = stamped.Stamped(dense.Dense(triangle(6, seed, 0.0)), block_rounds)
  result = check(strategy, schema)
  few = min(schema.participations, -(-block_rounds // schema.min_sep))
  if few <= 2 or isinstance(schema, participation.FixedSeparation):
    assert result.kind == 'exact'


@hypothesis.given(schemas(), st.integers(1, 6), st.floats(0.01, 0.99), st.floats(0.0, 1.0))
@SETTINGS
def test_blt_blocks_are_exact(schema, block_rounds, decay, scale):
  strategy = stamped.Stamped(blt.BLT([decay], [scale]), block_rounds)
  assert check(strategy, schema).kind == 'exact'


@hypothesis.given(schemas(), st.integers(1, 9))
@SETTINGS
def test_other_blocks(schema, block_rounds):
  check(stamped.Stamped(tree_online.TreeOnline(), block_rounds), schema)
  assert check(stamped.Stamped(identity.Identity(), block_rounds), schema).kind == 'exact'
  check(stamped.Stamped(stamped.Stamped(tree_online.TreeOnline(), 2), block_rounds), schema)


@hypothesis.given(schemas(most_rounds=7), st.integers(1, 4), st.integers(0, 9))
@hypothesis.settings(deadline=None, max_examples=25)
def test_vector_updates_are_bounded(schema, block_rounds, seed):
  inner = dense.Dense(triangle(4, seed, -1.0))
  strategy = stamped.Stamped(inner, block_rounds)
  matrix = strategy.strategy_matrix(schema.num_rounds)
  gram, generator = matrix.T @ matrix, np.random.default_rng(0)
  found = math.sqrt(max(ascent(gram[np.ix_(p, p)], 3, generator) for p in patterns(schema)))
  result = sensitivity.sensitivity(strategy, schema)
  assert result.value >= found * (1.0 - 1e-9)
  if result.kind == 'exact':
    assert result.value == pytest.approx(found, rel=1e-5)


def test_a_device_may_take_part_in_many_blocks():
  """Restarts do not bring back what a device has given before."""
  inner = banded.Banded(np.ones((4, 1)))
  strategy = stamped.Stamped(inner, 4)
  once = participation.MinSep(num_rounds=40, max_participations=1)
  often = participation.MinSep(num_rounds=40, min_sep=4)
  assert sensitivity.sensitivity(strategy, once) == (1.0, 'exact')
  assert sensitivity.sensitivity(strategy, often).value == math.sqrt(10.0)


def test_min_sep_holds_across_blocks():
  """Ends and beginnings of blocks are closer than min_sep."""
  inner = banded.Banded(np.array([[1.0], [1.0], [5.0]]))
  schema = participation.MinSep(num_rounds=6, min_sep=3)
  strategy = stamped.Stamped(dense.Dense(np.diag([7.0, 1.0, 5.0])), 3)
  assert sensitivity.sensitivity(strategy, schema) == (math.sqrt(98.0), 'exact')
  schema = participation.MinSep(num_rounds=5, min_sep=3)
  # Rounds 2 and 5 would give √50, and round 5 does not happen.
  assert sensitivity.sensitivity(stamped.Stamped(inner, 3), schema) == (5.0, 'exact')


def test_long_runs():
  """Blocks with room for three, of a family of which no more is known."""
  schema = participation.MinSep(num_rounds=6000, min_sep=5, max_participations=10)
  inner = dense.Dense(triangle(12, 0, 0.0))
  result = sensitivity.sensitivity(stamped.Stamped(inner, 12), schema)
  squares = [0.0] + [
    sensitivity.sensitivity(
      inner, participation.MinSep(num_rounds=12, min_sep=5, max_participations=count)
    ).value
    ** 2
    for count in (1, 2, 3)
  ]
  best = max(
    sum(squares[count] for count in split)
    for split in itertools.combinations_with_replacement(range(4), 10)
    if sum(split) == 10
  )
  assert result.kind == 'upper_bound'
  assert result.value**2 == pytest.approx(best)


def test_more_participations_than_splits_are_tried_for():
  strategy = stamped.Stamped(dense.Dense(np.tri(8)), 8)
  schema = participation.MinSep(num_rounds=40_004)
  result = sensitivity.sensitivity(strategy, schema)
  assert result.kind == 'upper_bound'
  whole, rest = np.square(np.arange(9)).sum(), 1 + 4 + 9 + 16
  assert result.value**2 == pytest.approx(5000 * whole + rest)
