"""The full tree: least squares from every node, by a square C."""

import numpy as np
import pytest

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import tree_full, tree_online
from fl_dpftrl.noise import reference
from fl_dpftrl.participation import schemas

ROUNDS = [1, 2, 3, 5, 8, 12, 21, 64, 77]


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_has_the_gram_matrix_of_the_nodes(num_rounds):
  nodes = tree_online.TreeOnline().strategy_matrix(num_rounds)
  matrix = tree_full.TreeFull().strategy_matrix(num_rounds)
  np.testing.assert_allclose(matrix.T @ matrix, nodes.T @ nodes, atol=1e-12)
  np.testing.assert_array_equal(matrix, np.tril(matrix))


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_has_the_covariance_of_the_pseudo_inverse(num_rounds):
  nodes = tree_online.TreeOnline().strategy_matrix(num_rounds)
  best = workloads.prefix_sums(num_rounds) @ np.linalg.pinv(nodes)
  own = workloads.prefix_sums(num_rounds) @ (tree_full.TreeFull().noising_matrix(num_rounds))
  np.testing.assert_allclose(own @ own.T, best @ best.T, atol=1e-11)


@pytest.mark.parametrize('num_rounds', [1, 6, 8, 13])
def test_a_run_that_ends_early_has_the_first_rows(num_rounds):
  whole = tree_full.TreeFull().strategy_matrix(13)
  np.testing.assert_array_equal(
    tree_full.TreeFull(13).strategy_matrix(num_rounds), whole[:num_rounds, :num_rounds]
  )


def test_losses_as_published():
  """McMahan, Xu, Zhang 2024, accuracy table, its two headings put right."""
  schema = schemas.MinSep(num_rounds=2052, min_sep=342, max_participations=6)
  strategy = tree_full.TreeFull(2052)
  worst = sensitivity.sensitivity(strategy, schema)
  found = error.error(strategy, 2052)
  assert worst == (pytest.approx(np.sqrt(118)), 'exact')
  assert worst.value * found.rms == pytest.approx(12.4715, abs=5e-5)
  assert worst.value * found.max == pytest.approx(14.9809, abs=5e-5)


def test_errors_of_a_million_rounds_lie_between_identity_and_online():
  full = error.per_query_error(tree_full.TreeFull(), 10**6)
  online = error.per_query_error(tree_online.TreeOnline(), 10**6)
  assert (full <= online * (1 + 1e-12)).all()
  # A finished tree's last prefix sum leaves nothing to later nodes.
  assert full[2**19 - 1] == pytest.approx(online[2**19 - 1])


@pytest.mark.parametrize('num_rounds', [1, 2, 11, 16])
def test_moments_of_finished_trees(num_rounds):
  covariance = np.linalg.inv(tree_full.TreeFull().gram_matrix(num_rounds))
  _, single = tree_full.node_moments(num_rounds.bit_length())
  heights = [tree_full.height_of_tree(t, num_rounds) for t in range(num_rounds)]
  np.testing.assert_allclose(np.diagonal(covariance), single[heights])


def test_streams_only_a_run_of_known_length():
  with pytest.raises(ValueError, match='num_rounds is needed to stream'):
    reference.reference_stream(tree_full.TreeFull(), np.zeros((4, 1)))


@pytest.mark.parametrize('num_rounds', [0, -3, 2.5, True, 'x'])
def test_refuses_other_numbers_of_rounds(num_rounds):
  with pytest.raises(ValueError, match='num_rounds must be'):
    tree_full.TreeFull(num_rounds)


def test_a_run_that_ends_early_is_bounded():
  schema = schemas.MinSep(num_rounds=600, min_sep=100)
  early = sensitivity.sensitivity(tree_full.TreeFull(819), schema)
  whole = sensitivity.sensitivity(
    tree_full.TreeFull(819), schemas.MinSep(num_rounds=819, min_sep=100)
  )
  assert early.kind != 'lower_bound' and whole.kind == 'exact'
  pattern = [np.arange(0, 600, 100)]
  found, _ = sensitivity.pattern_sensitivity(tree_full.TreeFull(819), 600, pattern)
  assert found[0] * (1 - 1e-12) <= early.value <= whole.value
