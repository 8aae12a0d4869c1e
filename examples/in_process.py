"""Trains a TFF model in this process: no worker program, and nothing of fl_dpftrl.

TF_ENABLE_ONEDNN_OPTS=0 python examples/in_process.py
"""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess

CLIENTS = 20
TRUTH = np.array([[1.0], [-2.0], [0.5]], np.float32)


def model_fn():
  layers = [tf.keras.layers.Input((3,)), tf.keras.layers.Dense(1)]
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(layers),
    loss=tf.keras.losses.MeanSquaredError(),
    input_spec=(tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1])),
  )


def data_of(client):
  x = np.random.default_rng(client).standard_normal((16, 3), np.float32)
  return tf.data.Dataset.from_tensor_slices((x, x @ TRUTH)).batch(4)


if __name__ == '__main__':
  tff_inprocess.use(seed=1)
  sgdm = tff.learning.optimizers.build_sgdm
  process = tff.learning.algorithms.build_unweighted_fed_avg(model_fn, sgdm(0.1), sgdm(1.0))
  state = process.initialize()
  for t in range(10):
    state, metrics = process.next(state, [data_of(client) for client in range(CLIENTS)])
    print(f'round {t}: loss {metrics["client_work"]["train"]["loss"]:.4f}')
