"""The online tree: its nodes, and that its weights are the best ones."""

import numpy as np
import pytest

from fl_dpftrl import error, workloads
from fl_dpftrl.families import stamped, tree_online


def test_nodes_in_the_order_of_their_last_round():
  np.testing.assert_array_equal(
    tree_online.TreeOnline().strategy_matrix(5),
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
  completed = [tree_online.nodes_completed(t) for t in range(num_rounds)]
  assert sum(completed) == tree_online.first_node(num_rounds)
  assert tree_online.TreeOnline().num_noise_rows(num_rounds) == sum(completed)


@pytest.mark.parametrize('num_rounds', [1, 2, 4, 8, 16])
def test_a_finished_tree_is_estimated_as_well_as_can_be(num_rounds):
  """Its last prefix sum uses the whole tree, so it equals least squares."""
  strategy = tree_online.TreeOnline()
  prefix = workloads.prefix_sums(num_rounds)
  online = (prefix @ strategy.noising_matrix(num_rounds))[-1]
  best = (prefix @ np.linalg.pinv(strategy.strategy_matrix(num_rounds)))[-1]
  np.testing.assert_allclose(online, best, atol=1e-12)


@pytest.mark.parametrize('num_rounds', [3, 7, 21, 32])
def test_no_prefix_sum_uses_later_nodes(num_rounds):
  strategy = tree_online.TreeOnline()
  noising = strategy.noising_matrix(num_rounds)
  for t in range(num_rounds):
    assert not noising[t, tree_online.first_node(t + 1) :].any()


@pytest.mark.parametrize('num_rounds, copies', [(1, 1), (2, 2), (7, 3), (8, 4), (2052, 12)])
def test_memory_is_logarithmic(num_rounds, copies):
  assert tree_online.TreeOnline().memory_copies(num_rounds) == copies


COMPLETED = [1, 2, 3, 4, 5, 6, 7, 11, 24, 33]


@pytest.mark.parametrize('num_rounds', COMPLETED)
def test_completion_estimates_the_sum_of_all_rounds_as_well_as_can_be(num_rounds):
  strategy = tree_online.TreeOnline(num_rounds)
  prefix = workloads.prefix_sums(num_rounds)
  online = (prefix @ strategy.noising_matrix(num_rounds))[-1]
  best = (prefix @ np.linalg.pinv(strategy.strategy_matrix(num_rounds)))[-1]
  np.testing.assert_allclose(online, best, atol=1e-12)
  plain = prefix @ tree_online.TreeOnline().noising_matrix(num_rounds)
  assert online @ online <= plain[-1] @ plain[-1] + 1e-12


@pytest.mark.parametrize('num_rounds', COMPLETED)
def test_completion_adds_the_nodes_of_virtual_rounds(num_rounds):
  """Rows of the tree of a power of 2, of which some have no real round."""
  size = 2 ** (num_rounds - 1).bit_length()
  whole = tree_online.TreeOnline().strategy_matrix(size)[:, :num_rounds]
  expected = whole[whole.any(axis=1)]
  found = tree_online.TreeOnline(num_rounds).strategy_matrix(num_rounds)
  assert sorted(map(tuple, found)) == sorted(map(tuple, expected))


@pytest.mark.parametrize('num_rounds', [4, 6, 9])
def test_completion_changes_nothing_before_the_last_round(num_rounds):
  completed, plain = tree_online.TreeOnline(num_rounds), tree_online.TreeOnline()
  for earlier in range(1, num_rounds):
    for name in ('strategy_matrix', 'noising_matrix'):
      np.testing.assert_array_equal(
        getattr(completed, name)(earlier), getattr(plain, name)(earlier)
      )


def test_completion_pays_over_many_restarts():
  """Each earlier tree of 100 rounds adds one node's variance, not three's."""
  plain = stamped.Stamped(tree_online.TreeOnline(), 100)
  completed = stamped.Stamped(tree_online.TreeOnline(100), 100)
  before, after = (error.per_query_error(strategy, 2000)[-1] for strategy in (plain, completed))
  assert after < 0.65 * before


@pytest.mark.parametrize('rounds', [0, -1, 2.5, True, 'x'])
def test_refuses_to_complete_after_other_rounds(rounds):
  with pytest.raises(ValueError, match='completed_after must be'):
    tree_online.TreeOnline(rounds)
