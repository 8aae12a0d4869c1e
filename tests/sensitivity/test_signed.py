"""Worst updates of one pattern where X has negative entries."""

import itertools
import math

import numpy as np
import pytest

from fl_dpftrl.sensitivity import patterns as signed
from tests import oracle

NEGATIVE = np.full((3, 3), -0.5) + 1.5 * np.eye(3)


def grams(count, size, rank):
  matrices = np.random.default_rng(size).normal(size=(count, rank, size))
  return np.einsum('prk,prl->pkl', matrices, matrices)


def test_three_vectors_at_right_angles_to_their_sum():
  """0/1 gives 0, signs 4, the truth is 4.5 and the sum of sizes 6."""
  signs = max(np.array(s) @ NEGATIVE @ s for s in itertools.product((-1, 1), repeat=3))
  assert NEGATIVE.sum() == pytest.approx(0.0)
  assert signs == pytest.approx(4.0)
  squares, exact = signed.worst_squares(NEGATIVE[None])
  assert squares[0] == pytest.approx(4.5) and exact[0]


@pytest.mark.slow
@pytest.mark.parametrize('size', [3, 4, 5, 8])
@pytest.mark.parametrize('rank', [1, 2, 8])
def test_never_below_and_exact_where_it_says_so(size, rank):
  many = grams(20, size, rank)
  squares, exact = signed.worst_squares(many)
  for gram, square, is_exact in zip(many, squares, exact):
    reached = oracle.ascent(gram)
    assert square >= reached * (1 - 1e-12)
    assert square <= np.abs(gram).sum() * (1 + 1e-12)
    if is_exact:
      assert square == pytest.approx(reached, rel=1e-4)
  assert exact.mean() > 0.9


def test_two_and_those_without_negative_entries_need_no_search():
  squares, exact = signed.worst_squares(np.array([[[2.0, -1], [-1, 3.0]]]))
  assert squares[0] == 7.0 and exact[0]
  gram = np.abs(grams(1, 5, 5))
  squares, exact = signed.worst_squares(gram)
  assert squares[0] == pytest.approx(gram.sum()) and exact[0]


def test_signs_that_can_be_turned_away_reach_the_sum_of_sizes():
  signs = np.array([1.0, -1.0, -1.0, 1.0])
  gram = np.outer(signs, signs) * np.abs(grams(1, 4, 4)[0])
  squares, _ = signed.worst_squares(gram[None])
  assert math.isclose(squares[0], np.abs(gram).sum(), rel_tol=1e-9)
