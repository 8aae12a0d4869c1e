"""Properties of every family of the registry."""

import dataclasses

import numpy as np
import pytest

from fl_dpftrl import workloads
from fl_dpftrl.families import (
  banded,
  banded_inverse,
  banded_toeplitz,
  base,
  blt,
  dense,
  lambda_cgd,
  low_rank,
  registry,
  stamped,
  tree_full,
)

ROUNDS = (1, 2, 3, 7, 8, 21)
MOST = max(ROUNDS) + 1


def banded_example():
  generator = np.random.default_rng(2)
  coefficients = generator.normal(size=(MOST, 4))
  coefficients[:, 0] = 1.0 + np.abs(coefficients[:, 0])
  for j in range(4):
    coefficients[:j, j] = 0.0
  return banded.Banded(coefficients)


def dense_example():
  matrix = np.tril(np.random.default_rng(3).normal(size=(MOST, MOST)) / 4)
  return dense.Dense(matrix + np.diag(1.0 + np.abs(np.diag(matrix))))


def low_rank_example():
  generator = np.random.default_rng(4)
  bands = 4
  near = generator.uniform(-0.3, 0.3, (MOST, bands))
  near[:, 0] += 1.0
  near[np.arange(MOST)[:, None] < np.arange(bands)] = 0.0
  left, right = generator.uniform(-0.2, 0.2, (2, MOST, 3))
  return low_rank.LowRank(near, left, right)


EXAMPLES = {
  'lambda_cgd': lambda: lambda_cgd.LambdaCGD(0.8),
  'banded_inverse': lambda: banded_inverse.BandedInverse([1.2, -0.5, -0.2, 0.1]),
  'tree_full': lambda: tree_full.TreeFull(MOST),
  'banded': banded_example,
  'blt': lambda: blt.BLT([0.97, 0.6, 0.05], [0.1, 0.3, 0.6]),
  'dense': dense_example,
  'low_rank': low_rank_example,
  'stamped': lambda: stamped.Stamped(banded_example(), 5),
  'banded_toeplitz': lambda: banded_toeplitz.BandedToeplitz([1.5, -0.4, 0.6, 0.2]),
}


@pytest.fixture(params=sorted(registry.FAMILIES))
def strategy(request):
  return EXAMPLES.get(request.param, registry.FAMILIES[request.param])()


def test_is_a_strategy_under_its_own_name(strategy):
  assert isinstance(strategy, base.Strategy)
  assert registry.FAMILIES[strategy.family] is type(strategy)


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_the_noising_matrix_undoes_the_strategy_matrix(strategy, num_rounds):
  matrix = strategy.strategy_matrix(num_rounds)
  noising = strategy.noising_matrix(num_rounds)
  rows = strategy.num_noise_rows(num_rounds)
  assert matrix.shape == (rows, num_rounds)
  assert noising.shape == (num_rounds, rows)
  assert matrix.dtype == noising.dtype == np.float64
  prefix = workloads.prefix_sums(num_rounds)
  np.testing.assert_allclose(prefix @ noising @ matrix, prefix, atol=1e-9)


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_a_longer_run_begins_as_a_shorter_one(strategy, num_rounds):
  rows = strategy.num_noise_rows(num_rounds)
  longer = strategy.strategy_matrix(num_rounds + 1)
  np.testing.assert_allclose(longer[:rows, :num_rounds], strategy.strategy_matrix(num_rounds))
  assert not longer[:rows, num_rounds:].any()
  longer = strategy.noising_matrix(num_rounds + 1)
  np.testing.assert_allclose(
    longer[:num_rounds, :rows], strategy.noising_matrix(num_rounds), atol=1e-9
  )
  assert not longer[:num_rounds, rows:].any()


def test_its_parameters_rebuild_it(strategy):
  again = type(strategy)(**strategy.parameters())
  np.testing.assert_array_equal(again.strategy_matrix(7), strategy.strategy_matrix(7))


def test_is_immutable(strategy):
  for field in dataclasses.fields(strategy):
    with pytest.raises(dataclasses.FrozenInstanceError):
      setattr(strategy, field.name, None)
    value = getattr(strategy, field.name)
    with pytest.raises((TypeError, ValueError)):
      value[0] = 0.5


@pytest.mark.parametrize('num_rounds', [0, -1])
def test_refuses_runs_without_rounds(strategy, num_rounds):
  for method in (strategy.strategy_matrix, strategy.noising_matrix):
    with pytest.raises(ValueError, match=f'num_rounds.*{num_rounds}'):
      method(num_rounds)


def test_refuses_runs_beyond_its_last_round(strategy):
  if strategy.max_rounds is None:
    assert strategy.strategy_matrix(3 * MOST).shape[1] == 3 * MOST
  else:
    with pytest.raises(ValueError, match='num_rounds'):
      strategy.strategy_matrix(strategy.max_rounds + 1)


@pytest.mark.parametrize('num_rounds', ROUNDS)
def test_memory_is_a_count(strategy, num_rounds):
  assert 0 <= strategy.memory_copies(num_rounds) <= num_rounds + 3
