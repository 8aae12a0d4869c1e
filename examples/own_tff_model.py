"""Trains a bare tff.learning model with BLT noise: logistic regression.

python examples/own_tff_model.py [FOLDER]
"""

import sys
import tempfile

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl

CLIENTS = [f'client{i}' for i in range(40)]
TRUTH = np.array([1.0, -2.0, 0.5, 0.0], np.float32)
SPEC = (tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.float32))


def client_data(round_index, client):
  """Data of a client: the same in every round."""
  del round_index
  x = np.random.default_rng(CLIENTS.index(client)).standard_normal((16, 4), np.float32)
  return tf.data.Dataset.from_tensor_slices((x, (x @ TRUTH > 0).astype(np.float32))).batch(8)


def loss_fn(logits, y, sample_weight=None):
  return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(y, logits))


model = tff.learning.models.FunctionalModel(
  initial_weights=((np.zeros(4, np.float32),), ()),
  predict_on_batch_fn=tf.function(lambda weights, x, training: tf.linalg.matvec(x, weights[0][0])),
  loss_fn=loss_fn,
  input_spec=SPEC,
)

if __name__ == '__main__':
  schema = dpftrl.MinSep(num_rounds=6, min_sep=3)
  strategy = dpftrl.optimize('blt', schema, num_buffers=2)
  noise = dpftrl.calibrate(strategy, schema, epsilon=20.0, delta=1e-4, num_coordinates=10**6)
  aggregator = dpftrl.CorrelatedNoiseFactory(
    strategy, noise_multiplier=noise.noise_multiplier, clip_norm=0.5, report_goal=10
  )
  sgdm = tff.learning.optimizers.build_sgdm
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    model, sgdm(0.5), sgdm(1.0, momentum=0.5), model_aggregator=aggregator
  )
  folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
  run = dict(folder=folder, num_rounds=6, clients=CLIENTS, timer_rounds=3, delta=1e-4)
  trained = dpftrl.train(process, aggregator, client_data=client_data, say=print, **run)
  print(f'weights {trained.model.trainable[0]}')
  print(f'{trained.statement.worst_case}: {trained.folder}/privacy.html')
