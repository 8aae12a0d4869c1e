import concurrent.futures
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import portpicker
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.learning import isolation, split, worker_launcher, workers

pytestmark = pytest.mark.tff


def is_running(pid: int) -> bool:
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return False
  return stat.rsplit(')', 1)[1].split()[0] != 'Z'


def test_runs_computations_and_stops():
  worker = workers.LocalWorker()
  try:

    @tff.tensorflow.computation(np.int32)
    def add_one(x):
      return x + 1

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(values):
      return tff.federated_sum(tff.federated_map(add_one, values))

    with tff.framework.get_context_stack().install(worker.context()):
      assert total([1, 2, 3]) == 9
      assert is_running(worker.pid)
      worker.stop()
      with pytest.raises(RuntimeError, match='has ended .*resume'):
        total([1])
  finally:
    worker.stop()
  assert not is_running(worker.pid)


def children(pid: int) -> list[int]:
  """Returns the children of a process with one thread, as a launcher has."""
  found = []
  for stat in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      text = stat.read_text()
    except OSError:
      continue
    if int(text.rsplit(')', 1)[1].split()[1]) == pid:
      found.append(int(text.split()[0]))
  return found


def wait_until_gone(*pids: int) -> None:
  deadline = time.monotonic() + 30
  while any(map(is_running, pids)) and time.monotonic() < deadline:
    time.sleep(0.02)
  assert not any(map(is_running, pids))


def isolated(**kwargs) -> workers.LocalWorker:
  said = []
  worker = workers.LocalWorker(**kwargs, warn=said.append)
  if not worker.is_isolated:
    worker.stop()
    pytest.skip(said[0])
  assert not said
  return worker


def listeners(pid: int | str) -> set[str]:
  """Inodes of the TCP sockets that listen in the network of a process."""
  lines = [
    line.split()
    for name in ('tcp', 'tcp6')
    for line in pathlib.Path(f'/proc/{pid}/net/{name}').read_text().splitlines()
  ]
  return {fields[9] for fields in lines if fields[3] == '0A'}


def reachable(port: int) -> list[str]:
  """The addresses of this machine at which something listens at a port."""
  hosts = {'127.0.0.1', '::1', *socket.gethostbyname_ex('localhost')[2]}
  with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
    try:
      probe.connect(('192.0.2.1', 9))  # Sends nothing; names an interface.
      hosts.add(probe.getsockname()[0])
    except OSError:
      pass
  found = []
  for host in hosts:
    try:
      socket.create_connection((host, port), timeout=5).close()
      found.append(host)
    except OSError:
      pass
  return found


@tff.tensorflow.computation(np.int32)
def busy(steps):
  return tf.while_loop(
    lambda i, m: i < steps,
    lambda i, m: (i + 1, tf.clip_by_value(m @ m, 0.0, 0.0)),
    [0, tf.zeros([200, 200])],
  )[0]


def test_nobody_else_reaches_the_worker_while_it_computes(monkeypatch):
  port = portpicker.pick_unused_port()
  monkeypatch.setattr(isolation, 'PORT_ALONE', port)
  worker = isolated()
  try:
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
      computing = thread.submit(worker.context().invoke, busy, np.int32(2000))
      while not computing.done():
        assert not reachable(port)
      assert computing.result() == 2000
    # It does listen, in a network that holds nothing else.
    assert len(listeners(worker.pid)) == 1
    assert not listeners(worker.pid) & listeners('self')
  finally:
    worker.stop()


def test_without_a_network_of_its_own_it_says_what_is_exposed(monkeypatch):
  def refuse(launch):
    raise isolation.NotIsolatedError('Operation not permitted')

  port = portpicker.pick_unused_port()
  monkeypatch.setattr(workers, '_launch_isolated', refuse)
  monkeypatch.setattr(portpicker, 'pick_unused_port', lambda: port)
  said = []
  worker = workers.LocalWorker(warn=said.append)
  try:
    assert not worker.is_isolated
    assert worker.context().invoke(busy, np.int32(1)) == 1
    assert '127.0.0.1' in reachable(port)
    assert len(said) == 1 and len(said[0]) <= 300 and '\n' not in said[0]
    for part in (f'port {port}', 'noise seed', 'Operation not permitted', 'allow'):
      assert part in said[0]
  finally:
    worker.stop()


