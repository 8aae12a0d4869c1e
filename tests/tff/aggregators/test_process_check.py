"""What processes learn from clients beside the release of the aggregator."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl.tff.aggregators import dp_query, process_check
from tests import every_family, made
from tests.tff.aggregators import custom_sums
from tests.tff.aggregators.small_factories import make

pytestmark = pytest.mark.tff

VECTOR = tff.TensorType(np.float32, [3])
UPDATES = tff.FederatedType(VECTOR, tff.CLIENTS)
COUNTS = ('aggregator.clipped_count', 'aggregator.zeroed_count', 'aggregator.rejected_count')


def process_of(aggregator, step):
  """Builds a process whose state is an aggregator's and an extra tensor."""
  start = tff.tensorflow.computation(lambda: tf.zeros([3]))

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      dict(aggregator=aggregator.initialize(), extra=tff.federated_eval(start, tff.SERVER))
    )

  @tff.federated_computation(initialize.type_signature.result, UPDATES)
  def next_fn(state, updates):
    after, kept, metrics = step(aggregator, state.aggregator, state.extra, updates)
    return tff.federated_zip(dict(aggregator=after, extra=kept)), metrics

  return tff.templates.IterativeProcess(initialize, next_fn)


def add(*values):
  """Adds two values at the server."""
  return tff.federated_map(tff.tensorflow.computation(lambda a, b: a + b, VECTOR, VECTOR), values)


def honest(aggregator, state, extra, updates):
  """Learns from clients by the aggregator alone."""
  output = aggregator.next(state, updates)
  return output.state, add(extra, output.result), output.measurements


def with_mean(aggregator, state, extra, updates):
  """Adds the mean of the updates to its state, without noise."""
  after, kept, metrics = honest(aggregator, state, extra, updates)
  return after, add(kept, tff.federated_mean(updates)), metrics


def with_metric(aggregator, state, extra, updates):
  """Shows the mean of the updates as a metric."""
  after, kept, _ = honest(aggregator, state, extra, updates)
  return after, kept, tff.federated_zip(dict(step_size=tff.federated_mean(updates)))


def twice(aggregator, state, extra, updates):
  """Puts one row of noise into two sums."""
  _, once, _ = honest(aggregator, state, extra, updates)
  return honest(aggregator, state, once, updates)


def same_row_again(aggregator, state, extra, updates):
  """Forgets that a row was used."""
  return state, *honest(aggregator, state, extra, updates)[1:]


def fresh_noise(aggregator, state, extra, updates):
  """Begins the noise anew in each round."""
  return honest(aggregator, aggregator.initialize(), extra, updates)


def shown(field):
  """Shows a secret of the noise as a metric."""

  def step(aggregator, state, extra, updates):
    take = lambda state: getattr(state.noise, field)
    secret = tff.federated_map(tff.tensorflow.computation(take, state.type_signature.member), state)
    return *honest(aggregator, state, extra, updates)[:2], secret

  return step


def sent_first(what):
  """Sends clients something of the server's, to which each adds its update."""
  both = tff.tensorflow.computation(lambda a, b: a + b, VECTOR, VECTOR)

  def step(aggregator, state, extra, updates):
    sent = tff.federated_broadcast(what(extra, updates))
    return honest(aggregator, state, extra, tff.federated_map(both, (updates, sent)))

  return step


def selected_first(aggregator, state, extra, updates):
  """Lets each client choose what it adds from the sum of all updates."""
  take = tff.tensorflow.computation(lambda total, key: total, VECTOR, np.int32)
  one = tff.tensorflow.computation(lambda x: tf.zeros([1], tf.int32), VECTOR)
  keys = tff.federated_map(one, updates)
  total = tff.federated_sum(updates)
  chosen = tff.federated_select(keys, tff.federated_value(1, tff.SERVER), total, take)
  first = tff.tensorflow.computation(
    lambda x, rows: rows.reduce(x, lambda a, b: a + b), VECTOR, tff.SequenceType(VECTOR)
  )
  return honest(aggregator, state, extra, tff.federated_map(first, (updates, chosen)))


@functools.cache
def plain():
  """Creates the process of an aggregator, once."""
  return make().create(VECTOR)


def check(step, aggregator=None):
  aggregator = aggregator or make()
  return process_check.check_process(process_of(aggregator.create(VECTOR), step), aggregator)


def test_an_honest_process_passes():
  found = check(honest)
  assert found.ok and found.releases == 1 and found.reason is None
  assert found.require() is found and found.unprotected == found.exposed == ()
  # Its second output has no name.
  assert found.metrics == tuple(name.replace('aggregator', '1') for name in COUNTS)
  assert str(found).startswith('protected by the aggregator\nreleases in a round: 1\n')


def test_a_mean_without_noise_in_the_state_is_refused():
  found = check(with_mean)
  assert found.unprotected == ('state.extra',) and found.releases == 1
  with pytest.raises(ValueError, match='state.extra depends on clients') as error:
    found.require()
  assert len(str(error.value)) <= 300
  assert 'NOT PROTECTED' in str(found)


