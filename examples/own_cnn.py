"""Trains a Keras CNN on arrays by client, such as images, with BLT noise.

python examples/own_cnn.py [FOLDER]
"""

import sys
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl

# Your own arrays go here: images [examples, 8, 8, 1] and labels, by client.
RANDOM = np.random.default_rng(0)
LABELS = {f'client{i}': RANDOM.integers(2, size=12) for i in range(30)}
IMAGES = {
  client: RANDOM.standard_normal((12, 8, 8, 1), np.float32)
  + np.where(labels[:, None, None, None], np.eye(8, dtype=np.float32)[..., None], 0) * 3
  for client, labels in LABELS.items()
}
SPEC = (tf.TensorSpec([None, 8, 8, 1]), tf.TensorSpec([None], tf.int64))


def client_data(round_index, client):
  del round_index
  return tf.data.Dataset.from_tensor_slices((IMAGES[client], LABELS[client])).batch(6)


def model_fn():
  layers = tf.keras.layers
  images = layers.Input([8, 8, 1])
  x = layers.GlobalMaxPooling2D()(layers.Conv2D(4, 3, activation='relu')(images))
  return tff.learning.models.from_keras_model(
    tf.keras.Model(images, layers.Dense(2)(x)),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=SPEC,
    metrics=[tf.keras.metrics.SparseCategoricalAccuracy()],
  )


if __name__ == '__main__':
  schema = dpftrl.MinSep(num_rounds=6, min_sep=3)
  strategy = dpftrl.optimize('blt', schema, num_buffers=2)
  noise = dpftrl.calibrate(strategy, schema, epsilon=30.0, delta=1e-4, num_coordinates=10**6)
  aggregator = dpftrl.CorrelatedNoiseFactory(
    strategy, noise_multiplier=noise.noise_multiplier, clip_norm=0.5, report_goal=10
  )
  sgdm = tff.learning.optimizers.build_sgdm
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn, sgdm(0.3), sgdm(1.0), model_aggregator=aggregator
  )
  folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
  run = dict(folder=folder, num_rounds=6, clients=list(LABELS), timer_rounds=3, delta=1e-4)
  trained = dpftrl.train(process, aggregator, client_data=client_data, **run)
  print(f'{trained.statement.worst_case}: {trained.folder}/privacy.html')
