import numpy as np
import pytest
import tensorflow as tf

from experiments.stackoverflow import networks, training_model
from experiments.topics import log_bilinear

pytestmark = pytest.mark.tff

TOKENS, SIZE = 12, 5


@pytest.fixture(name='weights')
def _weights():
  generator = np.random.default_rng(0)
  shapes = [weight.shape for weight in log_bilinear.initial_weights(TOKENS, SIZE, 0)]
  return tuple(generator.normal(size=shape).astype(np.float32) for shape in shapes)


@pytest.fixture(name='sentences')
def _sentences():
  return np.random.default_rng(1).integers(1, TOKENS, (3, 4, 8))


def test_gradients_are_those_of_the_training_script(weights, sentences):
  network = networks.LogBilinear(num_tokens=TOKENS, embedding=SIZE)
  found = log_bilinear.gradients(weights, sentences)
  for client, own in enumerate(sentences):
    variables = [tf.Variable(weight) for weight in weights]
    with tf.GradientTape() as tape:
      logits = network.logits(variables, tf.constant(own[:, :-1], tf.int32))
      losses = training_model.token_losses(logits, tf.constant(own[:, 1:], tf.int32))
      loss = tf.reduce_mean(losses)
    for gradient, expected in zip(found, tape.gradient(loss, variables), strict=True):
      assert gradient.dtype == np.float32
      expected = tf.convert_to_tensor(expected).numpy()
      np.testing.assert_allclose(gradient[client], expected, atol=1e-5)
