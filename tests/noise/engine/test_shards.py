"""Rows in slices, from processes that come and go."""

import contextlib
import itertools
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from fl_dpftrl.commands import main
from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import blt
from fl_dpftrl.noise import engine
from fl_dpftrl.noise.engine import certificates, draws, shards
from fl_dpftrl.noise.engine import maker as makers
from fl_dpftrl.noise.engine import server as servers

pytestmark = pytest.mark.slow

BLT = blt.BLT((0.9, 0.5), (0.3, 0.2))
SIZE, NUM_ROUNDS = 4 * draws.CHUNK + 7, 40
SEED, SEEDS = 5, itertools.count(6)


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    return probe.getsockname()[1]


class Worker:
  """The command, at a port that it comes back to."""

  def __init__(self, folder, *, is_kept=True):
    self.port, self.folder, self.is_kept = free_port(), folder, is_kept
    self.made = not (folder / 'certificates').exists()
    self.start()

  def start(self):
    self.process = subprocess.Popen(
      [
        sys.executable,
        '-m',
        'fl_dpftrl.commands.main',
        'noise_worker',
        f'--port={self.port}',
        f'--certificates={self.folder / "certificates"}',
        *[f'--folder={self.folder / str(self.port)}'] * self.is_kept,
      ],
      stderr=subprocess.PIPE,
      text=True,
    )
    if self.made:
      assert 'made certificates for a try-out' in self.process.stderr.readline()
      self.made = False
    assert 'makes noise at' in self.process.stderr.readline()

  def kill(self):
    self.process.kill()
    self.process.wait()
    self.process.stderr.close()

  @property
  def address(self):
    return f'localhost:{self.port}'


@pytest.fixture(scope='module')
def _pair(tmp_path_factory):
  folder = tmp_path_factory.mktemp('workers')
  with contextlib.ExitStack() as stack:
    found = []
    for _ in range(2):
      found.append(Worker(folder))
      stack.callback(lambda w: w.process.poll() is None and w.kill(), found[-1])
    yield found


@pytest.fixture
def workers(_pair, monkeypatch):
  """Two workers, and noise of the test's own; those that a test killed are started again."""
  for worker in _pair:
    worker.process.send_signal(signal.SIGCONT)
    if worker.process.poll() is not None:
      worker.start()
  monkeypatch.setattr(sys.modules[__name__], 'SEED', next(SEEDS))
  return _pair


def serve(folder, workers, strategy=BLT, **kwargs):
  kwargs = (
    dict(size=SIZE, num_rounds=NUM_ROUNDS, stddev=1.0, noise_seed=SEED, snapshot_rows=4)
    | (
      {'worker_certificates': certificates.read(workers[0].folder / 'certificates', 'run')}
      if workers
      else {}
    )
    | kwargs
  )
  return engine.RowServer(strategy, folder, workers=[w.address for w in workers], **kwargs)


def served(rows, row):
  rows.serve(row)
  content = (rows.folder / servers.row_name(row)).read_bytes()
  return np.frombuffer(content[servers.HEADER_BYTES :], '<f4')


def expected_rows(strategy=BLT):
  maker = engine.RowMaker(
    strategy, size=SIZE, num_rounds=NUM_ROUNDS, stddev=1.0, seed=draws.fixed_seed(SEED)
  )
  rows = np.empty((NUM_ROUNDS, SIZE), np.float32)
  for row in rows:
    maker.make(row)
  return rows


@pytest.mark.parametrize(
  'strategy',
  [BLT, toeplitz.BandedToeplitz(0.9 ** np.arange(20), None)],
  ids=['blt', 'banded_toeplitz'],
)
def test_rows_are_those_of_one_process(tmp_path, workers, strategy):
  rows = serve(tmp_path / 'rows', workers, strategy)
  expected = expected_rows(strategy)
  for row in range(NUM_ROUNDS):
    np.testing.assert_array_equal(served(rows, row), expected[row])
  rows.close()


