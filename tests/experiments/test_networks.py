import numpy as np
import pytest
import tensorflow as tf

from experiments.stackoverflow import networks

pytestmark = pytest.mark.tff

TOKENS = np.array([[5, 1, 2, 3, 0, 0], [5, 4, 4, 1, 2, 6]], np.int32)


def _gradients(function, weights):
  with tf.GradientTape() as tape:
    tape.watch(weights)
    loss = tf.reduce_sum(function(weights) ** 2)
  return [tf.convert_to_tensor(g).numpy() for g in tape.gradient(loss, weights)]


def test_the_papers_network_has_the_papers_size():
  assert networks.num_parameters(networks.Lstm(num_tokens=10_004)) == 4_050_748


@pytest.mark.slow
def test_lstm_equals_keras_with_its_gradients():
  network = networks.Lstm(num_tokens=7, embedding=3, units=5)
  weights = [
    tf.constant(np.random.default_rng(i).normal(size=w.shape), tf.float32)
    for i, w in enumerate(network.initial_weights(0))
  ]
  layers = [
    tf.keras.layers.Embedding(7, 3),
    tf.keras.layers.LSTM(5, return_sequences=True),
    tf.keras.layers.Dense(3),
    tf.keras.layers.Dense(7),
  ]
  keras = tf.keras.Sequential([tf.keras.Input([6], dtype=tf.int32), *layers])

  # Ours orders gates input, cell, forget, output; Keras input, forget, cell,
  # output.
  def reorder(array):
    i, c, f, o = np.split(array, 4, axis=-1)
    return np.concatenate([i, f, c, o], axis=-1)

  arrays = [w.numpy() for w in weights]
  arrays[1:4] = map(reorder, arrays[1:4])
  keras.set_weights(arrays)
  np.testing.assert_allclose(network.logits(weights, tf.constant(TOKENS)), keras(TOKENS), atol=1e-5)
  ours = _gradients(lambda w: network.logits(w, tf.constant(TOKENS)), weights)
  theirs = _gradients(lambda _: keras(TOKENS), keras.trainable_weights)
  ours[1:4] = map(reorder, ours[1:4])
  for mine, other in zip(ours, theirs, strict=True):
    np.testing.assert_allclose(mine, other, rtol=1e-3, atol=1e-3)


def test_log_bilinear_equals_a_loop():
  network = networks.LogBilinear(num_tokens=7, embedding=3, context=2)
  embeddings, mixing, bias = (
    np.random.default_rng(i).normal(size=w.shape).astype(np.float32)
    for i, w in enumerate(network.initial_weights(0))
  )
  expected = np.empty((*TOKENS.shape, 7))
  for row in range(2):
    for t in range(6):
      before = TOKENS[row, t - 1] if t else 0
      words = np.concatenate([embeddings[before], embeddings[TOKENS[row, t]]])
      expected[row, t] = embeddings @ (words @ mixing) + bias
  actual = network.logits((embeddings, mixing, bias), tf.constant(TOKENS))
  np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
