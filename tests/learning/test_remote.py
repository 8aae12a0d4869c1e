"""Clients that train in workers which this process did not start."""

import contextlib
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.learning import remote
from fl_dpftrl.learning import workers as local

pytestmark = pytest.mark.tff


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    return probe.getsockname()[1]


class Worker:
  """The command, at a port that it comes back to."""

  def __init__(self):
    self.port = free_port()
    self.start()

  def start(self):
    self.process = subprocess.Popen(
      [sys.executable, '-m', 'fl_dpftrl.commands.main', 'worker', f'--port={self.port}'],
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )

  def kill(self):
    self.process.kill()
    self.process.wait()

  @property
  def address(self):
    return f'localhost:{self.port}'


@pytest.fixture(scope='module')
def _started():
  with contextlib.ExitStack() as stack:
    found = [Worker(), Worker()]
    for worker in found:
      stack.callback(worker.kill)
    yield found


@pytest.fixture
def two(_started):
  """Two workers; one that a test has killed is started again."""
  for worker in _started:
    if worker.process.poll() is not None:
      worker.start()
  return _started


@pytest.fixture
def used(two):
  said = []
  together = remote.RemoteWorkers([w.address for w in two], said.append)
  with tff.framework.get_context_stack().install(together.context()):
    yield two, said
  together.stop()


@tff.tensorflow.computation(tff.SequenceType(np.float32), np.float32, np.int32)
def slow_total(values, factor, steps):
  """A client's sum, after so many multiplications that change nothing."""
  busy = tf.while_loop(
    lambda i, m: i < steps,
    lambda i, m: (i + 1, tf.clip_by_value(m @ m, 0.0, 0.0)),
    [0, tf.zeros([200, 200])],
  )[1]
  return values.reduce(0.0, tf.add) * factor + busy[0, 0]


@tff.federated_computation(
  tff.FederatedType(tff.StructType([('factor', np.float32), ('steps', np.int32)]), tff.SERVER),
  tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS),
)
def weighted(state, values):
  at_clients = tff.federated_broadcast(state)
  totals = tff.federated_map(
    tff.tensorflow.computation(lambda v, s: slow_total(v, s['factor'], s['steps'])),
    (values, at_clients),
  )
  return (
    tff.federated_map(
      tff.tensorflow.computation(lambda s, t: s['factor'] + t), (state, tff.federated_sum(totals))
    ),
    tff.federated_sum(
      tff.federated_map(
        tff.tensorflow.computation(
          lambda v: v.reduce(0, lambda n, _: n + 1), tff.SequenceType(np.float32)
        ),
        values,
      )
    ),
  )


def clients(count):
  generator = np.random.default_rng(count)
  return [
    tf.data.Dataset.from_tensor_slices(generator.normal(size=i).astype(np.float32))
    for i in range(1, count + 1)
  ]


def state(steps=0):
  return dict(factor=np.float32(0.5), steps=np.int32(steps))


@pytest.fixture(scope='module')
def expected():
  worker = local.LocalWorker()
  with tff.framework.get_context_stack().install(worker.context()):
    found = {count: weighted(state(), clients(count)) for count in (1, 2, 7)}
  worker.stop()
  return found


def test_results_are_those_of_one_worker_here(expected, used):
  for count in (1, 2, 7):
    total, number = weighted(state(), clients(count))
    assert total == pytest.approx(expected[count][0], rel=1e-6)
    assert number == expected[count][1] == count * (count + 1) // 2
  assert not used[1]


def test_a_computation_without_clients_needs_no_worker():
  together = remote.RemoteWorkers([f'localhost:{free_port()}'], print)
  with tff.framework.get_context_stack().install(together.context()):
    assert tff.tensorflow.computation(lambda: tf.constant(3))() == 3
  together.stop()


def test_a_failure_of_the_computation_is_not_taken_for_a_lost_worker(used):
  @tff.tensorflow.computation(np.int32)
  def fails(x):
    with tf.control_dependencies([tf.debugging.assert_greater(x, 5)]):
      return tf.identity(x)

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(tff.federated_map(fails, values))

  with pytest.raises(Exception, match='assert|Condition'):
    total([6, 1])
  assert not used[1]


def test_results_at_clients_are_refused(used):
  del used

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def same(values):
    return values, tff.federated_sum(values)

  with pytest.raises(ValueError, match='must have its result at the server'):
    same([1, 2])


@pytest.mark.slow
def test_a_worker_that_comes_back_is_used_again(used):
  workers, said = used
  before = weighted(state(), clients(4))
  workers[0].kill()
  assert weighted(state(), clients(4)) == before
  assert weighted(state(), clients(4)) == before
  assert len(said) == 1 and 'is lost' in said[0]  # Once, not in each round.
  workers[0].start()
  deadline = time.monotonic() + 60
  while len(said) == 1 and time.monotonic() < deadline:
    assert weighted(state(), clients(4)) == before
  assert said[1] == f'the worker at {workers[0].address} is back'
  workers[1].kill()  # All that is left is the one that came back.
  assert weighted(state(), clients(4)) == before


@pytest.mark.slow
def test_a_worker_that_is_killed_while_it_trains(used):
  workers, said = used
  undisturbed = weighted(state(600), clients(6))
  timer = threading.Timer(0.3, workers[0].kill)
  start = time.monotonic()
  timer.start()
  repeated = weighted(state(600), clients(6))
  assert time.monotonic() - start > 0.3 and timer.finished.is_set()
  # Its part was computed by the other; the order of sums is the same.
  assert repeated == undisturbed
  assert len(said) == 1 and f'{workers[0].address} is lost' in said[0]


@pytest.mark.slow
def test_without_any_worker_it_fails_and_says_why(used):
  workers, _ = used
  weighted(state(), clients(2))
  for worker in workers:
    worker.kill()
  with pytest.raises(remote.WorkersLostError) as raised:
    weighted(state(), clients(2))
  for worker in workers:
    assert worker.address in str(raised.value)


@pytest.mark.slow
def test_a_worker_that_hangs_ends_the_round(two):
  together = remote.RemoteWorkers([two[0].address], print, timeout=1.0)
  with tff.framework.get_context_stack().install(together.context()):
    with pytest.raises(
      local.HungError, match=f'at {two[0].address} .* no result for 1 s'
    ) as raised:
      weighted(state(10**7), clients(2))
  assert len(str(raised.value)) < 300
  together.stop()
  two[0].kill()


def test_addresses_on_a_network_are_refused_unless_it_is_said_to_be_safe():
  for text in ('10.0.0.7:8000', 'trainer:8000', 'localhost.example.org:8000'):
    with pytest.raises(ValueError, match='ssh -L 8000:localhost:8000 .*insecure_network=True'):
      remote.RemoteWorkers(['127.0.0.1:8000', text], print)
  remote.RemoteWorkers(['10.0.0.7:8000'], print, insecure_network=True).stop()


def test_addresses_that_will_not_do():
  for texts, message in (
    (['nowhere'], "'nowhere' is not host:port"),
    (['a:1', ' a:1'], 'a:1 is named twice'),
    (['a:99999'], "'a:99999' is not host:port"),
  ):
    with pytest.raises(ValueError, match=message):
      remote.RemoteWorkers(texts, print)
