"""Strategies that restart: blocks, and sensitivities of devices that return to later ones."""

import itertools
import math

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities
from fl_dpftrl.mechanisms.families import blt, dense, stamped, tree_full
from tests import drawn


def test_blocks_along_the_diagonal():
  inner = blt.BLT([0.5], [1.0])
  whole, rest = inner.strategy_matrix(3), inner.strategy_matrix(1)
  np.testing.assert_array_equal(
    stamped.Stamped(inner, 3).strategy_matrix(7),
    np.block(
      [
        [whole, np.zeros((3, 4))],
        [np.zeros((3, 3)), whole, np.zeros((3, 1))],
        [np.zeros((1, 6)), rest],
      ]
    ),
  )


def test_a_block_that_is_cut_short_is_the_beginning_of_a_whole_one():
  with pytest.raises(ValueError, match='depends on the number of rounds; give it num_rounds=8,'):
    stamped.Stamped(tree_full.TreeFull(), 8)
  strategy = stamped.Stamped(tree_full.TreeFull(8), 8)
  noise, longer = strategy.noising_matrix(8), strategy.noising_matrix(16)
  for num_rounds in (3, 11):
    matrix = strategy.strategy_matrix(num_rounds)
    np.testing.assert_allclose(
      longer[:num_rounds, :num_rounds] @ matrix, np.eye(num_rounds), atol=1e-12
    )
    every = dpftrl.MinSep(num_rounds, 1)
    assert strategy.sensitivity(every).value >= np.linalg.norm(matrix.sum(axis=1)) * (1 - 1e-12)
  np.testing.assert_array_equal(noise, tree_full.TreeFull(8).noising_matrix(8))


def test_long_runs():
  """Blocks with room for three, of a family of which no more is known."""
  schema = dpftrl.MinSep(num_rounds=6000, min_sep=5, max_participations=10)
  inner = dense.Dense(drawn.triangle(12, 0, 0.0))
  result = sensitivities.sensitivity(stamped.Stamped(inner, 12), schema)
  squares = [0.0] + [
    sensitivities.sensitivity(inner, dpftrl.MinSep(12, 5, count)).value ** 2 for count in (1, 2, 3)
  ]
  best = max(
    sum(squares[count] for count in split)
    for split in itertools.combinations_with_replacement(range(4), 10)
    if sum(split) == 10
  )
  assert result == (pytest.approx(math.sqrt(best)), 'upper_bound')


def test_more_participations_than_splits_are_tried_for():
  strategy = stamped.Stamped(dense.Dense(np.tri(8)), 8)
  result = sensitivities.sensitivity(strategy, dpftrl.MinSep(num_rounds=40_004))
  whole, rest = np.square(np.arange(9)).sum(), 1 + 4 + 9 + 16
  assert result == (pytest.approx(math.sqrt(5000 * whole + rest)), 'upper_bound')
