"""Metrics of clients that TFF's processes release with noise, beside the model."""

import collections

import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
import tff_inprocess
from fl_dpftrl.claims import extra_coordinates
from fl_dpftrl.tff.aggregators import adaptive
from tests import made

pytestmark = [pytest.mark.tff]

STRATEGY = made.BLT
BOUNDS = {'loss': 10.0, 'accuracy': 1.0}
UPDATES = tff.to_type((np.float32, [5]))


def factory(**changes):
  arguments = {
    'noise_multiplier': 2.0, 'clip_norm': 1.0, 'report_goal': 4, 'noise_seed': 3,
    'metrics': BOUNDS, **changes,
  }  # fmt: skip
  return dpftrl.CorrelatedNoiseFactory(STRATEGY, **arguments)


def test_hostile_values_are_bounded_as_in_any_loop():
  metrics = extra_coordinates.PrivateMetrics({'a': 2.0, 'b': 1e-3, 'c': 1e6})
  group, norm = metrics.group(1.0), 123_457
  rng = np.random.default_rng(0)
  values = np.concatenate(
    [
      rng.normal(size=(200, 3)) * [2.0, 1e-3, 1e6],
      [[np.inf] * 3, [-np.inf] * 3, [np.nan] * 3, [3e38, -3e38, 1e-45], [2.0, 1e-3, 1e6]],
    ]
  ).astype(np.float32)
  expected = group.integers(values, norm)
  assert (expected >= 0).all() and (np.square(expected).sum(axis=1) <= norm**2).all()
  for row, whole in zip(values, expected, strict=True):
    np.testing.assert_array_equal(adaptive._whole(tf.constant(row), group, norm), whole)


