"""The aggregator inside TFF's federated averaging."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import factory
from fl_dpftrl.families import blt

pytestmark = pytest.mark.tff

STRATEGY = blt.BLT((0.9, 0.5), (0.3, 0.2))
ELEMENT = collections.OrderedDict(
  x=tf.TensorSpec([None, 3], tf.float32), y=tf.TensorSpec([None, 1], tf.float32)
)


def model():
  return tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.InputLayer(3), tf.keras.layers.Dense(1)]),
    tf.keras.losses.MeanSquaredError(),
    input_spec=ELEMENT,
  )


def datasets(num_clients):
  rng = np.random.default_rng(0)
  clients = []
  for _ in range(num_clients):
    x = rng.normal(size=(6, 3)).astype(np.float32)
    y = (x @ [[1.0], [-2.0], [0.5]] + 1.0).astype(np.float32)
    clients.append(tf.data.Dataset.from_tensor_slices(collections.OrderedDict(x=x, y=y)).batch(3))
  return clients


def train(functional_model, aggregator, clients, num_rounds):
  process = tff.learning.algorithms.build_unweighted_fed_avg(
    functional_model,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.05),
    server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0, momentum=0.9),
    model_aggregator=aggregator,
  )
  state, metrics = process.initialize(), []
  for _ in range(num_rounds):
    state, round_metrics = process.next(state, clients)
    metrics.append(round_metrics)
  weights = process.get_model_weights(state).trainable
  return process, state, np.concatenate([np.ravel(w) for w in weights]), metrics


@pytest.mark.slow
def test_no_noise_and_no_clipping_is_plain_federated_averaging():
  functional_model, clients = model(), datasets(4)
  aggregator = factory.CorrelatedNoiseFactory(
    STRATEGY, noise_multiplier=0.0, clip_norm=1e6, report_goal=4
  )
  _, _, plain, _ = train(functional_model, None, clients, 5)
  _, _, ours, metrics = train(functional_model, aggregator, clients, 5)
  np.testing.assert_allclose(ours, plain, rtol=1e-6)
  assert [m['aggregator']['noise_row'] for m in metrics] == [0, 1, 2, 3, 4]
  assert not any(m['aggregator']['clipped_count'] for m in metrics)


@pytest.mark.slow
def test_trains_with_noise_and_survives_poisoned_clients():
  clients = datasets(4)
  poison = lambda dataset, factor: dataset.map(
    lambda batch: collections.OrderedDict(x=batch['x'] * np.float32(factor), y=batch['y'])
  )
  aggregator = factory.CorrelatedNoiseFactory(
    STRATEGY, noise_multiplier=0.1, clip_norm=0.02, report_goal=4, zeroing_norm=1e4
  )
  process, state, weights, metrics = train(
    model(), aggregator, [poison(clients[0], np.inf), poison(clients[1], 1e6), *clients[2:]], 3
  )
  assert np.isfinite(weights).all()
  metrics = [m['aggregator'] for m in metrics]
  assert [m['zeroed_count'] for m in metrics] == [1, 1, 1]
  assert [m['clipped_count'] for m in metrics] == [2, 2, 2]
  # TFF's own client work sends zeros where training ended in a NaN.
  assert [m['rejected_count'] for m in metrics] == [0, 0, 0]
  # The state of a learning process is burnt with what skip_row documents.
  value_type = process.get_model_weights.type_signature.result.trainable
  skipped = aggregator.skip_row(value_type)(state.aggregator)
  state = state._replace(aggregator=skipped)
  _, metrics = process.next(state, clients)
  assert metrics['aggregator']['noise_row'] == 4
