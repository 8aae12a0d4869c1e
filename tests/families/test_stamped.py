"""Strategies that restart: blocks, errors, sensitivity against every pattern."""

import itertools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import banded, blt, dense, identity, stamped, tree_online
from fl_dpftrl.participation import schemas
from tests import drawn, oracle


def test_blocks_along_the_diagonal():
  inner = blt.BLT([0.5], [1.0])
  strategy = stamped.Stamped(inner, 3)
  whole, rest = inner.strategy_matrix(3), inner.strategy_matrix(1)
  np.testing.assert_array_equal(
    strategy.strategy_matrix(7),
    np.block(
      [
        [whole, np.zeros((3, 4))],
        [np.zeros((3, 3)), whole, np.zeros((3, 1))],
        [np.zeros((1, 6)), rest],
      ]
    ),
  )


def test_counts_rows_of_z_by_the_block():
  """Eight rounds of a tree complete 15 nodes, and five of them 8."""
  strategy = stamped.Stamped(tree_online.TreeOnline(), 8)
  assert strategy.num_noise_rows(8) == 15
  assert strategy.num_noise_rows(21) == 38
  assert strategy.memory_copies(5) == 3
  assert strategy.memory_copies(1000) == 4


def test_goes_on_beyond_what_it_repeats():
  strategy = stamped.Stamped(banded.Banded(np.ones((4, 1))), 4)
  assert strategy.max_rounds is None
  np.testing.assert_array_equal(strategy.strategy_matrix(11), np.eye(11))


@pytest.mark.parametrize(
  'workload',
  [
    workloads.Workload(),
    workloads.Workload(0.9, cooldown_fraction=0.5),
    workloads.Matrix(np.random.default_rng(0).normal(size=(5, 21))),
  ],
)
@pytest.mark.parametrize('block_rounds', [1, 4, 7, 20, 21, 30])
def test_errors_of_the_blocks_add_up(workload, block_rounds):
  strategy = stamped.Stamped(tree_online.TreeOnline(), block_rounds)
  np.testing.assert_allclose(
    error.per_query_error(strategy, 21, workload),
    oracle.per_query_error(strategy, 21, workload),
    rtol=1e-12,
  )


@pytest.mark.parametrize('block_rounds', [0, -1, 2.0, None, True, '3'])
def test_refuses_other_block_rounds(block_rounds):
  with pytest.raises(ValueError, match='block_rounds must be'):
    stamped.Stamped(tree_online.TreeOnline(), block_rounds)


def test_refuses_blocks_that_the_strategy_cannot_run():
  with pytest.raises(ValueError, match='block_rounds=5 is beyond the 4 rounds'):
    stamped.Stamped(banded.Banded(np.ones((4, 1))), 5)


@pytest.mark.parametrize('strategy', [tree_online.TreeOnline, 'blt', None])
def test_refuses_what_is_no_strategy(strategy):
  with pytest.raises(ValueError, match='strategy must be a Strategy'):
    stamped.Stamped(strategy, 3)


def check(strategy, schema):
  """At least the truth, and it where it says so, for X without negatives."""
  matrix = strategy.strategy_matrix(schema.num_rounds)
  result = sensitivity.sensitivity(strategy, schema)
  truth = oracle.worst(matrix, schema)
  assert result.kind in ('exact', 'upper_bound')
  assert result.value >= truth * (1.0 - 1e-12)
  if result.kind == 'exact':
    assert result.value == pytest.approx(truth, rel=1e-12)
  return result


@hypothesis.given(drawn.schemas(most_rounds=10), st.integers(1, 6), st.integers(0, 9))
def test_dense_blocks(schema, block_rounds, seed):
  strategy = stamped.Stamped(dense.Dense(drawn.triangle(6, seed, 0.0)), block_rounds)
  result = check(strategy, schema)
  few = min(schema.participations, -(-block_rounds // schema.min_sep))
  if few <= 2 or isinstance(schema, schemas.FixedSeparation):
    assert result.kind == 'exact'


@hypothesis.given(
  drawn.schemas(most_rounds=10), st.integers(1, 6), st.floats(0.01, 0.99), st.floats(0.0, 1.0)
)
def test_blt_blocks_are_exact(schema, block_rounds, decay, scale):
  strategy = stamped.Stamped(blt.BLT([decay], [scale]), block_rounds)
  assert check(strategy, schema).kind == 'exact'


@hypothesis.given(drawn.schemas(most_rounds=10), st.integers(1, 9))
def test_other_blocks(schema, block_rounds):
  check(stamped.Stamped(tree_online.TreeOnline(), block_rounds), schema)
  assert check(stamped.Stamped(identity.Identity(), block_rounds), schema).kind == 'exact'
  check(stamped.Stamped(stamped.Stamped(tree_online.TreeOnline(), 2), block_rounds), schema)


@hypothesis.given(drawn.schemas(most_rounds=7), st.integers(1, 4), st.integers(0, 9))
def test_vector_updates_are_bounded(schema, block_rounds, seed):
  inner = dense.Dense(drawn.triangle(4, seed, -1.0))
  strategy = stamped.Stamped(inner, block_rounds)
  matrix = strategy.strategy_matrix(schema.num_rounds)
  found = oracle.worst_of_vectors(matrix, schema)
  result = sensitivity.sensitivity(strategy, schema)
  assert result.value >= found * (1.0 - 1e-9)
  if result.kind == 'exact':
    assert result.value == pytest.approx(found, rel=1e-5)


def test_a_device_may_take_part_in_many_blocks():
  """Restarts do not bring back what a device has given before."""
  inner = banded.Banded(np.ones((4, 1)))
  strategy = stamped.Stamped(inner, 4)
  once = schemas.MinSep(num_rounds=40, max_participations=1)
  often = schemas.MinSep(num_rounds=40, min_sep=4)
  assert sensitivity.sensitivity(strategy, once) == (1.0, 'exact')
  assert sensitivity.sensitivity(strategy, often).value == math.sqrt(10.0)


def test_min_sep_holds_across_blocks():
  """Ends and beginnings of blocks are closer than min_sep."""
  inner = banded.Banded(np.array([[1.0], [1.0], [5.0]]))
  schema = schemas.MinSep(num_rounds=6, min_sep=3)
  strategy = stamped.Stamped(dense.Dense(np.diag([7.0, 1.0, 5.0])), 3)
  assert sensitivity.sensitivity(strategy, schema) == (math.sqrt(98.0), 'exact')
  schema = schemas.MinSep(num_rounds=5, min_sep=3)
  # Rounds 2 and 5 would give √50, and round 5 does not happen.
  assert sensitivity.sensitivity(stamped.Stamped(inner, 3), schema) == (5.0, 'exact')


def test_long_runs():
  """Blocks with room for three, of a family of which no more is known."""
  schema = schemas.MinSep(num_rounds=6000, min_sep=5, max_participations=10)
  inner = dense.Dense(drawn.triangle(12, 0, 0.0))
  result = sensitivity.sensitivity(stamped.Stamped(inner, 12), schema)
  squares = [0.0] + [
    sensitivity.sensitivity(
      inner, schemas.MinSep(num_rounds=12, min_sep=5, max_participations=count)
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
  schema = schemas.MinSep(num_rounds=40_004)
  result = sensitivity.sensitivity(strategy, schema)
  assert result.kind == 'upper_bound'
  whole, rest = np.square(np.arange(9)).sum(), 1 + 4 + 9 + 16
  assert result.value**2 == pytest.approx(5000 * whole + rest)
