"""Clients on a cluster whose machines are all this one, and what becomes of losses."""

import contextlib
import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import fl_dpftrl as dpftrl
import tff_inprocess
from tests import every_family, made
from tests.tff_inprocess import small_processes as small
from tff_inprocess import clients

ray = pytest.importorskip('ray')
from tff_inprocess import ray_actors, ray_cluster  # noqa: E402

pytestmark = [pytest.mark.tff, pytest.mark.slow]

NUM_CLIENTS, NUM_ROUNDS = 40, 12
# No two fit onto one machine of the cluster.
ACTOR = dict(cpus=0.75)


@pytest.fixture(name='said', scope='module')
def fixture_said():
  """What the context of `machines` said."""
  return []


@pytest.fixture(name='machines', scope='module')
def fixture_machines(cluster, said):
  """A context with an actor on each machine; those that tests end come back by themselves."""
  stack = tff.framework.get_context_stack()
  before, actors = stack.current, tff_inprocess.Actors(number=2, **ACTOR)
  context = tff_inprocess.use_machines(cluster.address, seed=7, actors=actors, say=said.append)
  yield context
  stack.set_default_context(before)
  context.stop()


def noisy(name, memory, num_rounds=NUM_ROUNDS, **options):
  options = dict(clip_norm=0.5) | options
  return dpftrl.CorrelatedNoiseFactory(
    every_family.example(name, num_rounds),
    **dict(noise_multiplier=0.3, report_goal=5, noise_seed=3, memory=memory) | options,
  )


@pytest.fixture(name='process', scope='module')
def fixture_process():
  """Learning with noise, whose clients draw too."""
  model = small.model(lambda: tf.keras.layers.Dropout(0.5))
  return small.unweighted(noisy('blt', 'state'), model)


def client(number, place):
  rng = np.random.default_rng([number, place])
  rows = 3 + place % 5
  arrays = (rng.normal(size=(rows, 3)), rng.normal(size=(rows, 2)))
  return tff_inprocess.batches(tuple(np.float32(a) for a in arrays), 4)


def slow(number, place):
  time.sleep(0.05)
  return client(number, place)


def leaves(value):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(value)]


def trained(context, process, num_rounds=3, make=client, before=lambda number: None):
  """Results of rounds in a context."""
  outputs = []
  with tff.framework.get_context_stack().install(context):
    state = process.initialize()
    for number in range(num_rounds):
      data = [tff_inprocess.Later(make, (number, place)) for place in range(NUM_CLIENTS)]
      before(number)
      with context.numbered(number):
        output = process.next(state, data)
      state = output.state
      outputs.append(leaves(tuple(output)))
  return outputs


def here(process, num_rounds=3, **options):
  return trained(tff_inprocess.InProcessContext(seed=7, **options), process, num_rounds)


def test_other_processes_have_the_same_bits_as_in_process(machines):
  rule = dpftrl.AdaptiveClipping(0.5, target_quantile=0.4, learning_rate=0.5, rounds=NUM_ROUNDS)
  adaptive = tff.aggregators.as_weighted_aggregator(noisy('blt', 'engine', clip_norm=rule))
  process = small.weighted(adaptive)
  small.assert_same(here(process), trained(machines, process))


def test_values_of_clients_are_sent_or_made_there(machines):
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
    tff_inprocess.Later(lambda n: [np.float32(n)], (6,)),
  ]
  with tff.framework.get_context_stack().install(machines):
    mean, names = deviations(data, ['a', 'b', 'c'])
  assert mean == 5.0
  assert names == [b'a-2.000000', b'b1.000000', b'c1.000000']


def test_what_cannot_be_sent_is_named(machines, process):
  lock = threading.Lock()

  def closed_over(number, place):
    with lock:
      return client(number, place)

  with pytest.raises(ValueError, match="^'?closed_over'? cannot be sent") as raised:
    trained(machines, process, make=closed_over)
  assert len(str(raised.value)) <= 300

  @tff.tensorflow.computation(np.float32)
  def python(x):
    return tf.ensure_shape(tf.numpy_function(lambda y: y, [x], tf.float32), [])

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(tff.federated_map(python, values))

  with tff.framework.get_context_stack().install(machines):
    with pytest.raises(ValueError, match='tf.numpy_function'):
      total([1.0])


def test_without_an_actor_in_time_the_round_ends(machines, process):
  """Beside those of `machines`, there is no room."""
  actors = tff_inprocess.Actors(number=2, cpus=1.0, wait_seconds=1.0)
  with tff_inprocess.on_machines('auto', actors=actors) as context:
    with pytest.raises(ray_cluster.NoActorError, match='no actor was there for 1 seconds'):
      trained(context, process)


def test_an_error_of_a_client_is_as_in_process(machines, process, monkeypatch):
  """That of the first place, also where a later one has failed before."""

  def bad(number, place):
    if place in (36, 38):
      time.sleep(0.5 * (place == 36))
      raise OSError('no such file')
    return client(number, place)

  contexts = tff_inprocess.InProcessContext(), machines, machines
  for context, group in zip(contexts, (clients.GROUP, clients.GROUP, 2)):
    monkeypatch.setattr(clients, 'GROUP', group)
    with pytest.raises(OSError, match='^client 36, counted from 0, of 40: OSError in bad, '):
      trained(context, process, make=bad)


def test_a_lost_machine_costs_no_bit(cluster, machines, process):
  while len(machines.clients_at.pids) < 2:
    trained(machines, process, 1)
  machine = next(iter(cluster.worker_nodes))
  lose = threading.Timer(0.2, cluster.remove_node, [machine], {'allow_graceful': False})
  found = trained(machines, process, 2, slow, lambda number: number or lose.start())
  cluster.add_node(num_cpus=1, object_store_memory=100_000_000)
  small.assert_same(here(process, 2), found)
  assert machines.clients_at.losses