@pytest.mark.slow
@pytest.mark.parametrize('clip_norm', [1.0, dpftrl.AdaptiveClipping(0.3, rounds=2)])
@pytest.mark.parametrize('noise_multiplier', [0.0, 2.0])
def test_rounds_release_what_any_loop_releases(clip_norm, noise_multiplier, tmp_path):
  """The same rows, units and rule of the clip norm; a clipped update rounds otherwise."""
  changes = dict(clip_norm=clip_norm, noise_multiplier=noise_multiplier)
  rng = np.random.default_rng(1)
  updates = rng.normal(size=(4, 4, 5)).astype(np.float32) * 0.3
  metrics = rng.uniform(0, 1.2, (4, 4, 2)).astype(np.float32)  # Sorted: accuracy, loss.
  with tff_inprocess.within(seed=1):
    aggregator = factory(memory='engine', **changes)
    process = aggregator.create(aggregator.sent(UPDATES))
    state, seen = process.initialize(), []
    for t in range(4):
      output = process.next(state, list(zip(updates[t], metrics[t])))
      state = output.state
      seen.append((output.result, output.measurements))
  options = dict(template=np.zeros(5, np.float32), report_goal=4, noise_seed=3, metrics=BOUNDS)
  with made.aggregator(tmp_path, STRATEGY, **options, **changes) as expected:
    for t, (mean, measured) in enumerate(seen):
      with expected.round(range(4 * t, 4 * t + 4)) as round_:
        for update, (accuracy, loss) in zip(updates[t], metrics[t]):
          round_.add(update, metrics={'accuracy': accuracy, 'loss': loss})
      np.testing.assert_allclose(mean, round_.mean, rtol=1e-5, atol=1e-5)
      assert measured['clip_norm'] == pytest.approx(round_.clip_norm, rel=1e-6)
      for name in BOUNDS:
        assert measured['metrics'][name] == pytest.approx(round_.metrics[name], rel=1e-5, abs=1e-5)
        stddev = expected._noised.coordinates.stddevs([t])[name]
        assert measured['metrics_stddev'][name] == pytest.approx(stddev, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('memory', ['engine', 'state'])
def test_released_means_have_the_stated_deviation(memory):
  """200 metrics of zeros accept σ, and reject ⅔ and 1.5 of it, which are 3 deviations beyond."""
  with tff_inprocess.within(seed=1):
    aggregator = factory(metrics={f'm{i:03}': 3.0 for i in range(200)}, memory=memory)
    process = aggregator.create(aggregator.sent(UPDATES))
    state, zeros = process.initialize(), (np.zeros(5, np.float32), np.zeros(200, np.float32))
    for _ in range(4):
      output = process.next(state, [zeros] * 4)
      state = output.state
      measured = output.measurements
      values = np.array(list(measured['metrics'].values())) / measured['metrics_stddev']['m000']
      low, high = scipy.stats.chi2(200).interval(1 - 1e-6)
      square = float((values**2).sum())
      assert low < square < high
      assert not low < square * 1.5**2 < high and not low < square / 1.5**2 < high


def test_clients_that_send_no_metrics_are_refused():
  for sent in (UPDATES, factory(metrics={'loss': 1.0}).sent(UPDATES)):
    with pytest.raises(ValueError, match=r'pairs \(update, float32 of accuracy, loss\)'):
      factory().create(sent)


def model_fn():
  spec = (tf.TensorSpec([None, 3], tf.float32), tf.TensorSpec([None, 1], tf.float32))
  layers = [tf.keras.layers.InputLayer(3), tf.keras.layers.Dense(1, kernel_initializer='zeros')]
  metrics = [tf.keras.metrics.MeanAbsoluteError(name='mae')]
  return tff.learning.models.from_keras_model(
    tf.keras.Sequential(layers), tf.keras.losses.MeanSquaredError(), spec, metrics=metrics
  )


def data(seed):
  x = np.random.default_rng(seed).normal(size=(8, 3)).astype(np.float32)
  return tf.data.Dataset.from_tensor_slices((x, x.sum(1, keepdims=True))).batch(4)


def fed_avg(aggregator, **changes):
  return dpftrl.build_fed_avg(
    model_fn, aggregator=aggregator, client_learning_rate=0.01, server_learning_rates=np.ones(5),
    server_momentum=0.0, **changes,
  )  # fmt: skip


@pytest.mark.slow
def test_federated_averaging_with_metrics():
  """Models are those without metrics, and metrics those that the clients computed."""
  with tff_inprocess.within(seed=1):
    free = dict(noise_multiplier=0.0, noise_seed=None)
    metered = fed_avg(aggregator := factory(metrics={'loss': 10.0, 'mae': 5.0}, **free))
    plain = fed_avg(factory(metrics=None, **free))
    states = [process.initialize() for process in (metered, plain)]
    for _ in range(3):
      outputs = [
        process.next(state, [data(i) for i in range(4)])
        for process, state in zip((metered, plain), states)
      ]
      states = [output.state for output in outputs]
      released = outputs[0].metrics['aggregator']['metrics']
      exact = outputs[1].metrics['client_work']['train']
      # Each client has as many examples as the others, so that the mean of means is the mean.
      assert released['loss'] == pytest.approx(exact['loss'], rel=1e-4)
      assert released['mae'] == pytest.approx(exact['mae'], rel=1e-4)
    weights = [process.get_model_weights(s) for process, s in zip((metered, plain), states)]
    for own, other in zip(weights[0].trainable, weights[1].trainable):
      np.testing.assert_allclose(own, other, rtol=1e-5, atol=1e-6)
    checked = dpftrl.check_process(metered, aggregator).require()
    assert (
      checked.metrics == () and dpftrl.check_process(plain, factory(metrics=None, **free)).metrics
    )


@pytest.mark.slow
def test_metrics_of_other_names_are_refused():
  with pytest.raises(ValueError, match='the model has no f1; it has'):
    fed_avg(factory(metrics={'loss': 10.0, 'f1': 5.0}))


@pytest.mark.slow
@pytest.mark.parametrize('bounds', [{'loss': 10.0, 'auc': 1.0}, {'accuracy': 10.0, 'loss': 1.0}])
def test_metrics_of_other_names_are_those_of_another_aggregator(bounds):
  own, other = factory(), factory(metrics=bounds)
  process = own.create(own.sent(UPDATES))
  assert dpftrl.check_process(process, own).releases == 1
  checked = dpftrl.check_process(process, other)
  assert not checked.releases and 'built with the aggregator as its' in checked.reason


def wrapped(aggregator, change):
  """A process whose next is that of an aggregator, with what clients send changed before."""
  inner = aggregator.create(aggregator.sent(UPDATES))
  sent = tff.FederatedType(aggregator.sent(UPDATES), tff.CLIENTS)

  @tff.federated_computation(inner.initialize.type_signature.result, sent)
  def next_fn(state, values):
    return change(inner, state, values)

  return tff.templates.MeasuredProcess(inner.initialize, next_fn)


@pytest.mark.slow
@pytest.mark.parametrize('attack', ['metric of others', 'metric without noise'])
def test_attacks_on_metrics_are_seen(attack):
  aggregator = factory()
  pair = aggregator.sent(UPDATES)

  @tff.tensorflow.computation(pair, pair)
  def of_others(value, total):
    return value[0], total[1]

  def change(inner, state, values):
    total = tff.federated_sum(values)
    if attack == 'metric of others':
      values = tff.federated_map(of_others, (values, tff.federated_broadcast(total)))
      return inner.next(state, values)
    output = inner.next(state, values)
    measurements = tff.federated_zip(
      collections.OrderedDict(metrics=output.measurements, loss=total[1])
    )
    return tff.templates.MeasuredProcessOutput(output.state, output.result, measurements)

  checked = dpftrl.check_process(wrapped(aggregator, change), aggregator)
  if attack == 'metric of others':
    assert not checked.ok and 'data of other clients' in checked.reason
  else:
    assert checked.ok and checked.metrics == ('loss',)
