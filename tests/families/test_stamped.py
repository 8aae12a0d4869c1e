import numpy as np
import pytest

from fl_dpftrl import error, workloads
from fl_dpftrl.families import banded, blt, stamped, tree_online


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
    np.linalg.norm(workload.matrix(21) @ strategy.noising_matrix(21), axis=1),
    rtol=1e-12,
  )


@pytest.mark.parametrize('block_rounds', [0, -1, 2.0, None, True, '3'])
def test_refuses_other_block_rounds(block_rounds):
  with pytest.raises(ValueError, match='block_rounds.*at least 1'):
    stamped.Stamped(tree_online.TreeOnline(), block_rounds)


def test_refuses_blocks_that_the_strategy_cannot_run():
  with pytest.raises(ValueError, match='block_rounds=5 is beyond the 4 rounds'):
    stamped.Stamped(banded.Banded(np.ones((4, 1))), 5)


@pytest.mark.parametrize('strategy', [tree_online.TreeOnline, 'blt', None])
def test_refuses_what_is_no_strategy(strategy):
  with pytest.raises(ValueError, match='strategy must be a Strategy'):
    stamped.Stamped(strategy, 3)
