"""Trees: their nodes, that their weights are the best ones, and runs of very many rounds."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import stamped, tree_full, tree_online
from tests import oracle
from tests.noise import plain


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


@pytest.mark.parametrize('num_rounds', [1, 2, 4, 8, 16])
def test_a_finished_tree_is_estimated_as_well_as_can_be(num_rounds):
  """Its last prefix sum uses the whole tree, so it equals least squares."""
  strategy = tree_online.TreeOnline()
  prefix = np.tri(num_rounds)
  online = (prefix @ strategy.noising_matrix(num_rounds))[-1]
  best = (prefix @ np.linalg.pinv(strategy.strategy_matrix(num_rounds)))[-1]
  np.testing.assert_allclose(online, best, atol=1e-12)


@pytest.mark.parametrize('num_rounds', [1, 2, 3, 5, 8, 12, 21, 64, 77])
def test_a_full_tree_has_the_gram_matrix_of_the_nodes_and_the_best_covariance(num_rounds):
  nodes, prefix = tree_online.TreeOnline().strategy_matrix(num_rounds), np.tri(num_rounds)
  matrix = tree_full.TreeFull().strategy_matrix(num_rounds)
  np.testing.assert_allclose(matrix.T @ matrix, nodes.T @ nodes, atol=1e-12)
  np.testing.assert_array_equal(matrix, np.tril(matrix))
  best = prefix @ np.linalg.pinv(nodes)
  own = prefix @ tree_full.TreeFull().noising_matrix(num_rounds)
  np.testing.assert_allclose(own @ own.T, best @ best.T, atol=1e-11)
  _, single = tree_full.node_moments(num_rounds.bit_length())
  heights = [tree_full.height_of_tree(t, num_rounds) for t in range(num_rounds)]
  np.testing.assert_allclose(np.diagonal(np.linalg.inv(nodes.T @ nodes)), single[heights])


def test_a_full_tree_streams_only_a_run_of_known_length():
  with pytest.raises(ValueError, match='num_rounds is needed to stream'):
    plain.stream(tree_full.TreeFull(), None, 1, lambda t, chunk: None)


def test_a_run_of_a_full_tree_that_ends_early_is_bounded():
  strategy = tree_full.TreeFull(819)
  early, whole = (
    sensitivities.sensitivity(strategy, dpftrl.MinSep(num_rounds=n, min_sep=100))
    for n in (600, 819)
  )
  assert early.kind != 'lower_bound' and whole.kind == 'exact'
  reached, _ = oracle.pattern_sensitivity(strategy, 600, [np.arange(0, 600, 100)])
  assert reached[0] * (1 - 1e-12) <= early.value <= whole.value


@pytest.mark.slow
def test_many_restarts_are_exact():
  strategy = stamped.Stamped(tree_online.TreeOnline(), 300)
  value, kind = sensitivities.sensitivity(strategy, dpftrl.MinSep(num_rounds=30_000, min_sep=70))
  first, _ = oracle.pattern_sensitivity(strategy, 30_000, [np.arange(0, 30_000, 70)])
  assert kind == 'exact'
  assert first[0] * (1 - 1e-12) <= value <= 1.1 * first[0]


@pytest.mark.parametrize('n, b, k', [(100, 7, None), (100, 1, 30), (97, 13, 4), (64, 16, 4)])
def test_fixed_separation(n, b, k):
  schema = dpftrl.FixedSeparation(num_rounds=n, min_sep=b, max_participations=k)
  strategy = tree_online.TreeOnline()
  general = sensitivities.gram_sensitivity(strategy.gram_matrix(n), schema)
  expected = pytest.approx(general.value, rel=1e-12), 'exact'
  assert sensitivities.sensitivity(strategy, schema) == expected
