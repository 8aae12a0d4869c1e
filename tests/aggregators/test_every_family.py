"""Every family inside TFF, round by round, against the reference."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.families import banded_toeplitz, stamped, tree_full, tree_online
from fl_dpftrl.noise import randomness, reference
from tests import every_family
from tests.aggregators.made import make, run

pytestmark = pytest.mark.tff

MOST = 33
SIZE, SEED = 3, 5


def check(strategy, num_rounds):
  aggregator = make(strategy, noise_multiplier=2.0, clip_norm=0.5, report_goal=1, noise_seed=SEED)
  process = aggregator.create(tff.TensorType(np.float32, [SIZE]))
  seed, specs = randomness.fixed_seed(SEED), [tf.TensorSpec([SIZE], tf.float32)]

  def fresh(t, scale):
    (z,) = randomness.draw(seed, np.int64(t), specs)
    return np.rint(scale * z.numpy()).astype(np.int64)

  plain = reference.reference_stream(strategy, num_rounds, SIZE, fresh)
  plain_state = plain.init()
  for t, output in enumerate(run(process, [np.zeros(SIZE, np.float32)], num_rounds)):
    row, plain_state = plain.next(plain_state)
    # A few units of the lattice: the order of a sum in float64, and the rounding of float32.
    np.testing.assert_allclose(
      output.result, 2.0**-34 * row, rtol=2.0**-23, atol=2.0**-30, err_msg=f'round {t}'
    )


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
  for num_rounds in (1, 3, 12):
    check(EACH_RUN[name](num_rounds), num_rounds)
