"""TFF's algorithms with the aggregator, as the table of docs/algorithms.md states them."""

import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from tests.tff.aggregators.small_factories import make, run

pytestmark = [pytest.mark.tff, pytest.mark.slow]

SPEC = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
algorithms = tff.learning.algorithms
PAGE = pathlib.Path(__file__).parents[3] / 'docs' / 'algorithms.md'
weighted = tff.aggregators.as_weighted_aggregator


def sgd():
  return tff.learning.optimizers.build_sgdm(0.1, momentum=0.5)


def network():
  return tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(3,))])


def model_fn():
  return tff.learning.models.from_keras_model(
    network(), loss=tf.keras.losses.MeanSquaredError(), input_spec=SPEC
  )


def recon_fn():
  made = network()
  local = tf.keras.layers.Dense(1, input_shape=(1,))
  whole = tf.keras.Sequential([*made.layers, local])
  whole.build((None, 3))
  return tff.learning.models.ReconstructionModel.from_keras_model_and_layers(
    keras_model=whole, global_layers=made.layers, local_layers=[local], input_spec=SPEC
  )


# Options of the algorithms that learn a model with a model_aggregator.
LEARNERS = {
  'build_unweighted_fed_avg': dict(client_optimizer_fn=sgd(), server_optimizer_fn=sgd()),
  'build_weighted_fed_avg': dict(client_optimizer_fn=sgd()),
  'build_weighted_fed_avg_with_optimizer_schedule': dict(
    client_learning_rate_fn=lambda round_num: 0.1,
    client_optimizer_fn=tff.learning.optimizers.build_sgdm,
  ),
  'build_unweighted_fed_prox': dict(proximal_strength=0.1, client_optimizer_fn=sgd()),
  'build_weighted_fed_prox': dict(proximal_strength=0.1, client_optimizer_fn=sgd()),
  'build_fed_sgd': dict(),
  'build_unweighted_mime_lite': dict(base_optimizer=sgd()),
  'build_weighted_mime_lite': dict(base_optimizer=sgd()),
  'build_mime_lite_with_optimizer_schedule': dict(
    learning_rate_fn=lambda round_num: 0.1, base_optimizer=sgd()
  ),
}
OTHERS = {
  'mime lite, both': lambda ours: algorithms.build_unweighted_mime_lite(
    model_fn, base_optimizer=sgd(), model_aggregator=ours, full_gradient_aggregator=ours
  ),
  'build_fed_kmeans': lambda ours: algorithms.build_fed_kmeans(2, (3,), sum_aggregator=ours),
  'build_fed_recon': lambda ours: algorithms.build_fed_recon(
    recon_fn,
    loss_fn=tf.keras.losses.MeanSquaredError,
    server_optimizer_fn=sgd(),
    client_optimizer_fn=sgd(),
    reconstruction_optimizer_fn=sgd(),
    model_aggregator_factory=weighted(ours),
  ),
}


def build(name, ours):
  """Builds an algorithm with our aggregator."""
  if name in OTHERS:
    return OTHERS[name](ours)
  given = ours if 'unweighted' in name else weighted(ours)
  return getattr(algorithms, name)(model_fn, model_aggregator=given, **LEARNERS[name])


REFUSED = {
  'build_unweighted_mime_lite': 'state.client_work.0.accumulator depends',
  'build_weighted_mime_lite': 'state.client_work.0.accumulator depends',
  'build_mime_lite_with_optimizer_schedule': 'state.client_work.1.0.accumulator depends',
  'mime lite, both': 'releases 2 sums in a round',
}


def client_data(seed):
  x = np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)
  return tf.data.Dataset.from_tensor_slices((x, x[:, :1])).batch(2)


def points(seed):
  x = np.random.default_rng(seed).standard_normal((4, 3)).astype(np.float32)
  return tf.data.Dataset.from_tensor_slices(x)


# These take the ways of others, with another loss or rate; of those that many other tests train,
# tests/tff/training refuses Mime Lite by the same words, and checks each unweighted process that it
# trains.
LESS = {
  'build_unweighted_fed_avg', 'build_unweighted_mime_lite', 'build_weighted_fed_avg',
  'build_weighted_fed_avg_with_optimizer_schedule', 'build_mime_lite_with_optimizer_schedule',
  'build_unweighted_fed_prox', 'build_weighted_fed_prox', 'build_weighted_mime_lite',
}  # fmt: skip


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=pytest.mark.thorough if name in LESS else ())
    for name in (*LEARNERS, *OTHERS)
  ],
)
def test_the_verdict_is_that_of_the_table(name):
  ours = make()
  process = build(name, ours)
  found = dpftrl.check_process(process, ours)
  if name in REFUSED:
    with pytest.raises(ValueError, match=re.escape(REFUSED[name])):
      found.require()
  else:
    assert found.ok and found.releases == 1, str(found)
  assert 'aggregator.clipped_count' in found.metrics
  data = [client_data(0), client_data(1)]
  if name == 'build_fed_kmeans':
    data = [points(0), points(1)]
  assert run(process, data, 2)[-1].state.aggregator.noise.row == 2


def test_a_weighted_algorithm_gives_all_clients_the_same_weight():
  """Twice the data, the same update: weights would count it twice."""
  process = build('build_weighted_fed_avg', ours := make(noise_multiplier=0.0, clip_norm=100.0))
  found = dpftrl.check_process(process, ours)
  assert found.ok and found.releases == 1 and 'aggregator.clipped_count' in found.metrics
  # One step a client, so that more data of the same mean is the same update.
  data = [client_data(seed).unbatch().batch(99) for seed in (0, 1)]
  more = [client_data(0).concatenate(client_data(0)).unbatch().batch(99), data[1]]
  states = (run(process, clients, 1)[0].state for clients in (data, more))
  one, other = (process.get_model_weights(state).trainable[1] for state in states)
  np.testing.assert_allclose(one, other, atol=1e-6)  # The biases, which start at 0.


def test_kmeans_needs_a_report_goal_of_one():
  """Sums and counts of a round are compared with first centroids of weight 1."""
  data = [points(0), points(1)]
  ends = []
  for aggregator in (
    None,
    make(noise_multiplier=0.0, clip_norm=1e4, report_goal=1),
    make(noise_multiplier=0.0, clip_norm=1e4),
  ):
    process = algorithms.build_fed_kmeans(2, (3,), random_seed=(1, 2), sum_aggregator=aggregator)
    ends.append(process.get_model_weights(run(process, data, 3)[-1].state))
  plain, whole, divided = ends
  np.testing.assert_allclose(plain, whole, rtol=1e-4, atol=1e-5)
  assert np.abs(plain - divided).max() > 0.05


def test_the_table_has_every_algorithm():
  text = PAGE.read_text()
  public = {name for name in dir(algorithms) if name.startswith('build_')}
  assert public == set(re.findall(r'`(build_\w+)`', text))
