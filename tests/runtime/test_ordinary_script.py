"""An ordinary TFF script gains one line."""

import pytest
import tensorflow_federated as tff

pytestmark = pytest.mark.tff

ONE_LINE = """
import fl_dpftrl as dpftrl
dpftrl.runtime.use_in_process()
"""

# As in TFF's tutorials: images in batches, a Keras model with metrics, ten clients a round.
SCRIPT = """
import collections
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
{one_line}
CENTRES = np.random.default_rng(0).normal(size=(10, 16)).astype(np.float32)

def preprocess(data):
  def batched(element):
    return collections.OrderedDict(
      x=tf.reshape(element['pixels'], [-1, 16]), y=tf.reshape(element['label'], [-1, 1]))
  return data.repeat(2).shuffle(20, seed=1).batch(5).map(batched).prefetch(2)

def client_data(client):
  rng = np.random.default_rng(client)
  label = rng.integers(10, size=12).astype(np.int32)
  pixels = (CENTRES[label] + rng.normal(size=(12, 16))).astype(np.float32).reshape(-1, 4, 4)
  return preprocess(tf.data.Dataset.from_tensor_slices(
    collections.OrderedDict(pixels=pixels, label=label)))

example = client_data(0)

def model_fn():
  model = tf.keras.Sequential([
    tf.keras.layers.InputLayer(input_shape=(16,)),
    tf.keras.layers.Dense(10, kernel_initializer='zeros'),
    tf.keras.layers.Softmax()])
  return tff.learning.models.from_keras_model(
    model, input_spec=example.element_spec,
    loss=tf.keras.losses.SparseCategoricalCrossentropy(),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()])

process = tff.learning.algorithms.build_weighted_fed_avg(
  model_fn,
  client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
  server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0))
state = process.initialize()
history = []
for t in range(3):
  result = process.next(state, [client_data(10 * t + i) for i in range(10)])
  state = result.state
  history.append(result.metrics['client_work']['train'])
weights = process.get_model_weights(state).trainable
"""


def run(one_line):
  names = {}
  exec(compile(SCRIPT.format(one_line=one_line), 'script', 'exec'), names)
  return names['weights'], names['history']


@pytest.mark.slow
def test_one_line_is_enough():
  """TFF's own context is never begun: it would start a worker."""
  stack = tff.framework.get_context_stack()
  before = stack.current
  try:
    weights, history = run(ONE_LINE)
    assert type(stack.current).__name__ == 'InProcessContext'
  finally:
    stack.set_default_context(before)
  assert [w.shape for w in weights] == [(16, 10), (10,)]
  assert len(history) == 3
  for one in history:
    assert one.keys() >= {'sparse_categorical_accuracy', 'loss', 'num_examples'}
    assert one['num_examples'] == 10 * 24
  assert history[-1]['loss'] < history[0]['loss']
