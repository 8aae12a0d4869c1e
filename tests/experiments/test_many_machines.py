"""Runs whose clients, or noise, are computed by other processes."""

import csv
import json
import signal
import socket
import subprocess
import sys
import time

import pyarrow.parquet as pq
import pytest

from fl_dpftrl.noise.engine import certificates
from tests.experiments import starts

pytestmark = [pytest.mark.tff, pytest.mark.slow]

FLAGS = [
  '--flagfile=experiments/stackoverflow/flags/synthetic.flags',
  '--num_rounds=12',
  '--report_goal=10',
  '--timer_rounds=5',
  '--rounds_per_evaluation=6',
  '--noise_multiplier=2',
  '--noise_seed=1',
  '--noise_memory=memory',
]


def free_port() -> int:
  with socket.socket() as probe:
    probe.bind(('localhost', 0))
    return probe.getsockname()[1]


class Workers:
  """Two processes of a command, at ports that they come back to."""

  def __init__(self, command, *flags):
    self._command = [sys.executable, '-m', 'fl_dpftrl.commands.main', command, *flags]
    self.ports = [free_port(), free_port()]
    self.processes = [self._started(port) for port in self.ports]

  def _started(self, port):
    return subprocess.Popen(
      [*self._command, f'--port={port}'],
      cwd=starts.ROOT,
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )

  def restart(self):
    """Starts those again that were killed."""
    for index, process in enumerate(self.processes):
      if process.poll() is not None:
        self.processes[index] = self._started(self.ports[index])

  def kill(self, *which):
    for index in which or (0, 1):
      self.processes[index].kill()
      self.processes[index].wait()

  @property
  def addresses(self):
    return ','.join(f'localhost:{port}' for port in self.ports)


def start(folder, *flags) -> starts.Start:
  return starts.Start(*FLAGS, f'--output_dir={folder}', *flags)


def train(folder, *flags) -> None:
  process = start(folder, *flags)
  assert process.wait() == 0, process.err


def numbers(folder) -> list[dict[str, float]]:
  """Returns the measurements of each round, without times."""
  with open(folder / 'metrics.csv', newline='') as file:
    return [
      {name: float(value) for name, value in row.items() if value and 'second' not in name}
      for row in csv.DictReader(file)
    ]


@pytest.fixture(scope='module')
def here(tmp_path_factory):
  folder = tmp_path_factory.mktemp('here') / 'run'
  train(folder)
  return folder


@pytest.fixture(scope='module')
def _workers():
  workers = Workers('worker')
  yield workers
  workers.kill()


@pytest.fixture
def two_workers(_workers):
  _workers.restart()
  return _workers


def close_to(found, expected):
  assert len(found) == len(expected) == 12
  for row, other in zip(found, expected):
    assert row.keys() == other.keys()
    for name in row:
      assert row[name] == pytest.approx(other[name], rel=1e-4, abs=1e-6), name


def log_of(folder):
  return pq.read_table(folder / 'participation.parquet')


def test_two_remote_workers_train_the_same_model(here, two_workers, tmp_path):
  train(tmp_path / 'run', f'--worker_addresses={two_workers.addresses}')
  close_to(numbers(tmp_path / 'run'), numbers(here))
  assert log_of(tmp_path / 'run').equals(log_of(here))
  assert (tmp_path / 'run' / 'privacy.json').read_text() == (here / 'privacy.json').read_text()


def test_workers_that_see_the_seed_are_told_of(two_workers, tmp_path):
  run = start(
    tmp_path / 'run',
    f'--worker_addresses={two_workers.addresses}',
    '--noise_memory=state',
    '--num_rounds=1',
  )
  assert run.wait() == 0, run.err
  assert 'the workers see the noise seed' in run.err


