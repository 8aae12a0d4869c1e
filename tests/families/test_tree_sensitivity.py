"""Trees: completed, restarted, and for logs of many rounds."""

import numpy as np
import pytest

from fl_dpftrl import sensitivity
from fl_dpftrl.families import stamped, tree_full, tree_online
from fl_dpftrl.participation import schemas
from tests import oracle


@pytest.mark.parametrize('num_rounds', [1, 2, 7, 16, 37])
@pytest.mark.parametrize(
  'make', [tree_online.TreeOnline, tree_full.TreeFull, lambda n: tree_online.TreeOnline()]
)
def test_gram_matrix(make, num_rounds):
  matrix = make(num_rounds).strategy_matrix(num_rounds)
  np.testing.assert_allclose(
    make(num_rounds).gram_matrix(num_rounds), matrix.T @ matrix, atol=1e-12
  )


@pytest.mark.parametrize('block_rounds', [1, 2, 3, 5, 6])
@pytest.mark.parametrize(
  'make',
  [
    lambda r: tree_online.TreeOnline(),
    tree_online.TreeOnline,
    tree_full.TreeFull,
    lambda r: tree_full.TreeFull(),
  ],
)
def test_restarts_are_exact(make, block_rounds):
  """Except where the last block of a full tree is cut short."""
  strategy = stamped.Stamped(make(block_rounds), block_rounds)
  for num_rounds in (6, 10, 11):
    matrix = strategy.strategy_matrix(num_rounds)
    for min_sep in (1, 2, 3, 4, 7):
      for most in (2, 3, None):
        schema = schemas.MinSep(num_rounds=num_rounds, min_sep=min_sep, max_participations=most)
        value, kind = sensitivity.sensitivity(strategy, schema)
        truth = oracle.worst(matrix, schema)
        assert value >= truth * (1 - 1e-12)
        cut_short = num_rounds % block_rounds and num_rounds > block_rounds
        if kind == 'exact':
          assert value == pytest.approx(truth)
        else:
          assert cut_short or num_rounds < block_rounds
          assert make is tree_full.TreeFull


@pytest.mark.slow
def test_many_restarts_are_exact():
  schema = schemas.MinSep(num_rounds=30_000, min_sep=70)
  for strategy in (tree_online.TreeOnline(), tree_online.TreeOnline(300)):
    value, kind = sensitivity.sensitivity(stamped.Stamped(strategy, 300), schema)
    assert kind == 'exact'
    first = [np.arange(0, 30_000, 70)]
    reached, _ = sensitivity.pattern_sensitivity(stamped.Stamped(strategy, 300), 30_000, first)
    assert reached[0] * (1 - 1e-12) <= value <= 1.1 * reached[0]


@pytest.mark.parametrize('n, b, k', [(100, 7, None), (100, 1, 30), (97, 13, 4), (64, 16, 4)])
@pytest.mark.parametrize('completed', [False, True])
def test_fixed_separation(n, b, k, completed):
  schema = schemas.FixedSeparation(num_rounds=n, min_sep=b, max_participations=k)
  strategy = tree_online.TreeOnline(n if completed else None)
  gram = strategy.gram_matrix(n)
  found = sensitivity.sensitivity(strategy, schema)
  general = sensitivity.gram_sensitivity(gram, schema)
  assert found == (pytest.approx(general.value, rel=1e-12), 'exact')


@pytest.mark.slow
def test_fixed_separation_of_a_million_rounds():
  schema = schemas.FixedSeparation(num_rounds=10**6, min_sep=333)
  fixed = sensitivity.sensitivity(tree_online.TreeOnline(), schema)
  assert fixed.kind == 'exact'
  apart = sensitivity.sensitivity(
    tree_online.TreeOnline(), schemas.MinSep(num_rounds=10**6, min_sep=333)
  )
  assert fixed.value <= apart.value * (1 + 1e-12)


def test_patterns_of_a_log_of_a_million_rounds():
  patterns = [[5], [0, 1], [2**19, 2**19 + 1, 10**6 - 1]]
  values, kind = sensitivity.pattern_sensitivity(tree_online.TreeOnline(), 10**6, patterns)
  assert kind == 'exact'
  # 10⁶ is even: its last round ends a node of 64 rounds, and lies in 7.
  np.testing.assert_allclose(values**2, [20, 2 + 4 * 19, 2 + 4 * 18 + 7], rtol=1e-12)