def test_a_worker_that_is_started_anew_makes_the_same_rows(tmp_path, workers):
  rows = serve(tmp_path / 'rows', workers)
  expected = expected_rows()
  for row in range(20):
    if row in (3, 11):
      workers[row % 2].kill()
      workers[row % 2].start()
    np.testing.assert_array_equal(served(rows, row), expected[row])
  # It began at a snapshot, not at row 0.
  assert all(
    len(list((worker.folder / str(worker.port)).glob(f'{rows.identity:016x}-*/before-*.json'))) >= 2
    for worker in workers
  )
  rows.close()


def test_a_worker_that_is_gone_is_named_and_no_row_is_lost(tmp_path, workers, monkeypatch):
  monkeypatch.setattr(shards, '_PATIENCE_SECONDS', 0.0)
  rows = serve(tmp_path / 'rows', workers)
  expected = expected_rows()
  served(rows, 0)
  served(rows, 1)
  workers[1].kill()
  with pytest.raises(RuntimeError, match=f'noise worker at {workers[1].address} is not there'):
    for row in (2, 3):  # The first may have been made ahead.
      served(rows, row)
  reached = rows.served()
  # Nor need whoever asked begin anew.
  workers[1].start()
  np.testing.assert_array_equal(served(rows, reached + 1), expected[reached + 1])
  workers[1].kill()
  reached = rows.served()
  rows.close()
  # Whoever goes on need not have the same workers, or any.
  workers[1].start()
  for source in ([workers[1]], []):
    rows = serve(tmp_path / 'rows', source)
    np.testing.assert_array_equal(served(rows, reached), expected[reached])
    with pytest.raises(ValueError, match='was given out before'):
      rows.serve(reached - 1)
    rows.close()


def test_a_worker_that_hangs_does_not_keep_a_run_from_closing(tmp_path, workers):
  rows = serve(tmp_path / 'rows', workers)
  served(rows, 0)
  rows._ahead.wait()  # Row 1 is made.
  workers[0].process.send_signal(signal.SIGSTOP)
  served(rows, 1)
  time.sleep(0.3)  # Row 2 is asked for.
  start = time.monotonic()
  rows.close()
  assert time.monotonic() - start < 5.0


def test_other_versions_are_refused(tmp_path, workers, monkeypatch):
  monkeypatch.setattr(makers, 'VERSION', 99)
  rows = serve(tmp_path / 'rows', workers)
  with pytest.raises(RuntimeError, match='the run is fl_dpftrl with rows 99'):
    rows.serve(0)
  rows.close()


def test_a_worker_that_is_terminated_leaves_no_secret(tmp_path, monkeypatch):
  monkeypatch.setenv('TMPDIR', str(tmp_path))
  worker = Worker(tmp_path, is_kept=False)
  rows = serve(tmp_path / 'rows', [worker], snapshot_rows=1)
  for row in range(4):
    served(rows, row)
  assert list(tmp_path.glob('tmp*/*/buffer-*'))
  rows.close()
  worker.process.terminate()
  assert worker.process.wait(30) == 130
  said = worker.process.stderr.read()
  worker.process.stderr.close()
  assert 'Traceback' not in said and not list(tmp_path.glob('tmp*'))


def test_more_workers_than_chunks(tmp_path, workers):
  rows = serve(tmp_path / 'rows', workers, size=5)
  whole = serve(tmp_path / 'whole', [], size=5)
  np.testing.assert_array_equal(served(rows, 0), served(whole, 0))
  rows.close()
  whole.close()


def test_failures_of_a_worker_are_told(tmp_path, workers):
  # A folder that its snapshots cannot be written to.
  rows = serve(tmp_path / 'rows', workers)
  served(rows, 0)
  (own,) = (workers[0].folder / str(workers[0].port)).glob(f'{rows.identity:016x}-*')
  time.sleep(0.2)
  own.rename(own.with_name('elsewhere'))
  with pytest.raises(RuntimeError, match=f'{workers[0].address} failed: '):
    for row in range(1, 9):
      served(rows, row)
  rows.close()


