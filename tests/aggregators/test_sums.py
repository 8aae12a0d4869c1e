"""Updates are summed by plain and secure sums, and by nothing that divides."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from fl_dpftrl import adaptive_clipping
from fl_dpftrl.aggregators import factory, inner_sum
from fl_dpftrl.families import identity

pytestmark = pytest.mark.tff

CLIP_NORM = 0.7
VALUE_TYPE = tff.to_type(
  collections.OrderedDict(
    w=tff.TensorType(np.float32, [300, 10]), b=tff.TensorType(np.float32, [3])
  )
)
SECURE = tff.aggregators.SecureSumFactory(CLIP_NORM)


class Changed(tff.aggregators.UnweightedAggregationFactory):
  """A sum, with something done to its result."""

  def __init__(self, change):
    self._change = change

  def create(self, value_type):
    summed = tff.aggregators.SumFactory().create(value_type)
    change = tff.tensorflow.computation(self._change, value_type)

    @tff.federated_computation(
      summed.initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
    )
    def next_fn(state, values):
      output = summed.next(state, values)
      return tff.templates.MeasuredProcessOutput(
        output.state, tff.federated_map(change, output.result), output.measurements
      )

    return tff.templates.AggregationProcess(summed.initialize, next_fn)


def make(inner, **kwargs):
  kwargs = dict(noise_multiplier=0.0, clip_norm=CLIP_NORM, report_goal=4) | kwargs
  return factory.CorrelatedNoiseFactory(identity.Identity(), inner_factory=inner, **kwargs)


def updates(number):
  generator = np.random.default_rng(number)
  drawn = generator.normal(size=(number, 3003)).astype(np.float32)
  drawn *= 0.9 * CLIP_NORM / np.linalg.norm(drawn, axis=1, keepdims=True)
  return [collections.OrderedDict(w=row[3:].reshape(300, 10), b=row[:3]) for row in drawn]


def total(clients):
  return {name: np.sum([c[name] for c in clients], axis=0, dtype=np.float64) for name in ('w', 'b')}


def assert_is_sum(result, clients):
  """Within the steps of the quantisation, and the rounding of float32."""
  for name, expected in total(clients).items():
    atol = len(clients) * 2 * CLIP_NORM * (2.0**-32 + 2.0**-24)
    np.testing.assert_allclose(4 * result[name], expected, atol=atol, rtol=0)


def test_a_mean_is_refused_at_once():
  for mean in (
    tff.aggregators.UnweightedMeanFactory(),
    tff.learning.secure_aggregator(weighted=False, clipping=False, zeroing=False),
  ):
    with pytest.raises(ValueError, match='^inner_factory must sum, got a mean'):
      make(mean)


def test_encodings_that_lengthen_updates_are_refused_at_once():
  with pytest.raises(ValueError, match='longer than clip_norm'):
    make(tff.aggregators.EncodedSumFactory.quantize_above_threshold(8, threshold=1))


@pytest.mark.parametrize(
  'inner',
  [
    pytest.param(tff.learning.robust_aggregator(weighted=False), marks=pytest.mark.slow),
    tff.aggregators.clipping_factory(1.0, tff.aggregators.UnweightedMeanFactory()),
    Changed(lambda x: {name: 2.0 * part for name, part in x.items()}),
    Changed(lambda x: {name: 0.1 + part for name, part in x.items()}),
    Changed(lambda x: {name: 0.0 * part for name, part in x.items()}),
    Changed(lambda x: {n: p + float('nan') for n, p in x.items()}),
    # Zeros, and what is below 0, would count as 0.1.
    tff.aggregators.SecureSumFactory(CLIP_NORM, 0.1),
  ],
)
def test_what_does_not_sum_is_refused_when_the_process_is_created(inner):
  aggregator = make(inner)
  with pytest.raises(ValueError, match='inner_factory must sum updates') as e:
    aggregator.create(VALUE_TYPE)
  assert 'SumFactory' in str(e.value) and len(str(e.value)) <= 300


QUANTILE = tff.aggregators.PrivateQuantileEstimationProcess


@pytest.mark.slow
@pytest.mark.parametrize(
  'inner',
  [
    tff.aggregators.zeroing_factory(
      QUANTILE.no_noise(2.0, 0.98, 0.5), tff.aggregators.SumFactory()
    ),
    tff.aggregators.clipping_factory(
      QUANTILE.no_noise(2.0, 0.5, 0.5), tff.aggregators.SumFactory()
    ),
    # Its noise is not that of the factory, so it is not accounted for.
    tff.aggregators.clipping_factory(
      QUANTILE(tfp.QuantileEstimatorQuery(2.0, 0.5, 0.5, 1.0, 10.0, geometric_update=True)),
      tff.aggregators.SumFactory(),
    ),
    tff.aggregators.SecureSumFactory(QUANTILE.no_noise(2.0, 0.95, 0.5)),
  ],
  ids=['zeroing', 'clipping', 'noised quantile', 'secure bounds'],
)
def test_a_sum_that_learns_from_updates_is_refused(inner):
  for clip_norm in (CLIP_NORM, adaptive_clipping.AdaptiveClipping(CLIP_NORM, rounds=3)):
    with pytest.raises(
      ValueError, match='inner_factory must not learn from updates, but its state'
    ):
      make(inner, clip_norm=clip_norm, noise_multiplier=1.0).create(VALUE_TYPE)


@pytest.mark.slow
@pytest.mark.parametrize(
  'inner',
  [
    tff.aggregators.clipping_factory(CLIP_NORM, tff.aggregators.SumFactory()),
    tff.aggregators.zeroing_factory(10.0, tff.aggregators.SumFactory()),
    SECURE,
    tff.aggregators.HadamardTransformFactory(),
    tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1e-9, 4, CLIP_NORM),
  ],
  ids=['clipping', 'zeroing', 'secure', 'rotation', 'fixed noise'],
)
def test_a_sum_with_fixed_norms_is_accepted(inner):
  inner_sum._check_state(inner.create(VALUE_TYPE))


@pytest.mark.slow
@pytest.mark.parametrize('shape', [[], [1], [2]])
def test_a_mean_of_few_coordinates_is_told_from_a_sum(shape):
  of = tff.TensorType(np.float32, shape)
  mean = tff.aggregators.clipping_factory(1.0, tff.aggregators.UnweightedMeanFactory())
  with pytest.raises(ValueError, match='inner_factory must sum'):
    inner_sum.create(mean, of, 1.0)
  inner_sum.create(SECURE, of, 1.0)


def test_a_plain_sum_runs_nothing(monkeypatch):
  monkeypatch.setattr(inner_sum, '_run', pytest.fail)
  make(None).create(VALUE_TYPE)


def test_within_a_computation_it_says_where_to_create():

  @tff.federated_computation
  def outer():
    with pytest.raises(ValueError, match='create the aggregator outside'):
      make(SECURE).create(VALUE_TYPE)
    return tff.federated_value(0, tff.SERVER)

  assert outer() == 0


@pytest.mark.slow
@pytest.mark.parametrize('number', [1, 8])
@pytest.mark.parametrize(
  'inner',
  [SECURE, tff.aggregators.clipping_factory(CLIP_NORM, SECURE)],
  ids=['secure', 'within a clip'],
)
def test_a_secure_sum_sums(inner, number):
  process = make(inner).create(VALUE_TYPE)
  state, clients = process.initialize(), updates(number)
  for _ in range(2):
    output = process.next(state, clients)
    state = output.state
    assert_is_sum(output.result, clients)


@pytest.mark.slow
def test_secure_sums_count_no_bounded_update_as_cut():
  clients = [
    collections.OrderedDict(w=np.zeros([300, 10], np.float32), b=np.array([b, 0, 0], np.float32))
    for b in (9.0, -9.0, CLIP_NORM, 0.1)
  ]
  process = make(SECURE).create(VALUE_TYPE)
  output = process.next(process.initialize(), clients)
  inner = output.measurements['inner']
  assert inner['secure_upper_clipped_count'] == 0
  assert inner['secure_lower_clipped_count'] == 0
  assert output.result['b'][0] == pytest.approx((CLIP_NORM + 0.1) / 4, abs=1e-6)


@pytest.mark.slow
def test_rows_of_an_engine_go_with_a_secure_sum():
  results = {}
  for name, inner in (('plain', None), ('secure', SECURE)):
    process = factory.CorrelatedNoiseFactory(
      identity.Identity(),
      noise_multiplier=0.1,
      clip_norm=CLIP_NORM,
      report_goal=4,
      memory='engine',
      noise_seed=1,
      inner_factory=inner,
    ).create(VALUE_TYPE)
    results[name] = process.next(process.initialize(), updates(3)).result
  for name in ('w', 'b'):
    np.testing.assert_allclose(results['secure'][name], results['plain'][name], atol=1e-6, rtol=0)
