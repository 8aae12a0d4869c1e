"""Every family inside TFF, round by round, against the reference."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import factory
from fl_dpftrl.families import (
  banded,
  banded_inverse,
  banded_toeplitz,
  blt,
  dense,
  identity,
  lambda_cgd,
  low_rank,
  registry,
  stamped,
  tree_full,
  tree_online,
)
from fl_dpftrl.noise import randomness, reference

pytestmark = pytest.mark.tff

NUM_ROUNDS = (*range(1, 21), 31, 33)
MOST = max(NUM_ROUNDS)
SIZE, SEED = 3, 5


def _bands(num_rounds=MOST):
  rows = np.random.default_rng(1).uniform(-0.3, 0.4, (num_rounds, 4))
  rows[:, 0] += 1.0
  rows[np.arange(num_rounds)[:, None] < np.arange(4)] = 0.0
  return rows


# Rounds of a shorter run of these are the first of a longer one.
ONE_RUN = {
  'identity': identity.Identity(),
  'tree_online': tree_online.TreeOnline(),
  'banded': banded.Banded(_bands()),
  'lambda_cgd': lambda_cgd.LambdaCGD(0.8),
  'banded_inverse': banded_inverse.BandedInverse([1.2, -0.5, -0.2, 0.1]),
  'banded_toeplitz': banded_toeplitz.BandedToeplitz([1.5, -0.4, 0.6, 0.2], None),
  'blt': blt.BLT((0.99, 0.8, 0.3), (0.25, 0.3, 0.2)),
  'dense': dense.Dense(banded.Banded(_bands()).strategy_matrix(MOST)),
  'low_rank': low_rank.LowRank(
    _bands(), *np.random.default_rng(2).uniform(-0.2, 0.2, (2, MOST, 2))
  ),
  'stamped': stamped.Stamped(blt.BLT((0.9,), (0.3,)), 5),
}
# The rows of these depend on how many there will be.
EACH_RUN = {
  'tree_full': tree_full.TreeFull,
  'completed tree_online': tree_online.TreeOnline,
  'normalised banded_toeplitz': lambda num_rounds: banded_toeplitz.BandedToeplitz(
    [1.5, -0.4, 0.6, 0.2], num_rounds
  ),
  'stamped tree_full': lambda num_rounds: stamped.Stamped(
    tree_full.TreeFull(7), min(num_rounds, 5)
  ),
}


def check(strategy, num_rounds):
  made = factory.CorrelatedNoiseFactory(
    strategy, noise_multiplier=2.0, clip_norm=0.5, report_goal=1, noise_seed=SEED
  )
  process = made.create(tff.TensorType(np.float32, [SIZE]))
  state = process.initialize()
  specs = [tf.TensorSpec([SIZE], tf.float32)]
  z = [
    randomness.draw(randomness.fixed_seed(SEED), np.int64(r), specs)[0]
    for r in range(strategy.num_noise_rows(num_rounds))
  ]
  plain = reference.reference_stream(strategy, np.array(z, np.float64))
  plain_state, nothing = plain.init(), [np.zeros(SIZE, np.float32)]
  for t in range(num_rounds):
    output = process.next(state, nothing)
    state = output.state
    expected, plain_state = plain.next(plain_state)
    np.testing.assert_allclose(output.result, expected, rtol=1e-4, atol=1e-5, err_msg=f'round {t}')


def test_no_family_is_forgotten():
  named = {name.split()[-1] for name in (*ONE_RUN, *EACH_RUN)}
  assert named == set(registry.FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(ONE_RUN))
def test_all_rounds(name):
  check(ONE_RUN[name], MOST)


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(EACH_RUN))
def test_all_rounds_of_each_length(name):
  lengths = NUM_ROUNDS if name != 'stamped tree_full' else (1, 2, 3, 4, 20)
  for num_rounds in lengths:
    check(EACH_RUN[name](num_rounds), num_rounds)


@pytest.mark.parametrize('num_rounds', [3, 12])
def test_a_full_tree_goes_on_after_a_complete_tree(num_rounds):
  """Tensors in TFF's graphs that are compared by == are never equal."""
  check(tree_full.TreeFull(num_rounds), num_rounds)
