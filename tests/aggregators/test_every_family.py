"""Every family inside TFF, round by round, against the reference."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import factory
from fl_dpftrl.families import banded_toeplitz, stamped, tree_full, tree_online
from fl_dpftrl.noise import randomness, reference
from tests import every_family

pytestmark = pytest.mark.tff

MOST = 33
SIZE, SEED = 3, 5


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


@pytest.mark.slow
@pytest.mark.parametrize('name', every_family.NAMES)
def test_all_rounds(name):
  check(every_family.example(name, MOST), MOST)


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(EACH_RUN))
def test_all_rounds_of_each_length(name):
  for num_rounds in (1, 2, 5, 13):
    check(EACH_RUN[name](num_rounds), num_rounds)


@pytest.mark.slow
@pytest.mark.parametrize('num_rounds', [3, 12])
def test_a_full_tree_goes_on_after_a_complete_tree(num_rounds):
  """Tensors in TFF's graphs that are compared by == are never equal."""
  check(tree_full.TreeFull(num_rounds), num_rounds)
