"""Streams that draw rows of Z again instead of keeping them."""

import numpy as np
import pytest
import tensorflow as tf

from fl_dpftrl.families import dense, low_rank
from fl_dpftrl.noise import stream as streams

pytestmark = pytest.mark.tff

SPEC = [tf.TensorSpec([3], tf.float32)]


def test_dense_streams_keep_nothing():
  stream = streams.make_stream(dense.Dense(np.eye(4)), SPEC, stddev=1.0)
  assert not tf.nest.flatten(stream.init().buffers)


def test_rows_of_z_are_the_same_when_drawn_again():
  """With C of ones below the diagonal, N takes row t − 1 off row t."""
  plain = streams.make_stream(dense.Dense(np.eye(5)), SPEC, stddev=1.0, noise_seed=3)
  differences = streams.make_stream(dense.Dense(np.tri(5)), SPEC, stddev=1.0, noise_seed=3)
  state, other, before = plain.init(), differences.init(), np.zeros(3)
  for _ in range(5):
    (z,), state = plain.next(state)
    (row,), other = differences.next(other)
    np.testing.assert_allclose(row, z - before, atol=1e-6)
    before = z


@pytest.mark.slow
@pytest.mark.parametrize(
  'strategy',
  [dense.Dense(np.eye(2)), low_rank.LowRank(np.ones((2, 1)), np.ones((2, 1)), np.ones((2, 1)))],
  ids=['dense', 'low_rank'],
)
def test_streams_end_with_their_strategy(strategy):
  stream = streams.make_stream(strategy, SPEC, stddev=1.0)
  state = stream.init()
  for _ in range(2):
    _, state = stream.next(state)
  for next_fn in (stream.next, tf.function(stream.next)):
    with pytest.raises(tf.errors.InvalidArgumentError, match='for 2 rounds has no noise'):
      next_fn(state)