class Ending:
  """Makes a client's data; counts how often it is sent, and ends so many processes."""

  def __init__(self, folder, place, losses):
    self._arguments = folder, place, losses

  def __call__(self, number, place):
    folder, last, losses = self._arguments
    if place == last:
      time.sleep(0.5)
      if len(list(folder.glob('lost*'))) < losses:
        (folder / f'lost{os.getpid()}').touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return slow(number, place)

  def __reduce__(self):
    with (self._arguments[0] / 'sent').open('a') as file:
      file.write('x')
    return Ending, self._arguments


def test_lost_actors_cost_no_bit_where_they_merge(machines, process, said, monkeypatch, tmp_path):
  """All are lost by the same clients, and nothing goes on before one is back."""
  monkeypatch.setattr(clients, 'GROUP', 2)
  monkeypatch.setattr(ray_actors, '_ATTEMPTS', 3)
  rounds, merge = [], ray_actors.Round._hand_out_groups
  monkeypatch.setattr(
    ray_actors.Round, '_hand_out_groups', lambda self: rounds.append(self) or merge(self)
  )
  said.clear()
  found = trained(machines, process, 1, Ending(tmp_path, 5, losses=1))
  small.assert_same(here(process, 1), found)
  assert rounds[-1]._losses[4, 5] == 1 == sum('is lost' in line for line in said)
  assert (tmp_path / 'sent').read_text() == 'x'


def test_clients_that_end_each_actor_end_the_round(machines, process, monkeypatch, tmp_path):
  monkeypatch.setattr(ray_actors, '_ATTEMPTS', 1)
  words = 'clients 38 to 39 of the round ended 1 actors, .*: give an actor more memory'
  with pytest.raises(ray_cluster.NoActorError, match=words):
    trained(machines, process, make=Ending(tmp_path, 39, losses=9))


def test_a_stop_ends_the_actors_at_once(machines, process, tmp_path):
  """The last test of these actors."""
  begun, pids = tmp_path / 'begun', []

  def endless(number, place):
    begun.touch()
    time.sleep(600)

  def stop():
    while not begun.exists():
      time.sleep(0.1)
    pids.extend(machines.clients_at.pids)
    machines.stop()

  threading.Thread(target=stop, daemon=True).start()
  with pytest.raises(RuntimeError, match='stopped'):
    trained(machines, process, make=endless)
  deadline = time.monotonic() + 60
  while any(os.path.exists(f'/proc/{pid}') for pid in pids) and time.monotonic() < deadline:
    time.sleep(0.1)
  assert pids and not any(os.path.exists(f'/proc/{pid}') for pid in pids)


def test_a_stop_while_actors_start_leaves_none(cluster, process, monkeypatch):
  rounds, advance = [], ray_actors.Round.advance
  with tff_inprocess.on_machines(
    cluster.address, actors=tff_inprocess.Actors(number=2, **ACTOR)
  ) as context:

    def stopped(self):
      rounds.append(self)
      context.stop()
      while not ray.wait([actor.awaited for actor in self.actors], num_returns=2, timeout=9.0)[0]:
        pass
      return advance(self)

    monkeypatch.setattr(ray_actors.Round, 'advance', stopped)
    with pytest.raises(RuntimeError, match='stopped'):
      trained(context, process)
  (of,) = rounds
  for actor in of.actors:
    with pytest.raises(ray.exceptions.RayActorError):
      ray.get(actor.handle.ready.remote(), timeout=60)


@made.cases(
  'options, words',
  (dict(number=7), '7 actors of cpus=1 do not fit into the cluster, whose machines have '),
  (dict(cpus=3), '1 actors of cpus=3 do not fit'),
  (dict(gpus=0.25), '1 actors of gpus=0.25 do not fit into the cluster, whose machines have 0'),
  (dict(number=0), 'number of actors must be a whole number of at least 1: 0'),
  (dict(cpus=0), 'cpus or gpus of actors must be above 0'),
  (dict(wait_seconds=-1), 'wait_seconds of actors must be a number of at least 0: -1'),
)
def test_actors_that_cannot_be_are_refused(cluster, options, words):
  with pytest.raises(ValueError) as raised:
    tff_inprocess.use_machines(cluster.address, actors=tff_inprocess.Actors(**options))
  assert words in str(raised.value)


def check_losses(context, num_rounds, lose, prepare=lambda: None):
  """Asserts that rounds keep their bits while each loses something at a random moment."""
  process = small.unweighted(noisy('blt', 'state', num_rounds=num_rounds))
  draws, ends = random.Random(5), []

  def before(number):
    for end in ends:
      end.join()
    prepare()
    ends[:] = [threading.Timer(draws.uniform(0.1, 0.6), lose)]
    ends[0].start()

  found = trained(context, process, num_rounds, slow, before)
  ends[0].join()
  small.assert_same(here(process, num_rounds), found)


@pytest.mark.thorough
def test_fifty_actors_are_lost(cluster):
  draws, kills = random.Random(7), set()
  actors = tff_inprocess.Actors(number=2, cpus=0.5)
  with tff_inprocess.on_machines(cluster.address, seed=7, actors=actors) as context:

    def lose():
      if (pids := context.clients_at.pids) and len(kills) < 50:
        pid = draws.choice(pids)
        kills.add(pid)
        with contextlib.suppress(ProcessLookupError):
          os.kill(pid, signal.SIGKILL)

    check_losses(context, 60, lose)
    assert len(kills) == 50 <= context.clients_at.losses
