"""DP-FedAvg with a FedSGDM server, against the same steps by hand."""

import collections
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.mechanisms import workloads
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.tff.aggregators import factories
from fl_dpftrl.tff.training import processes, report
from tests import made

pytestmark = [pytest.mark.tff, pytest.mark.usefixtures('in_process')]

NUM_ROUNDS = 6
CLIENT_RATE = 0.1
ELEMENT = collections.OrderedDict(
  x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None, 1], tf.float32)
)


def linear_model() -> tff.learning.models.FunctionalModel:
  @tf.function
  def predict(weights, x, training):
    del training
    return tf.matmul(x['x'] if isinstance(x, dict) else x, weights[0][0])

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.array([[0.5], [-0.5]], np.float32),), ()),
    predict_on_batch_fn=predict,
    loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(tf.square(output - label)),
    input_spec=ELEMENT,
  )


def clients() -> list[list[collections.OrderedDict]]:
  rng = np.random.default_rng(4)
  return [
    [
      collections.OrderedDict(
        x=rng.normal(size=(3, 2)).astype(np.float32), y=rng.normal(size=(3, 1)).astype(np.float32)
      )
      for _ in range(2)
    ]
    for _ in range(3)
  ]


def client_delta(weights: np.ndarray, batches) -> np.ndarray:
  trained = weights.copy()
  for batch in batches:
    x, y = batch['x'].astype(np.float64), batch['y']
    trained -= CLIENT_RATE * 2.0 / len(x) * x.T @ (x @ trained - y)
  return trained - weights


def by_hand(momentum: float, rates: np.ndarray, clip_norm: float) -> np.ndarray:
  weights = np.array([[0.5], [-0.5]])
  velocity = np.zeros_like(weights)
  for t in range(NUM_ROUNDS):
    total = np.zeros_like(weights)
    for batches in clients():
      delta = client_delta(weights, batches)
      total += delta * min(1.0, clip_norm / np.linalg.norm(delta))
    velocity = momentum * velocity - total / 3
    weights = weights - rates[t] * velocity
  return weights


@pytest.mark.slow
def test_equals_the_steps_by_hand():
  momentum, clip_norm = 0.95, 0.05
  rates = workloads.warmup_cooldown(0.7, NUM_ROUNDS, warmup_fraction=0.4, cooldown_fraction=0.4)
  process = processes.build_fed_avg(
    linear_model(),
    aggregator=factories.CorrelatedNoiseFactory(
      identity.Identity(), noise_multiplier=0.0, clip_norm=clip_norm, report_goal=3
    ),
    client_learning_rate=CLIENT_RATE,
    server_learning_rates=rates,
    server_momentum=momentum,
  )
  state = process.initialize()
  for _ in range(NUM_ROUNDS):
    state = process.next(state, clients()).state
  np.testing.assert_allclose(
    state.global_model_weights.trainable[0], by_hand(momentum, rates, clip_norm), rtol=1e-4
  )
  assert len(set(rates)) > 2  # The rate's changes were seen.


@pytest.mark.slow
@made.cases(
  'arguments, named',
  (dict(server_learning_rates=np.array([0.1, 0.0])), 'server_learning'),
  (dict(server_learning_rates=np.array(0.1)), 'server_learning'),
  (dict(client_learning_rate=0.0), 'client_learning_rate'),
  (dict(server_momentum=1.0), 'server_momentum'),
  (dict(server_momentum=-0.1), 'server_momentum'),
)
def test_bad_arguments_are_named(arguments, named):
  with pytest.raises(ValueError, match=named):
    processes.build_fed_avg(
      linear_model(),
      **{
        'aggregator': None,
        'client_learning_rate': 0.1,
        'server_learning_rates': np.ones(2),
        **arguments,
      },
    )


def test_a_model_of_another_keras_is_refused_by_name():
  keras = pytest.importorskip('keras')

  def model_fn():
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    spec = (tf.TensorSpec([None, 3]), tf.TensorSpec([None, 1]))
    loss = tf.keras.losses.MeanSquaredError()
    return tff.learning.models.from_keras_model(model, loss=loss, input_spec=spec)

  options = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=2)
  aggregator = factories.CorrelatedNoiseFactory(identity.Identity(), **options)
  with pytest.raises(ValueError, match=r'model is of Keras 3.* tf\.keras'):
    processes.build_fed_avg(model_fn, aggregator=aggregator, server_learning_rates=[1.0])


@pytest.mark.parametrize(
  'folder, name',
  [('runs/docstrings', 'docstrings'), ('run', 'run'), ('study/cells/blt-seed0/run', 'blt-seed0')],
)
def test_a_report_is_named_after_its_run_or_cell(folder, name):
  assert report._name(pathlib.Path(folder)) == name


def test_tensorboard_starts():
  from tensorboard import default

  assert default.get_plugins()
