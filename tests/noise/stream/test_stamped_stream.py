"""Streams that begin anew with every block of rounds."""

import numpy as np
import pytest
import tensorflow as tf

from fl_dpftrl.families import stamped
from fl_dpftrl.noise import reference
from fl_dpftrl.noise import stream as streams

pytestmark = pytest.mark.tff


@pytest.mark.slow
@pytest.mark.parametrize('block_rounds, in_graph', [(1, False), (3, True), (8, False), (40, True)])
def test_every_family_can_be_stamped(example, block_rounds, in_graph):
  strategy = stamped.Stamped(example(max(block_rounds, 2)), block_rounds)
  z = np.random.default_rng(0).normal(size=(strategy.num_noise_rows(19), 4))
  table = tf.constant(z, tf.float32)
  stream = streams.make_stream(
    strategy,
    [tf.TensorSpec([4], tf.float32)],
    stddev=1.0,
    draw=lambda seed, row, specs: [tf.gather(table, row)],
  )
  next_fn = stream.next
  if in_graph:
    next_fn = tf.function(next_fn, reduce_retracing=True)
  expected = strategy.noising_matrix(19) @ z
  norms = np.linalg.norm(strategy.noising_matrix(19), axis=1)
  plain = reference.reference_stream(strategy, z)
  state, plain_state = stream.init(), plain.init()
  for t in range(19):
    (row,), state = next_fn(state)
    plain_row, plain_state = plain.next(plain_state)
    np.testing.assert_allclose(plain_row, expected[t], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(row, expected[t], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(state.row_stddev, norms[t], rtol=1e-5)
