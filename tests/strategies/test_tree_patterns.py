"""The worst pattern for a tree, against every pattern."""

import numpy as np
import pytest

from fl_dpftrl import participation
from fl_dpftrl import sensitivity
from fl_dpftrl.strategies import tree
from fl_dpftrl.strategies import tree_patterns


def worst_squares(num_rounds: int, min_sep: int) -> dict[int, float]:
  """Largest square of any pattern of each size, by trying all."""
  matrix = tree.TreeOnline().strategy_matrix(num_rounds)
  best: dict[int, float] = {}

  def extend(first, column, size):
    best[size] = max(best.get(size, 0.0), float(column @ column))
    for i in range(first, num_rounds):
      extend(i + min_sep, column + matrix[:, i], size + 1)

  extend(0, np.zeros(matrix.shape[0]), 0)
  return best


@pytest.mark.parametrize('num_rounds', range(1, 14))
def test_every_pattern_of_short_runs(num_rounds):
  for min_sep in range(1, num_rounds + 2):
    best = worst_squares(num_rounds, min_sep)
    for most in range(1, num_rounds + 2):
      expected = max(v for size, v in best.items() if size <= most)
      assert expected == tree_patterns.worst_square(num_rounds, min_sep, most)


@pytest.mark.parametrize('num_rounds', [16, 21, 24, 31, 33])
@pytest.mark.parametrize('min_sep', [4, 5, 7])
def test_every_pattern_of_longer_runs(num_rounds, min_sep):
  best = worst_squares(num_rounds, min_sep)
  for most in range(1, max(best) + 1):
    expected = max(v for size, v in best.items() if size <= most)
    assert expected == tree_patterns.worst_square(num_rounds, min_sep, most)


def test_the_first_rounds_are_not_always_the_worst():
  first = sensitivity.pattern_sensitivity(
      tree.TreeOnline(), 16, [(0, 3, 6, 9, 12), (1, 4, 7, 12, 15)]
  )[0]
  np.testing.assert_allclose(first**2, [55.0, 57.0])
  assert tree_patterns.worst_square(16, 3, 5) == 57


@pytest.mark.parametrize('n, b, k', [
    (2052, 342, 6), (2000, 100, 10), (300, 10, 30), (1280, 300, 4),
    (1000, 1, 40), (777, 50, None), (4096, 16, None),
])
def test_lies_between_the_first_rounds_and_the_bound(n, b, k):
  schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = tree.TreeOnline()
  first = range(0, schema.participations * b, b)
  lower = sensitivity.pattern_sensitivity(strategy, n, [first])[0][0]
  upper = sensitivity.gram_sensitivity(
      sensitivity.gram_matrix(strategy, n), schema
  ).value
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert kind == 'exact'
  assert lower * (1 - 1e-12) <= value <= upper * (1 + 1e-12)


def test_sensitivity_of_the_papers_tree():
  """McMahan, Xu, Zhang 2024: n = 2052, b = 342, k = 6."""
  assert tree_patterns.worst_square(2052, 342, 6) == 118