def test_a_launcher_that_is_refused_says_why(monkeypatch, tmp_path):
  program = tmp_path / 'launcher.py'
  source = pathlib.Path(worker_launcher.__file__).read_text()
  refusal = "OSError(1, 'Operation not permitted')"
  program.write_text(
    source.replace('def _isolate() -> None:\n', f'def _isolate():\n  raise {refusal}\n')
  )
  monkeypatch.setattr(isolation, '_LAUNCHER', program)
  with pytest.warns(UserWarning, match=r'namespace \(Operation not permitted\)'):
    worker = workers.LocalWorker()
  worker.stop()


def test_who_is_no_administrator_gets_a_network_too():
  if os.geteuid():
    pytest.skip('the other tests are run by no administrator')
  code = (
    'import ctypes, encodings.idna, os, socket\n'
    'from fl_dpftrl.learning import worker_launcher as launcher\n'
    'os.setgroups([]), os.setgid(65534), os.setuid(65534)\n'
    'ctypes.CDLL(None).prctl(4, 1)\n'  # As a process that was never root.
    'try:\n'
    '  launcher._isolate()\n'
    'except OSError as error:\n'
    '  print(error)\n'
    'else:\n'
    '  with socket.create_server(("127.0.0.1", 0)) as server:\n'
    '    socket.create_connection(server.getsockname()).close()\n'
    '  print(os.geteuid(), *(name for _, name in socket.if_nameindex()))\n'
  )
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  if 'not permitted' in done.stdout:
    pytest.skip(done.stdout)
  assert done.stdout.split()[:2] == ['65534', 'lo']


@pytest.mark.parametrize('which', ['worker', 'relay'])
def test_worker_and_relay_end_together(which):
  worker = isolated()
  (relay,) = children(worker.pid)
  context = worker.context()
  assert context.invoke(busy, np.int32(1)) == 1
  os.kill(worker.pid if which == 'worker' else relay, signal.SIGKILL)
  with pytest.raises(RuntimeError, match='has ended .*resume'):
    context.invoke(busy, np.int32(1))
  wait_until_gone(worker.pid, relay)
  worker.stop()


def test_a_worker_that_hangs_ends_the_computation_after_a_stated_time():
  worker = isolated(timeout=60.0)
  try:
    assert worker.context().invoke(busy, np.int32(1)) == 1
    worker._timeout = 0.5
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(workers.HungError, match='no result for 0.5 s, the worker timeout'):
      worker.context().invoke(busy, np.int32(2))
  finally:
    worker.stop()


@pytest.mark.slow
def test_secure_sums_are_computed_whole_and_in_parts(worker):
  of = tff.TensorType(np.float32, [3])
  process = tff.aggregators.SecureSumFactory(1.0).create(of)
  here = worker.context()
  cut = split.SplitContext(here, 2, lambda comp, parts: [here.invoke(comp, part) for part in parts])
  values = [np.float32([0.5, -1.0, 0.1]), np.float32([1.0, 0.0, -0.3])] * 2
  for context in (here, cut):
    with tff.framework.get_context_stack().install(context):
      found = process.next(process.initialize(), values).result
    np.testing.assert_allclose(found, np.sum(values, axis=0), atol=1e-6)


@pytest.mark.slow
def test_large_values_pass_through_the_relay():
  worker = isolated()
  try:

    @tff.tensorflow.computation(tff.TensorType(np.float32, [None]))
    def negative(x):
      return -x

    values = np.random.default_rng(0).normal(size=5_000_000).astype(np.float32)
    found = worker.context().invoke(negative, values)
    np.testing.assert_array_equal(found, -values)
  finally:
    worker.stop()


@pytest.mark.slow
def test_ends_with_a_parent_that_is_killed():
  parent = subprocess.Popen(
    [
      sys.executable,
      '-c',
      'import time\n'
      'from fl_dpftrl.learning import workers\n'
      'print(workers.LocalWorker().pid, flush=True)\n'
      'time.sleep(600)',
    ],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
    text=True,
  )
  pid = int(parent.stdout.readline())
  relays = children(pid)
  assert is_running(pid) and all(map(is_running, relays))
  parent.kill()
  # The worker holds none of the parent's output: reading it comes to an end.
  assert parent.communicate(timeout=30)[0] == ''
  wait_until_gone(pid, *relays)
