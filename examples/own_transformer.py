"""Trains a Keras transformer on sequences by client, with BLT noise.

python examples/own_transformer.py [FOLDER]
"""

import sys
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl

WORDS, LENGTH, WIDTH = 20, 8, 8
CLIENTS = [f'client{i}' for i in range(30)]


def client_data(round_index, client):
  """Sequences that count upwards; your own token ids go here."""
  del round_index
  start = np.random.default_rng(CLIENTS.index(client)).integers(WORDS, size=(6, 1))
  tokens = (start + np.arange(LENGTH + 1)) % WORDS
  return tf.data.Dataset.from_tensor_slices((tokens[:, :-1], tokens[:, 1:])).batch(3)


def model_fn():
  layers = tf.keras.layers
  tokens = layers.Input([LENGTH], dtype=tf.int64)
  x = layers.Embedding(WORDS, WIDTH)(tokens)
  x += layers.Embedding(LENGTH, WIDTH)(tf.range(LENGTH))
  seen = layers.MultiHeadAttention(2, WIDTH)(x, x, use_causal_mask=True)
  x = layers.LayerNormalization()(x + seen)
  x = layers.LayerNormalization()(x + layers.Dense(WIDTH)(layers.Dense(16, 'relu')(x)))
  spec = tf.TensorSpec([None, LENGTH], tf.int64)
  return tff.learning.models.from_keras_model(
    tf.keras.Model(tokens, layers.Dense(WORDS)(x)),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=(spec, spec),
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


if __name__ == '__main__':
  schema = dpftrl.MinSep(num_rounds=4, min_sep=2)
  strategy = dpftrl.optimize('blt', schema, num_buffers=1)
  noise = dpftrl.calibrate(strategy, schema, epsilon=30.0, delta=1e-4, num_coordinates=10**6)
  aggregator = dpftrl.CorrelatedNoiseFactory(
    strategy, noise_multiplier=noise.noise_multiplier, clip_norm=0.5, report_goal=10
  )
  optimizers = tff.learning.optimizers
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn, optimizers.build_adam(0.01), optimizers.build_sgdm(1.0), model_aggregator=aggregator
  )
  folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
  run = dict(folder=folder, num_rounds=4, clients=CLIENTS, timer_rounds=2, delta=1e-4)
  trained = dpftrl.train(process, aggregator, client_data=client_data, **run)
  print(f'{trained.statement.worst_case}: {trained.folder}/privacy.html')