def test_a_worker_that_hangs_ends_the_row_after_a_stated_time(tmp_path, workers):
  rows = serve(tmp_path / 'rows', workers, worker_timeout=1.0)
  served(rows, 0)
  rows._ahead.wait()  # Row 1 is made.
  workers[1].process.send_signal(signal.SIGSTOP)
  expected = f'noise worker at {workers[1].address} gave no sign for 1 s'
  with pytest.raises(RuntimeError, match=expected) as raised:
    for row in (1, 2):
      served(rows, row)
  assert len(str(raised.value)) < 300 and '\n' not in str(raised.value)
  workers[1].process.send_signal(signal.SIGCONT)
  np.testing.assert_array_equal(served(rows, 2), expected_rows()[2])
  rows.close()


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(worker_certificates=None), 'worker_certificates are missing'),
    (dict(workers=['nowhere']), "'nowhere' is not host:port"),
    (dict(workers=['http://a:1']), "'http://a:1' is not host:port"),
    (dict(workers=['::1:80']), "'::1:80' is not host:port"),
    (dict(workers=['a:1', 'a:1']), 'a:1 is named twice'),
    (dict(worker_timeout=0), 'worker_timeout must be a number of seconds above 0, got 0'),
    (dict(worker_timeout=float('nan')), 'worker_timeout must be a number of seconds above 0'),
  ],
)
def test_refuses(tmp_path, made_certificates, change, message):
  own = certificates.read(made_certificates, 'run')
  arguments = dict(workers=['localhost:1'], worker_certificates=own) | change
  with pytest.raises(ValueError, match=message):
    engine.RowServer(BLT, tmp_path, size=5, num_rounds=5, stddev=1.0, **arguments)


@pytest.fixture(scope='module')
def made_certificates(tmp_path_factory):
  folder = tmp_path_factory.mktemp('made') / 'certificates'
  certificates.make(folder, [])
  return folder


@pytest.mark.parametrize(
  'flags, message',
  [
    ('--port=0 --certificates=MADE', '--port=0'),
    ('--port=99999 --certificates=MADE', '--port=99999 is not between'),
    ('--port=PORT --host= --certificates=MADE', '--host is empty'),
    (
      '--port=PORT --host=no.such.host.invalid --certificates=MADE',
      '--host=no.such.host.invalid --port=PORT cannot be listened at',
    ),
    ('--port=PORT', 'give --certificates=FOLDER'),
    ('--port=PORT --key_file=OTHER', '--authority_file, --certificate_file missing'),
    ('--port=PORT --certificates=MADE --key_file=OTHER', 'give either'),
    ('--port=PORT --certificates=EMPTY', 'authority.pem: No such file'),
    ('--port=PORT --certificates=NEW --names=a/b', "'a/b' is not the name or address"),
    ('--port=PORT --names=a', '--names is for certificates that are made'),
    (
      '--port=PORT --authority_file=OTHER --certificate_file=OTHER --key_file=OTHER',
      'other is not a certificate in PEM',
    ),
  ],
)
def test_the_command_refuses(tmp_path, made_certificates, capsys, flags, message):
  (tmp_path / 'other').write_text('a key of an earlier version')
  (tmp_path / 'empty').mkdir()
  for word, meant in [
    ('MADE', made_certificates),
    ('OTHER', tmp_path / 'other'),
    ('EMPTY', tmp_path / 'empty'),
    ('NEW', tmp_path / 'new'),
    ('PORT', free_port()),
  ]:
    flags, message = flags.replace(word, str(meant)), message.replace(word, str(meant))
  with pytest.raises(SystemExit) as exited:
    main.main(['noise_worker', *flags.split()])
  assert exited.value.code == 2
  said = capsys.readouterr().err
  assert message in said and said.count('\n') == 1


def test_a_taken_port_is_refused(made_certificates, capsys):
  with socket.socket() as taken:
    taken.bind(('localhost', 0))
    taken.listen()
    port = taken.getsockname()[1]
    with pytest.raises(SystemExit) as exited:
      main.main(['noise_worker', f'--port={port}', f'--certificates={made_certificates}'])
  assert exited.value.code == 2
  assert f'--port={port} cannot be listened at' in capsys.readouterr().err
