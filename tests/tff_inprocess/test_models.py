"""Models of users: dropout, batch normalisation, attention, recurrence."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_inprocess import small_processes as small

pytestmark = [pytest.mark.tff, pytest.mark.slow]

NUM_ROUNDS = 3
LAYERS = tf.keras.layers
WORDS, LENGTH = 20, 6


def images(seed):
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(10, 8, 8, 1)).astype(np.float32)
  return x, (x.mean((1, 2, 3)) > 0).astype(np.int32)


def sentences(seed):
  rng = np.random.default_rng(seed)
  x = rng.integers(1, WORDS, (10, LENGTH)).astype(np.int32)
  return x, np.roll(x, -1, axis=1)


def convolutional():
  return tf.keras.Sequential(
    [
      LAYERS.Input((8, 8, 1)),
      LAYERS.Conv2D(4, 3, use_bias=False),
      LAYERS.BatchNormalization(),
      LAYERS.ReLU(),
      LAYERS.MaxPool2D(),
      LAYERS.Flatten(),
      LAYERS.Dense(2),
    ]
  )


def transformer():
  words = LAYERS.Input((LENGTH,), dtype=tf.int32)
  x = LAYERS.Embedding(WORDS, 8)(words)
  attended = LAYERS.MultiHeadAttention(2, 4, dropout=0.2)(x, x, use_causal_mask=True)
  x = LAYERS.LayerNormalization()(x + LAYERS.Dropout(0.2)(attended))
  return tf.keras.Model(words, LAYERS.Dense(WORDS)(x))


def recurrent():
  return tf.keras.Sequential(
    [
      LAYERS.Input((LENGTH,), dtype=tf.int32),
      LAYERS.Embedding(WORDS, 8),
      LAYERS.LSTM(6, return_sequences=True, dropout=0.1),
      LAYERS.Dense(WORDS),
    ]
  )


MODELS = {
  'convolutional': (convolutional, images),
  'transformer': (transformer, sentences),
  'recurrent': (recurrent, sentences),
}


def trained(process, state, data):
  for _ in range(NUM_ROUNDS):
    state, metrics = process.next(state, data)
  assert np.isfinite(metrics['client_work']['train']['loss'])
  return np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(state)])


@pytest.mark.parametrize(
  'name', ['convolutional', 'transformer', pytest.param('recurrent', marks=pytest.mark.thorough)]
)
def test_trains_to_the_same_bits_by_any_number_of_threads(name, in_process):
  make, examples = MODELS[name]
  data = [tf.data.Dataset.from_tensor_slices(examples(seed)).batch(4) for seed in range(5)]

  def model_fn():
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return tff.learning.models.from_keras_model(make(), loss=loss, input_spec=data[0].element_spec)

  process = tff.learning.algorithms.build_unweighted_fed_avg(model_fn, small.sgd(0.05))
  state, found = None, []
  for seed, threads in ((7, 1), (7, 8), (8, 8)):
    with in_process(seed=seed, max_concurrent_clients=threads):
      state = state or process.initialize()
      found.append(trained(process, state, data))
  np.testing.assert_array_equal(found[0], found[1])
  # The others have dropout.
  assert np.array_equal(found[0], found[2]) == (name == 'convolutional')


AGGREGATORS = {
  # tff.learning.compression_aggregator quantises tensors of over 20 000 numbers.
  'compression': lambda: tff.aggregators.UnweightedMeanFactory(
    tff.aggregators.EncodedSumFactory.quantize_above_threshold(quantization_bits=8, threshold=1)
  ),
  'dp': lambda: tff.learning.dp_aggregator(noise_multiplier=0.1, clients_per_round=5),
}


@pytest.mark.parametrize('name', sorted(AGGREGATORS))
def test_tffs_aggregators_draw_at_clients_by_seed_and_at_the_server_in_secret(name, in_process):
  process = small.unweighted(AGGREGATORS[name]())
  state, found = None, []
  for seed in (1, 1, 2):
    with in_process(seed=seed):
      state = state or process.initialize()
      found.append(trained(process, state, small.clients()))
  assert (found[0] == found[1]).all() == (name == 'compression')
  assert (found[0] != found[2]).any()
