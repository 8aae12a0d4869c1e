"""Canaries enter a round of TFF at the server, and nothing of clients enters in their place."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.noise import stream
from fl_dpftrl.tff.aggregators import canary_sums, dp_query, fixed
from tests import made
from tests.tff.aggregators import small_factories
from tests.tff.aggregators.small_factories import make
from tests.tff.aggregators.test_process_check import check, honest

pytestmark = pytest.mark.tff

State = collections.namedtuple('State', 'aggregator')
CANARIES = dpftrl.Canaries(4)
CLIENTS = [small_factories.update(1.0, 2.0), small_factories.update(-9.0), small_factories.update()]


def updates():
  """Three updates as long as the clip norm."""
  drawn = np.random.default_rng(0).normal(size=(3, small_factories.SIZE)).astype(np.float32)
  return 3.0 * drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


@pytest.mark.slow
@made.cases(
  'options',
  {},
  dict(inner_factory='secure', memory='engine'),
  dict(clip_norm=dpftrl.AdaptiveClipping(initial=3.0, rounds=5)),
  dict(metrics={'loss': 2.0}, memory='engine'),
  ids=lambda options: ' '.join(options) or 'plain',
)
def test_a_round_adds_canaries_to_its_sum_and_to_nothing_else(options, in_process):
  outputs = collections.defaultdict(list)
  for canaries in (None, CANARIES):
    factory = make(canaries=canaries, noise_seed=2, **options)
    process = factory.create(factory.sent(small_factories.VALUE_TYPE))
    state, clients = process.initialize(), CLIENTS
    if factory.private_metrics:
      clients = [(update, np.ones(1, np.float32)) for update in CLIENTS]
    for t in range(3):
      if canaries and t == 1:
        state = factory.with_canaries(State(state), updates()).aggregator
      outputs[canaries].append(output := process.next(state, clients))
      state = output.state
      if canaries:
        assert not np.asarray(state.noise.canaries).any()
        noised_sum, rest = factory.noised_sum({'aggregator': output.measurements, 'other': {}})
        released = small_factories.flat(output.result).astype(np.float64)
        clip_norm = output.measurements.get('clip_norm', 3.0)
        np.testing.assert_allclose(noised_sum, 4 * released * 3.0 / clip_norm, rtol=1e-6)
        assert canary_sums.RELEASED not in rest['aggregator'] and 'other' in rest
        plain = outputs[None][t].measurements
        assert {**rest['aggregator']}.keys() == plain.keys()
        for name in plain.keys() - {'inner'}:  # Counts, metrics and clip norms are of clients.
          tf.nest.map_structure(
            np.testing.assert_array_equal, rest['aggregator'][name], plain[name]
          )
  for t, (without, beside) in enumerate(zip(outputs[None], outputs[CANARIES])):
    clip_norm = without.measurements.get('clip_norm', 3.0)
    added = updates().sum(axis=0) / 4 * clip_norm / 3.0 if t == 1 else 0.0
    change = small_factories.flat(beside.result) - small_factories.flat(without.result)
    np.testing.assert_allclose(change, np.broadcast_to(added, change.shape), atol=1e-5)
    assert change.any() == (t == 1)


def with_sum(state, canaries):
  """Returns the state of an aggregator with another sum of canaries."""
  fields = {name: getattr(state.noise, name) for name in stream.StreamState._fields}
  noise = tff.federated_zip(stream.StreamState(**fields | {'canaries': canaries}))
  return tff.federated_zip(fixed.AggregatorState(state.inner, noise))


@tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
def whole(total):
  return tf.cast(total, tf.int64)


def in_the_round(aggregator, state, extra, updates):
  """Puts the sum of the clients in the place of canaries."""
  total = tff.federated_map(whole, tff.federated_sum(updates))
  return honest(aggregator, with_sum(state, total), extra, updates)


def in_the_next_round(aggregator, state, extra, updates):
  """Leaves the sum of the clients in the place of the next round's canaries."""
  after, kept, metrics = honest(aggregator, state, extra, updates)
  return with_sum(after, tff.federated_map(whole, tff.federated_sum(updates))), kept, metrics


def of_the_noise(aggregator, state, extra, updates):
  """Puts the seed of the noise in the place of canaries."""
  seed = tff.tensorflow.computation(
    lambda noise: tf.reshape(tf.cast(noise.seed, tf.int64), [-1])[:1] * tf.ones([3], tf.int64),
    state.type_signature.member.noise,
  )
  return honest(aggregator, with_sum(state, tff.federated_map(seed, state.noise)), extra, updates)


def of_the_server(aggregator, state, extra, updates):
  """Puts what earlier rounds released in the place of canaries."""
  return honest(aggregator, with_sum(state, tff.federated_map(whole, extra)), extra, updates)


def test_the_result_of_a_round_may_be_measured():
  found = check(honest, make(canaries=CANARIES))
  assert found.ok and found.releases == 1 and len(found.metrics) == 3  # Counts of clients.


@made.cases('step', in_the_round, in_the_next_round, of_the_noise, of_the_server)
def test_a_process_puts_nothing_in_the_place_of_canaries(step):
  """Only whoever calls the process does, between its rounds."""
  found = check(step, make(canaries=CANARIES))
  with pytest.raises(ValueError, match='noise state of the release must come from the state of'):
    found.require()


def test_canaries_are_of_the_process_that_is_checked():
  from fl_dpftrl.tff.aggregators import process_check
  from tests.tff.aggregators.test_process_check import VECTOR, process_of

  for one, other in ((CANARIES, None), (None, CANARIES)):
    process = process_of(make(canaries=one).create(VECTOR), honest)
    found = process_check.check_process(process, make(canaries=other))
    assert 'must be built with the aggregator' in found.reason


def test_sums_have_room_for_canaries():
  value_type = tff.TensorType(np.float32, [8])
  few, many = (make(canaries=dpftrl.Canaries(m)).sums(value_type) for m in (1, 1000))
  assert few.most_updates - many.most_updates == 999
  secure = [make(canaries=c, inner_factory='secure').sums(value_type) for c in (None, CANARIES)]
  assert secure[1].modulus >= secure[0].modulus and not secure[0].has_canaries
  modulus = tff.aggregators.SecureModularSumFactory(secure[0].modulus >> secure[0].unit.shift)
  make(inner_factory=modulus).create(value_type)
  with pytest.raises(ValueError, match='needs at least'):
    make(inner_factory=modulus, canaries=dpftrl.Canaries(1000)).create(value_type)
  with pytest.raises(ValueError, match='no room in sums of 64 bits'):
    make(canaries=dpftrl.Canaries(1 << 22), noise_multiplier=1e-6).create(value_type)


def test_canaries_that_do_not_fit_are_refused():
  with pytest.raises(ValueError, match='canaries of other norms are for loops that clip them'):
    make(canaries=dpftrl.Canaries(4, norm=1000.0))
  with pytest.raises(ValueError, match='canaries must be a Canaries, got 4'):
    make(canaries=4)
  with pytest.raises(ValueError, match='query must have no canaries'):
    dp_query.CorrelatedNoiseQuery(make(canaries=CANARIES), tf.TensorSpec([3]))