@pytest.mark.parametrize(
  'step', [sent_first(lambda extra, updates: tff.federated_sum(updates)), selected_first]
)
def test_updates_that_depend_on_other_clients_are_refused(step):
  """All of them change with one device, and clipping each bounds one alone."""
  found = check(step)
  assert not found.ok and "what a client adds to the aggregator's sum depends" in found.reason


def test_what_earlier_rounds_released_may_be_sent_to_clients():
  assert check(sent_first(lambda extra, updates: extra)).ok


def test_a_metric_without_noise_is_named():
  found = check(with_metric)
  assert found.ok and found.metrics == ('1.step_size',)


@made.cases(
  ('step', 'reason'),
  (twice, 'releases 2 sums in a round'),
  (same_row_again, 'must come from the state of the round'),
  (fresh_noise, 'must come from the state of the round'),
  (shown('seed'), '1 depends on the seed or the buffers of the noise'),
)
def test_noise_that_is_misused_is_refused(step, reason):
  found = check(step)
  assert not found.ok and reason in found.reason


@pytest.mark.slow
@pytest.mark.parametrize('field', ['seed', 'trail'])
def test_what_an_engine_keeps_is_secret(field):
  found = check(shown(field), make(memory='engine'))
  assert '1 depends on the seed or the buffers' in found.reason


@pytest.mark.parametrize(
  'other',
  [make(noise_multiplier=0.1), make(clip_norm=2.0), make(noise_seed=1), make(dpftrl.TreeOnline())],
)
def test_a_process_of_another_aggregator_is_refused(other):
  found = process_check.check_process(process_of(plain(), honest), other)
  assert found.releases == 0 and found.unprotected == ('state.extra',)
  with pytest.raises(ValueError, match='must be built with the aggregator'):
    found.require()


def test_noise_that_clients_choose_protects_nothing():
  """The noise state's row follows the clients, so noise can be repeated at will."""
  choose = tff.tensorflow.computation(
    lambda state, x: state._replace(
      noise=state.noise._replace(row=state.noise.row + tf.cast(x[0], tf.int64))
    ),
    plain().initialize.type_signature.result.member,
    VECTOR,
  )

  def step(aggregator, state, extra, updates):
    chosen = tff.federated_map(choose, (state, tff.federated_sum(updates)))
    return honest(aggregator, chosen, extra, updates)

  found = check(step)
  assert not found.ok and 'state.extra' in found.unprotected


def test_what_is_no_process_is_refused():
  with pytest.raises(ValueError, match='aggregator must be a CorrelatedNoiseFactory'):
    process_check.check_process(process_of(plain(), honest), None)
  with pytest.raises(ValueError, match='process must be one of TFF'):
    process_check.check_process(object(), make())


@pytest.mark.slow
@made.cases(
  'arguments',
  dict(clip_norm=dpftrl.AdaptiveClipping(0.1, rounds=5), memory='engine'),
  dict(inner_factory='secure'),
  dict(zeroing_norm=3.0, noise_seed=3),
  ids=lambda arguments: ' '.join(arguments),
)
def test_all_kinds_of_the_aggregator_protect(arguments):
  found = check(honest, make(**arguments))
  assert found.ok and found.releases == 1
  # With adaptive clipping, the counts have noise.
  assert bool(found.metrics) == ('clip_norm' not in arguments)


@pytest.mark.slow
def test_the_query_protects():
  query = dp_query.CorrelatedNoiseQuery(make(), tf.TensorSpec([3]))

  def check_with(*inner):
    made = tff.aggregators.DifferentiallyPrivateFactory(query, *inner).create(VECTOR)
    return process_check.check_process(process_of(made, honest), make())

  found = check_with()
  assert found.ok and found.releases == 1 and not found.metrics
  found = check_with(custom_sums.Custom(learns=True))
  assert found.unprotected and not found.ok


def test_data_that_come_into_the_state_rounds_later_are_found():
  """Three tensors of the state hand clients' data on, one a round."""

  @tff.tensorflow.computation
  def start():
    return [tf.zeros([3])] * 3

  @tff.federated_computation
  def initialize():
    return tff.federated_zip(
      dict(aggregator=plain().initialize(), late=tff.federated_eval(start, tff.SERVER))
    )

  shift = tff.tensorflow.computation(
    lambda late, x: [late[1], late[2], x], start.type_signature.result, VECTOR
  )

  @tff.federated_computation(initialize.type_signature.result, UPDATES)
  def next_fn(state, updates):
    output = plain().next(state.aggregator, updates)
    late = tff.federated_map(shift, (state.late, tff.federated_sum(updates)))
    first = tff.federated_map(
      tff.tensorflow.computation(lambda late: late[0][0], start.type_signature.result), state.late
    )
    return tff.federated_zip(dict(aggregator=output.state, late=late)), first

  found = process_check.check_process(tff.templates.IterativeProcess(initialize, next_fn), make())
  assert found.unprotected == ('state.late',) and found.metrics == ('1',)


@pytest.mark.slow
# No buffers, a fixed number, and as many as the round needs.
@pytest.mark.parametrize('family', ['identity', 'banded', 'tree_online'])
def test_families_protect(family):
  found = check(honest, make(every_family.example(family, 9)))
  assert found.ok and found.releases == 1