def test_a_worker_that_is_killed_in_mid_round(here, two_workers, tmp_path):
  folder = tmp_path / 'run'
  run = start_and_pause(folder, two_workers)
  two_workers.kill(1)
  run.go_on()
  assert run.wait() == 0, run.err
  assert f'localhost:{two_workers.ports[1]} is lost' in run.err
  close_to(numbers(folder), numbers(here))
  # Each round used one row of noise, and its own.
  marks = json.loads((folder / 'checkpoints/rows/served.json').read_text())
  assert marks['row'] == 11
  assert log_of(folder).equals(log_of(here))


def test_all_workers_killed_then_resumed_without_them(here, two_workers, tmp_path):
  folder = tmp_path / 'run'
  run = start_and_pause(folder, two_workers)
  two_workers.kill()
  run.go_on()
  assert run.wait() == 1
  last = run.err.strip().splitlines()[-1]
  assert 'no worker is left to train clients' in last and 'resum' in last
  train(folder, '--resume')
  close_to(numbers(folder), numbers(here))


def test_an_interrupt_ends_a_run_at_once(two_workers, tmp_path):
  run = start_and_pause(tmp_path / 'run', two_workers)
  run.send_signal(signal.SIGINT)
  run.go_on()
  # Within a call of TFF an interrupt may come out as that round's failure.
  assert run.wait() in (1, 130), run.err
  assert 'Traceback' not in run.err and 'resum' in run.err
  assert all(process.poll() is None for process in two_workers.processes)


def start_and_pause(folder, workers) -> starts.Start:
  """Starts a run that has trained some rounds, and is stopped before it trains another."""
  run = starts.Start(
    *FLAGS,
    f'--output_dir={folder}',
    f'--worker_addresses={workers.addresses}',
    pause_at=('cohort logged', 3),
  )
  run.wait_until_paused()
  return run


def test_noise_from_two_workers_is_the_same_noise(here, tmp_path):
  certificates.make(tmp_path / 'certificates', [])
  workers = Workers('noise_worker', f'--certificates={tmp_path / "certificates"}')
  try:
    time.sleep(3)
    train(
      tmp_path / 'run',
      f'--noise_worker_addresses={workers.addresses}',
      f'--noise_certificates={tmp_path / "certificates"}',
    )
  finally:
    workers.kill()
  assert numbers(tmp_path / 'run') == numbers(here)


@pytest.mark.parametrize(
  'flags, message',
  [
    (['--worker_addresses=nowhere'], "--worker_addresses: 'nowhere' is not"),
    (['--worker_addresses=localhost:8000,localhost:8000'], 'localhost:8000 is named twice'),
    (['--noise_key_file=setup.py'], 'are for --noise_worker_addresses alone'),
    (['--worker_timeout=0'], '--worker_timeout must be a number of seconds above 0, got 0'),
    (['--worker_addresses=a:1'], 'or give --insecure_network in a private network'),
    (
      ['--max_concurrent_clients=1', '--worker_addresses=a:1'],
      'give --max_concurrent_calls to each',
    ),
    (['--max_concurrent_clients=-1'], '--max_concurrent_clients=-1 must be at least 0'),
    (['--noise_worker_addresses=localhost:8000'], 'give --noise_certificates=FOLDER'),
    (
      [
        '--noise_worker_addresses=localhost:8000',
        '--noise_certificates=CERTIFICATES',
        '--noise_memory=state',
      ],
      'give --noise_memory=memory with it',
    ),
    (
      ['--noise_worker_addresses=a:1', '--noise_certificates=missing'],
      'missing/authority.pem: No such file',
    ),
  ],
)
def test_flags_that_will_not_do(tmp_path, flags, message):
  if '--noise_certificates=CERTIFICATES' in flags:
    certificates.make(tmp_path / 'certificates', [])
    flags = [flag.replace('CERTIFICATES', str(tmp_path / 'certificates')) for flag in flags]
  process = start(tmp_path / 'run', *flags)
  assert process.wait() == 2
  assert message in process.err.splitlines()[-1]
  assert not (tmp_path / 'run').exists()
