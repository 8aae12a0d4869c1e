"""The online tree: its nodes, and that its weights are the best ones."""

import numpy as np
import pytest

from fl_dpftrl import workloads
from fl_dpftrl.strategies import tree


def test_nodes_in_the_order_of_their_last_round():
  np.testing.assert_array_equal(
      tree.TreeOnline().strategy_matrix(5),
      [
          [1, 0, 0, 0, 0],
          [0, 1, 0, 0, 0],
          [1, 1, 0, 0, 0],
          [0, 0, 1, 0, 0],
          [0, 0, 0, 1, 0],
          [0, 0, 1, 1, 0],
          [1, 1, 1, 1, 0],
          [0, 0, 0, 0, 1],
      ],
  )


@pytest.mark.parametrize('num_rounds', range(1, 40))
def test_counts_of_nodes(num_rounds):
  completed = [tree.nodes_completed(t) for t in range(num_rounds)]
  assert sum(completed) == tree.first_node(num_rounds)
  assert tree.TreeOnline().num_noise_rows(num_rounds) == sum(completed)


@pytest.mark.parametrize('num_rounds', [1, 2, 4, 8, 16])
def test_a_finished_tree_is_estimated_as_well_as_can_be(num_rounds):
  """Its last prefix sum uses the whole tree, so it equals least squares."""
  strategy = tree.TreeOnline()
  prefix = workloads.prefix_sums(num_rounds)
  online = (prefix @ strategy.noising_matrix(num_rounds))[-1]
  best = (prefix @ np.linalg.pinv(strategy.strategy_matrix(num_rounds)))[-1]
  np.testing.assert_allclose(online, best, atol=1e-12)


@pytest.mark.parametrize('num_rounds', [3, 7, 21, 32])
def test_no_prefix_sum_uses_later_nodes(num_rounds):
  strategy = tree.TreeOnline()
  noising = strategy.noising_matrix(num_rounds)
  for t in range(num_rounds):
    assert not noising[t, tree.first_node(t + 1) :].any()


@pytest.mark.parametrize(
    'num_rounds, copies', [(1, 1), (2, 2), (7, 3), (8, 4), (2052, 12)]
)
def test_memory_is_logarithmic(num_rounds, copies):
  assert tree.TreeOnline().memory_copies(num_rounds) == copies
