"""Small processes, and clients for them, of all kinds that TFF offers."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests import made

SPEC = (tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None, 2], tf.float32))
ROWS = (5, 8, 12, 3)


def clients(seed=0):
  rng = np.random.default_rng(seed)
  return [
    tf.data.Dataset.from_tensor_slices(
      (rng.normal(size=(rows, 3)).astype(np.float32), rng.normal(size=(rows, 2)).astype(np.float32))
    ).batch(4)
    for rows in ROWS
  ]


def initial(seed):
  """Weights that are the same in each run, since agreement depends on them."""
  return tf.keras.initializers.GlorotUniform(seed)


def model(*extra):
  """A model function: two layers, and others between them."""

  def model_fn():
    return tff.learning.models.from_keras_model(
      tf.keras.Sequential(
        [
          tf.keras.layers.Input((3,)),
          tf.keras.layers.Dense(4, 'tanh', kernel_initializer=initial(1)),
          *(layer() for layer in extra),
          tf.keras.layers.Dense(2, kernel_initializer=initial(2)),
        ]
      ),
      loss=tf.keras.losses.MeanSquaredError(),
      input_spec=SPEC,
    )

  return model_fn


def sgd(rate=0.1):
  return tff.learning.optimizers.build_sgdm(rate)


def unweighted(aggregator=None, model_fn=None, **options):
  return tff.learning.algorithms.build_unweighted_fed_avg(
    model_fn or model(), sgd(), model_aggregator=aggregator, **options
  )


def weighted(aggregator=None):
  return tff.learning.algorithms.build_weighted_fed_avg(model(), sgd(), model_aggregator=aggregator)


def correlated(strategy, noise_multiplier=0.3):
  options = dict(noise_multiplier=noise_multiplier, clip_norm=0.5, report_goal=len(ROWS))
  return unweighted(made.factory(strategy, noise_seed=3, memory='state', **options))


PROCESSES = {
  'unweighted': unweighted,
  'weighted': weighted,
  'robust': lambda: weighted(tff.learning.robust_aggregator()),
  'dp': lambda: unweighted(tff.learning.dp_aggregator(noise_multiplier=0.0, clients_per_round=4)),
  'secure': lambda: weighted(tff.learning.secure_aggregator()),
  'compression': lambda: weighted(tff.learning.compression_aggregator()),
  'fed_prox': lambda: tff.learning.algorithms.build_weighted_fed_prox(model(), 0.1, sgd()),
  'mime_lite': lambda: tff.learning.algorithms.build_unweighted_mime_lite(
    model(), base_optimizer=tff.learning.optimizers.build_sgdm(0.1, 0.9)
  ),
  'fed_eval': lambda: tff.learning.algorithms.build_fed_eval(model()),
}


def assert_same(some, others):
  """Asserts that all rounds agree bit for bit."""
  for one, other in zip(some, others, strict=True):
    for leaf, same in zip(one, other, strict=True):
      np.testing.assert_array_equal(leaf, same)
