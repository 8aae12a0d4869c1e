"""A noise worker among those who have no business with it: a line each, and it goes on."""

import contextlib
import json
import pickle
import queue
import re
import socket
import ssl
import struct
import subprocess
import sys
import time

import grpc
import numpy as np
import pytest

from fl_dpftrl.families import blt
from fl_dpftrl.noise import engine
from fl_dpftrl.noise.engine import certificates, shards, slices, wire

pytestmark = pytest.mark.slow

PREFACE = b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
# The command, with less patience than the users' machines need.
PROGRAM = """
from fl_dpftrl.commands import main
from fl_dpftrl.noise.engine import gate, slices
gate._HANDSHAKE_SECONDS = 3.0
slices._MOST_CALLS = 3
main.main()
"""


class Worker:
  """A worker and what it says, in which each line is found once."""

  def __init__(self, folder):
    with socket.socket() as probe:
      probe.bind(('localhost', 0))
      self.port = probe.getsockname()[1]
    self.folder, self._output = folder, folder / 'output'
    self._found = 0
    self._count = 0
    with self._output.open('wb') as output:
      self.process = subprocess.Popen(
        [
          *(sys.executable, '-c', PROGRAM, 'noise_worker', f'--port={self.port}'),
          f'--certificates={folder / "own"}',
        ],
        stderr=output,
      )
    self.line('makes noise at')

  def line(self, pattern):
    """Waits for the next line with a pattern, and returns those up to it."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
      assert self.process.poll() is None
      lines = self._output.read_text().split('\n')[:-1]
      for index in range(self._found, len(lines)):
        assert len(lines[index]) <= 300 and lines[index].isprintable()
        if re.search(pattern, lines[index]):
          new = lines[self._found : index + 1]
          self._found = index + 1
          return new
      time.sleep(0.05)
    raise AssertionError(f'no line has {pattern}: {lines[self._found :]}')

  def goes_on(self):
    """Makes a row of other noise each time, and checks it; returns the lines meanwhile."""
    self._count += 1
    values, here = np.empty((2, 1000), np.float32)
    recipe = dict(
      strategy=blt.BLT((0.9, 0.5), (0.3, 0.2)),
      size=1000,
      seed=self._count.to_bytes(16, 'little'),
      memory='memory',
      precision='float32',
      stddev=1.0,
      num_rounds=5,
    )
    own = certificates.read(self.folder / 'own', 'run')
    rows = shards.ShardedSource([f'localhost:{self.port}'], own, recipe, 0, timeout=60.0)
    rows.make(1, values, 0)
    rows.close()
    maker = engine.RowMaker(**recipe)
    maker.make(here)
    maker.make(here)
    np.testing.assert_array_equal(values, here)
    return self.line('makes 1,000 coordinates from 0 on') + self.line('is gone')

  def connect(self):
    return socket.create_connection(('localhost', self.port), timeout=20)

  def secured(self, role='run', folder='own'):
    """A TLS connection with certificates of a folder."""
    context = ssl.create_default_context(cafile=self.folder / 'own' / 'authority.pem')
    if role:
      folder = self.folder / folder
      context.load_cert_chain(folder / f'{role}.pem', folder / f'{role}.key')
    context.set_alpn_protocols(['h2'])
    return context.wrap_socket(self.connect(), server_hostname='localhost')

  @contextlib.contextmanager
  def channel(self):
    authority, key, certificate = certificates.read(self.folder / 'own', 'run').contents()
    credentials = grpc.ssl_channel_credentials(authority, key, certificate)
    with grpc.secure_channel(f'localhost:{self.port}', credentials) as channel:
      yield channel

  def answers(self, *messages):
    """What the worker says to a call with these messages."""
    with self.channel() as channel:
      call = channel.stream_stream(f'/{wire.SERVICE}/{wire.METHOD}')(iter(messages), timeout=30)
      return list(call)


@pytest.fixture(scope='module')
def worker(tmp_path_factory):
  folder = tmp_path_factory.mktemp('worker')
  certificates.make(folder / 'own', [])
  certificates.make(folder / 'other', [])
  worker = Worker(folder)
  yield worker
  worker.process.terminate()
  assert worker.process.wait(30) == 130
  assert 'Traceback' not in (folder / 'output').read_text()


def ended(connection):
  """Waits until the other side has ended the connection."""
  with contextlib.suppress(OSError):
    while connection.recv(1 << 16):
      pass


def test_random_bytes_before_the_handshake(worker):
  random = np.random.default_rng(1)
  for size in (1, 24, 5000):
    with worker.connect() as connection:
      with contextlib.suppress(OSError):
        connection.sendall(random.bytes(size))
        connection.shutdown(socket.SHUT_WR)
      ended(connection)
  assert len(worker.line('was refused: it is no run with a certificate')) <= 2
  worker.goes_on()


def times(line):
  """How many connections a line says were refused."""
  found = re.search(r' was refused: .*?(?: \((\d+) times\))?$', line)
  return int(found[1] or 1) if found else 0


def test_idle_connections(worker):
  with contextlib.ExitStack() as stack:
    idle = [stack.enter_context(worker.connect()) for _ in range(200)]
    said = worker.goes_on()  # While they are there.
    for connection in idle:
      ended(connection)
  # All of them, in a few lines.
  while sum(times(line) for line in said) < 200:
    said += worker.line('was refused')
  lines = [line for line in said if 'was refused' in line]
  assert sum(map(times, lines)) == 200 and len(lines) <= 8
  assert any('did not prove itself within 3 s' in line for line in lines)
  worker.goes_on()


@pytest.mark.parametrize(
  'role, folder, reason',
  [
    ('run', 'other', 'its certificate will not do'),
    ('worker', 'own', 'its certificate will not do'),
    (None, 'own', 'it is no run with a certificate: peer did not return a certificate'),
  ],
)
def test_a_wrong_certificate(worker, role, folder, reason):
  with contextlib.suppress(OSError):  # TLS 1.3 tells the client as it reads.
    with worker.secured(role, folder) as connection:
      ended(connection)
  (line,) = worker.line('was refused')
  assert reason in line
  worker.goes_on()


def test_a_run_with_another_authority_is_told_so(worker):
  recipe = dict(size=5, num_rounds=5, stddev=1.0)
  rows = engine.RowServer(
    blt.BLT((0.9,), (0.3,)),
    worker.folder / 'rows',
    **recipe,
    workers=[f'localhost:{worker.port}'],
    worker_certificates=certificates.read(worker.folder / 'other', 'run'),
  )
  with pytest.raises(RuntimeError, match='has a certificate of another authority') as raised:
    rows.serve(0)
  rows.close()
  assert len(str(raised.value)) < 300
  worker.line('was refused')
  worker.goes_on()


def test_random_bytes_after_the_handshake(worker):
  random = np.random.default_rng(2)
  with worker.secured() as connection:
    connection.sendall(random.bytes(5000))
    ended(connection)
  (line,) = worker.line('was refused')
  assert 'it has a certificate, and what it sent is not gRPC' in line
  with worker.secured() as connection:
    connection.sendall(PREFACE + random.bytes(5000))
    ended(connection)
  assert len(worker.line('is gone')) == 1
  worker.goes_on()


def frame(kind, flags, stream, content):
  return struct.pack('>I', len(content))[1:] + struct.pack('>BBI', kind, flags, stream) + content


def test_a_length_beyond_all_limits(worker):
  fields = {
    ':method': 'POST',
    ':scheme': 'https',
    ':path': f'/{wire.SERVICE}/{wire.METHOD}',
    ':authority': 'localhost',
    'te': 'trailers',
    'content-type': 'application/grpc',
  }
  text = lambda value: bytes([len(value)]) + value.encode()
  head = b''.join(b'\x00' + text(name) + text(value) for name, value in fields.items())
  with worker.secured() as connection:
    connection.sendall(
      PREFACE
      + frame(4, 0, 0, b'')
      + frame(1, 4, 1, head)
      + frame(0, 0, 1, b'\x00' + struct.pack('>I', 2**32 - 1) + bytes(1000))
    )
    connection.settimeout(20)
    worker.line('of more than')  # gRPC breaks the call off, or ends it without a message.
  worker.line('is gone')
  worker.goes_on()


class Harm:
  def __init__(self, path):
    self._path = path

  def __reduce__(self):
    return open, (self._path, 'w')


def test_messages_that_are_none(worker):
  marker = worker.folder / 'executed'
  good = wire.Slice(
    strategy={'family': 'identity', 'parameters': {}},
    arrays_bytes=0,
    row_size=5,
    first_chunk=0,
    size=5,
    num_rounds=5,
    stddev=1.0,
    seed=bytes(16),
    memory='memory',
    precision='float32',
    snapshot_rows=0,
    made_by=slices.versions(),
  ).encode()
  values = json.loads(good[1:])
  random = np.random.default_rng(3)
  damaged = bytearray(good)
  damaged[random.integers(1, len(good))] ^= 0x80
  hostile = [
    pickle.dumps(Harm(str(marker))),
    b'S' + pickle.dumps(Harm(str(marker))),
    bytes(damaged),
    random.bytes(1000),
    b'S' + bytes(wire.MOST_BYTES),
    b'S' + wire._canonical({**values, 'arrays_bytes': 1 << 60}),
    b'S' + wire._canonical({**values, 'size': 1 << 60, 'row_size': 1 << 60}),
    b'S' + wire._canonical({**values, 'strategy': {'family': 'os.system', 'parameters': {}}}),
    b'S' + wire._canonical({**values, 'made_by': 'another version'}),
  ]
  for message in hostile:
    (answer,) = map(wire.decode_answer, worker.answers(message))
    assert isinstance(answer, wire.Failed)
    lines = worker.line('what a run asked for was refused')
    assert len([line for line in lines if 'refused' in line]) == 1
  for message in (b'R', b'A' + bytes(50), random.bytes(17), wire.encode_request((-1, 0))):
    (answer,) = map(wire.decode_answer, worker.answers(good, message))
    assert isinstance(answer, wire.Failed)
    worker.line('what a run asked for was refused')
  with pytest.raises(grpc.RpcError):
    worker.answers(bytes(8 * wire.MOST_BYTES))
  worker.line('of more than')  # gRPC breaks the call off, or ends it without a message.
  assert not marker.exists()
  # None of it has left files behind; they would be in its temporary folder.
  worker.line('is gone')
  worker.goes_on()


def test_no_more_calls_than_there_may_be(worker):
  ends = [queue.SimpleQueue() for _ in range(3)]
  with worker.channel() as channel:
    method = channel.stream_stream(f'/{wire.SERVICE}/{wire.METHOD}')
    calls = [method(iter(end.get, None)) for end in ends]
    time.sleep(0.2)
    with pytest.raises(grpc.RpcError) as raised:
      for _ in range(20):
        worker.answers(b'')
        time.sleep(0.2)
    assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    for end in ends:
      end.put(None)
    for call in calls:
      assert isinstance(wire.decode_answer(next(call)), wire.Failed)
  worker.goes_on()
