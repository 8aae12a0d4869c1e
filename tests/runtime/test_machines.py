"""Clients on a cluster of two machines, both of which are here, and what becomes of losses."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
from fl_dpftrl import runtime
from fl_dpftrl.runtime import transfer
from tests import every_family
from tests.runtime import small_processes as small

ray = pytest.importorskip('ray')
from fl_dpftrl.runtime import cluster as cluster_lib  # noqa: E402
from fl_dpftrl.runtime import machines as machines_lib  # noqa: E402

pytestmark = [pytest.mark.tff, pytest.mark.slow]

NUM_CLIENTS = 40
NUM_ROUNDS = 12


@pytest.fixture(name='machines', scope='module')
def fixture_machines(cluster):
  """A function: makes a context on the cluster; all are ended after the tests."""
  made = []

  def make(**options):
    context = runtime.use_machines(cluster.address, seed=7, **options)
    made.append(context)
    return context

  yield make
  for context in made:
    context.stop()


@pytest.fixture(name='said', scope='module')
def fixture_said():
  return []


@pytest.fixture(name='two', scope='module')
def fixture_two(machines, said):
  """A context with two actors, for all tests that leave it usable."""
  return machines(actors=runtime.Actors(number=2, cpus=0.5), say=said.append)


def client(number, place):
  rng = np.random.default_rng([number, place])
  rows = 3 + place % 5
  arrays = (rng.normal(size=(rows, 3)), rng.normal(size=(rows, 2)))
  return runtime.batches(tuple(np.float32(a) for a in arrays), 4)


def leaves(value):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(value)]


def trained(context, process, num_rounds=3, make=client, before=lambda number: None):
  """Results of rounds in a context."""
  outputs = []
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    for number in range(num_rounds):
      data = [runtime.Later(make, (number, place)) for place in range(NUM_CLIENTS)]
      before(number)
      with context.numbered(number):
        output = process.next(state, data)
      state = output.state
      outputs.append(leaves(tuple(output)))
  return outputs


def here(process, num_rounds=3, **options):
  return trained(runtime.InProcessContext(seed=7, **options), process, num_rounds)


def assert_same(some, others):
  for one, other in zip(some, others, strict=True):
    for leaf, same in zip(one, other, strict=True):
      np.testing.assert_array_equal(leaf, same)


def is_alive(pid):
  try:
    os.kill(pid, 0)
  except ProcessLookupError:
    return False
  return True


def with_dropout():
  return small.unweighted(model_fn=small.model(lambda: tf.keras.layers.Dropout(0.5)))


@pytest.mark.parametrize('name', ['blt', 'mime_lite', 'dropout'])
def test_rounds_have_the_same_bits_as_in_process(name, two):
  if name == 'dropout':
    process = with_dropout()
  elif name in small.PROCESSES:
    process = small.PROCESSES[name]()
  else:
    process = small.correlated(every_family.example(name, 3))
  expected = here(process, max_concurrent_clients=1)
  assert_same(expected, here(process, max_concurrent_clients=3))
  assert_same(expected, trained(two, process))


def noisy(name, memory, **options):
  options = dict(clip_norm=0.5) | options
  return dpftrl.CorrelatedNoiseFactory(
    every_family.example(name, NUM_ROUNDS),
    **dict(noise_multiplier=0.3, report_goal=5, noise_seed=3, memory=memory) | options,
  )


@pytest.mark.parametrize('memory', ['state', 'engine'])
@pytest.mark.parametrize('name', every_family.FAMILIES)
def test_the_noise_of_every_family_has_the_same_bits_as_in_process(two, name, memory):
  process = noisy(name, memory).create(tff.to_type([(np.float32, [5]), (np.float32, [2, 3])]))
  rng = np.random.default_rng(11)
  draw = lambda: [rng.normal(size=shape).astype(np.float32) for shape in ([5], [2, 3])]
  cohorts = [[draw() for _ in range(3 + number % 3)] for number in range(NUM_ROUNDS)]

  def rounds(context):
    outputs = []
    with tff.framework.get_context_stack().install(context):
      state = process.initialize()
      for cohort in cohorts:
        output = process.next(state, cohort)
        state = output.state
        outputs.append(leaves((output.state, output.result, output.measurements)))
    return outputs

  assert_same(rounds(runtime.InProcessContext()), rounds(two))


@pytest.mark.parametrize('of, memory', [('weighted', 'state'), ('adaptive', 'engine')])
def test_weighted_and_adaptive_rounds_have_the_same_bits_as_in_process(two, of, memory):
  if of == 'weighted':
    aggregator = noisy('blt', memory)
    process = small.weighted(tff.aggregators.as_weighted_aggregator(aggregator))
  else:
    rule = dpftrl.AdaptiveClipping(0.5, target_quantile=0.4, learning_rate=0.5, rounds=NUM_ROUNDS)
    process = small.unweighted(noisy('blt', memory, clip_norm=rule))
  assert_same(here(process, NUM_ROUNDS), trained(two, process, NUM_ROUNDS))


def test_values_of_clients_are_sent_or_made_there(two):
  """Arrays, data sets and lists, and what one stage keeps of each client for the next."""
  of = tff.SequenceType(np.float32)

  @tff.tensorflow.computation(of)
  def total(data):
    return data.reduce(0.0, lambda x, y: x + y)

  @tff.tensorflow.computation(np.float32, np.float32, np.str_)
  def told(value, mean, name):
    return tf.strings.join([name, tf.strings.as_string(value - mean)])

  @tff.federated_computation(
    tff.FederatedType(of, tff.CLIENTS), tff.FederatedType(np.str_, tff.CLIENTS)
  )
  def deviations(data, names):
    totals = tff.federated_map(total, data)
    mean = tff.federated_broadcast(tff.federated_mean(totals))
    return mean, tff.federated_map(told, (totals, mean, names))

  data = [
    [1.0, 2.0],
    tf.data.Dataset.range(4).map(lambda x: tf.cast(x, tf.float32)),
    runtime.Later(lambda n: [np.float32(n)], (6,)),
  ]
  with tff.framework.get_context_stack().install(two):
    mean, names = deviations(data, ['a', 'b', 'c'])
  assert mean == 5.0
  assert names == [b'a-2.000000', b'b1.000000', b'c1.000000']


def test_a_function_is_sent_once(two, tmp_path):
  process = small.unweighted()

  class Counted:
    def __call__(self, number, place):
      return client(number, place)

    def __reduce__(self):
      with open(tmp_path / 'times', 'a') as file:
        file.write('x')
      return Counted, ()

  trained(two, process, make=Counted())
  assert (tmp_path / 'times').read_text() == 'x'


def test_a_long_round_says_how_far_it_is(two, said, monkeypatch):
  monkeypatch.setattr(machines_lib, '_SAY_SECONDS', 0.0)
  said.clear()
  trained(two, small.unweighted(), num_rounds=1)
  before, _, lost = two.status().rpartition(', ')
  assert before.endswith(' of 2 actors') and lost.endswith(' lost so far')
  counts = [line for line in said if ' of 2 actors, ' in line]
  assert all(' of 20 blocks trained, ' in line and ' under way, ' in line for line in counts)
  assert any(' 20 of 20 blocks trained, 0 under way' in line for line in counts), counts
  assert runtime.InProcessContext().status() == ''


def test_totals_that_wait_fit_into_the_object_stores(two, said, monkeypatch):
  monkeypatch.setattr(machines_lib, '_SAY_SECONDS', 0.0)
  monkeypatch.setattr(two.clients_at, '_store_bytes', 100.0)
  said.clear()
  process = small.unweighted()
  assert_same(here(process, 1), trained(two, process, 1))
  under_way = {line.split(', ')[2] for line in said if 'blocks' in line}
  assert under_way and under_way <= {'0 under way', '1 under way'}


def test_totals_of_zeros_are_made_where_they_are_used():
  zeros, other = tf.zeros([100, 3]), tf.constant([0.0, -0.0])
  sent = transfer.sent_totals({'sum': (zeros, other, tf.constant('a'), tf.constant(0))})
  assert [type(part) for part in sent['sum'][:2]] == [transfer.SentZeros, np.ndarray]
  for one, same in zip((zeros, other), transfer.received(sent)['sum']):
    assert one.dtype == same.dtype and one.numpy().tobytes() == same.numpy().tobytes()


@pytest.mark.parametrize('most', [1, 2])
def test_a_lost_actor_costs_no_bit(two, said, most):
  """Where both are lost, nothing goes on before one is back."""
  victims = []
  said.clear()
  process = small.correlated(every_family.example('blt', 3))

  def slow(number, place):
    time.sleep(0.05)
    return client(number, place)

  def before(number):
    if number == 1:
      victims.extend(two.clients_at.pids[:most])
      threading.Timer(0.3, lambda: [os.kill(pid, signal.SIGKILL) for pid in victims]).start()

  assert_same(here(process), trained(two, process, make=slow, before=before))
  assert victims and sum('is lost' in line for line in said) == len(victims)


def test_a_lost_machine_costs_no_bit(cluster, machines):
  node = cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
  said = []
  context = machines(actors=runtime.Actors(number=3, cpus=0.5), say=said.append)
  process = small.correlated(every_family.example('tree_online', 3))

  def slow(number, place):
    time.sleep(0.03)
    return client(number, place)

  def before(number):
    if number == 1:
      threading.Timer(0.2, lambda: cluster.remove_node(node, allow_graceful=False)).start()

  found = trained(context, process, make=slow, before=before)
  context.stop()
  assert_same(here(process), found)


def test_an_error_of_a_client_is_as_in_process(two):
  def bad(number, place):
    if place in (21, 30, 39):
      raise OSError('no such file')
    return client(number, place)

  process = small.unweighted()
  for context in (two, runtime.InProcessContext()):
    with pytest.raises(OSError, match='^client 21, counted from 0, of 40: no such file'):
      trained(context, process, make=bad)
  assert trained(two, process)


def test_clients_that_end_each_actor_end_the_round(two):

  def ending(number, place):
    if place == 5:
      os.kill(os.getpid(), signal.SIGKILL)
    return client(number, place)

  with pytest.raises(cluster_lib.NoActorError, match='clients 4 to 5 of the round ended 4 actors'):
    trained(two, small.unweighted(), make=ending)


def test_what_cannot_be_sent_is_named(two):
  lock = threading.Lock()

  def closed_over(number, place):
    with lock:
      return client(number, place)

  with pytest.raises(ValueError, match="^'?closed_over'? cannot be sent") as raised:
    trained(two, small.unweighted(), make=closed_over)
  assert len(str(raised.value)) <= 300

  @tff.tensorflow.computation(np.float32)
  def python(x):
    return tf.ensure_shape(tf.numpy_function(lambda y: y, [x], tf.float32), [])

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(tff.federated_map(python, values))

  with tff.framework.get_context_stack().install(two):
    with pytest.raises(ValueError, match='tf.numpy_function'):
      total([1.0])


def test_a_stop_ends_the_actors_at_once(machines):
  context = machines(actors=runtime.Actors(number=2, cpus=0.5))
  process = small.unweighted()

  def endless(number, place):
    time.sleep(600)

  def before(number):
    threading.Timer(5.0, context.stop).start()

  trained(context, process, num_rounds=1)
  pids = context.clients_at.pids
  begun = time.monotonic()
  with pytest.raises(RuntimeError, match='stopped'):
    trained(context, process, make=endless, before=before)
  assert time.monotonic() - begun < 60
  deadline = time.monotonic() + 60
  while any(map(is_alive, pids)) and time.monotonic() < deadline:
    time.sleep(0.1)
  assert not any(map(is_alive, pids))


@pytest.mark.parametrize(
  'options, words',
  [
    (dict(number=7), '7 actors of cpus=1 do not fit into the cluster, whose machines have '),
    (dict(cpus=3), '1 actors of cpus=3 do not fit'),
    (dict(gpus=0.25), '1 actors of gpus=0.25 do not fit into the cluster, whose machines have 0'),
    (dict(number=0), 'number of actors must be a whole number of at least 1: 0'),
    (dict(cpus=0), 'cpus or gpus of actors must be above 0'),
    (dict(wait_seconds=-1), 'wait_seconds of actors must be a number of at least 0: -1'),
  ],
)
def test_actors_that_cannot_be_are_refused(cluster, options, words):
  with pytest.raises(ValueError) as raised:
    runtime.use_machines(cluster.address, actors=runtime.Actors(**options))
  assert words in str(raised.value)
