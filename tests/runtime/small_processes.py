"""Small processes, and clients for them, of all kinds that TFF offers."""

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.families import (
  banded,
  banded_inverse,
  banded_toeplitz,
  blt,
  dense,
  identity,
  lambda_cgd,
  low_rank,
  stamped,
  tree_full,
  tree_online,
)

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
  return unweighted(
    dpftrl.CorrelatedNoiseFactory(
      strategy,
      noise_multiplier=noise_multiplier,
      clip_norm=0.5,
      report_goal=len(ROWS),
      noise_seed=3,
    )
  )


def banded_coefficients(num_rounds, num_bands=3):
  rng = np.random.default_rng(num_rounds)
  rows = rng.uniform(-0.4, 0.6, (num_rounds, num_bands))
  rows[:, 0] = rng.uniform(0.5, 1.5, num_rounds)
  rows[np.arange(num_rounds)[:, None] < np.arange(num_bands)] = 0.0
  return rows


def dense_matrix(num_rounds):
  rng = np.random.default_rng(num_rounds)
  return np.tril(rng.uniform(-0.4, 0.4, (num_rounds,) * 2), -1) + 1.5 * np.eye(num_rounds)


def low_rank_factors(num_rounds, rank=2):
  rng = np.random.default_rng(num_rounds)
  return rng.uniform(-0.2, 0.2, (2, num_rounds, rank))


# Family → number of rounds → a strategy.
STRATEGIES = {
  'identity': lambda n: identity.Identity(),
  'tree_online': lambda n: tree_online.TreeOnline(),
  'tree_full': tree_full.TreeFull,
  'banded': lambda n: banded.Banded(banded_coefficients(n)),
  'banded_inverse': lambda n: banded_inverse.BandedInverse([1.2, -0.5, -0.2, 0.1]),
  'lambda_cgd': lambda n: lambda_cgd.LambdaCGD(0.8),
  'blt': lambda n: blt.BLT((0.99, 0.8), (0.25, 0.3)),
  'dense': lambda n: dense.Dense(dense_matrix(n)),
  'low_rank': lambda n: low_rank.LowRank(banded_coefficients(n), *low_rank_factors(n)),
  'banded_toeplitz': lambda n: banded_toeplitz.BandedToeplitz([1.5, -0.4, 0.2], n),
  'stamped': lambda n: stamped.Stamped(banded.Banded(banded_coefficients(n // 2)), n // 2),
}

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
