"""Clients that draw random numbers."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

pytestmark = pytest.mark.tff

NUM_CLIENTS, SIZE = 4, 64
# TFF compresses what has over 20 000 entries.
ENTRIES = 20_480
VALUE_TYPE = tff.TensorType(np.float32, [ENTRIES])


def dropout_model():
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(
      [tf.keras.layers.InputLayer([SIZE]), tf.keras.layers.Dropout(0.5), tf.keras.layers.Dense(1)]
    ),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=(tf.TensorSpec([None, SIZE], tf.float32), tf.TensorSpec([None, 1], tf.float32)),
  )


def fed_avg_with_dropout():
  """Trains a round; whether the weights changed, and are numbers."""
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    dropout_model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.01),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
  )
  rng = np.random.default_rng(0)
  x = rng.normal(size=(6, SIZE)).astype(np.float32)
  data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(3)
  state = process.initialize()
  before = process.get_model_weights(state).trainable
  output = process.next(state, [data] * NUM_CLIENTS)
  after = process.get_model_weights(output.state).trainable
  return all(np.isfinite(part).all() for part in after) and any(
    (a != b).any() for a, b in zip(after, before)
  )


def aggregates(make, tolerance):
  """Returns true if the result is the mean of the clients, or near."""
  process = make().create(VALUE_TYPE)
  values = np.random.default_rng(1).uniform(-0.1, 0.1, (NUM_CLIENTS, ENTRIES))
  values = list(values.astype(np.float32))
  output = process.next(process.initialize(), values)
  return np.abs(output.result - np.mean(values, axis=0)).max() <= tolerance


CASES = {
  'dropout': fed_avg_with_dropout,
  'compression': functools.partial(
    aggregates,
    lambda: tff.learning.compression_aggregator(weighted=False, zeroing=False, clipping=False),
    0.05,
  ),
  'rotation': functools.partial(
    aggregates,
    lambda: tff.aggregators.HadamardTransformFactory(tff.aggregators.UnweightedMeanFactory()),
    1e-5,
  ),
  'dp': functools.partial(
    aggregates,
    lambda: tff.learning.dp_aggregator(noise_multiplier=1e-3, clients_per_round=NUM_CLIENTS),
    0.2,
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', CASES)
def test_clients_may_draw(in_process, name):
  with tff.framework.get_context_stack().install(in_process):
    assert CASES[name]()
