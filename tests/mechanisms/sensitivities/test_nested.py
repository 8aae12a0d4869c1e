"""The worst pattern over nested blocks, against every pattern."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms.families import tree_online
from fl_dpftrl.mechanisms.sensitivities import nested
from tests import oracle


def rows(block: nested.Block) -> np.ndarray:
  """C of a block, row by row."""
  own = np.ones((block.nodes, block.length))
  if not block.halves:
    return own
  left, right = (rows(half) for half in block.halves)
  return np.concatenate(
    [
      np.pad(left, ((0, 0), (0, block.length - left.shape[1]))),
      np.pad(right, ((0, 0), (block.length - right.shape[1], 0))),
      own,
    ]
  )


def worst_squares(matrix: np.ndarray, separation: int) -> dict[int, float]:
  """Largest square of any pattern of each size, by trying all."""
  best: dict[int, float] = {}

  def extend(first, column, size):
    best[size] = max(best.get(size, 0.0), float(column @ column))
    for i in range(first, matrix.shape[1]):
      extend(i + separation, column + matrix[:, i], size + 1)

  extend(0, np.zeros(matrix.shape[0]), 0)
  return best


def check_every_count(block, separation):
  best = worst_squares(rows(block), separation)
  for most in range(1, max(best) + 2):
    expected = max(v for size, v in best.items() if size <= most)
    schema = dpftrl.MinSep(block.length, separation, most)
    assert nested.worst_square(block, schema) == (expected, True)


@pytest.mark.parametrize('num_rounds', range(1, 14))
def test_every_pattern_of_short_trees(num_rounds):
  for separation in range(1, num_rounds + 2):
    check_every_count(nested.forest(num_rounds), separation)


@pytest.mark.parametrize('num_rounds', [16, 21, 24, 25, 31, 33])
@pytest.mark.parametrize('separation', [3, 4, 5, 7])
def test_every_pattern_of_longer_trees(num_rounds, separation):
  if num_rounds / separation < 9:
    check_every_count(nested.forest(num_rounds), separation)


@st.composite
def blocks(draw, length):
  nodes = draw(st.integers(0, 3))
  if length == 1:
    return nested.Block(1, nodes=nodes)
  cut = draw(st.integers(1, length - 1))
  left = draw(blocks(cut))
  right = left if length == 2 * cut else draw(blocks(length - cut))
  return nested.beside(left, right, nodes)


@hypothesis.given(st.integers(1, 11).flatmap(blocks), st.integers(1, 12))
def test_every_pattern_of_any_blocks(block, separation):
  check_every_count(block, separation)


@pytest.mark.parametrize('num_rounds', [1, 5, 6, 7, 13])
@pytest.mark.parametrize('length', [1, 3, 4, 5])
def test_first_rounds_of_a_block(num_rounds, length):
  block = nested.forest(num_rounds)
  length = min(length, num_rounds)
  first = rows(nested.first_rounds(block, length))
  expected = rows(block)[:, :length]
  expected = expected[expected.any(axis=1)]
  key = lambda matrix: sorted(map(tuple, matrix))
  assert key(first) == key(expected)


def test_the_blocks_of_a_run_are_the_tree():
  for n in (1, 2, 7, 12, 33):
    key = lambda matrix: sorted(map(tuple, matrix))
    assert key(rows(nested.forest(n))) == key(tree_online.TreeOnline().strategy_matrix(n))


def test_more_participations_than_can_be_searched_are_bounded():
  square, exact = nested.worst_square(nested.forest(10**6), dpftrl.MinSep(10**6, 3))
  assert not exact
  powers = [nested.worst_square(nested.forest(10**6), dpftrl.MinSep(10**6, b)) for b in (2, 4)]
  assert powers[0][1] and powers[1][1]
  assert powers[1][0] < square < powers[0][0]


@pytest.mark.parametrize('limit', ['_MOST_JOINS', '_MOST_SPLITS'])
def test_a_search_that_takes_too_long_is_a_bound(monkeypatch, limit):
  monkeypatch.setattr(nested, limit, 0)
  square, exact = nested.worst_square(nested.forest(16), dpftrl.MinSep(16, 3, 5))
  assert square >= 57 and not exact


def test_refuses_a_schema_of_other_rounds():
  with pytest.raises(ValueError, match='8 rounds, got 7'):
    nested.worst_square(nested.forest(7), dpftrl.MinSep(8, 1))


def test_the_first_rounds_are_not_always_the_worst():
  first = oracle.pattern_sensitivity(
    tree_online.TreeOnline(), 16, [(0, 3, 6, 9, 12), (1, 4, 7, 12, 15)]
  )[0]
  np.testing.assert_allclose(first**2, [55.0, 57.0])
  assert nested.worst_square(nested.forest(16), dpftrl.MinSep(16, 3, 5)) == (57, True)


@pytest.mark.parametrize('n, k', [(10**4, 777), (10**4, None), (10**6, None)])
def test_participation_in_any_round_fills_subtrees(n, k):
  """With min_sep 1 the first k rounds fill every height at once."""
  count = k or n
  expected = sum(
    min(count >> h, n >> h) * 4**h + ((count % 2**h) ** 2 if count >> h < n >> h else 0)
    for h in range(n.bit_length())
  )
  assert nested.worst_square(nested.forest(n), dpftrl.MinSep(n, 1, k)) == (expected, True)


@pytest.mark.parametrize('count', [1, 2, 3, 6])
def test_a_block_again_and_again(count):
  block = nested.forest(3)
  np.testing.assert_array_equal(nested.repeated(block, count).length, 3 * count)
  check_every_count(nested.repeated(block, count), 4)
