"""A run that is killed, at any point, ends as one that was not."""

import contextlib
import csv
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time

import numpy as np
import pytest

from fl_dpftrl.logs import journal
from fl_dpftrl.training import loop
from tests.experiments import starts

pytestmark = [pytest.mark.tff, pytest.mark.slow]

NUM_ROUNDS = 24
STEPS = ('cohort logged', 'computed', 'stored', 'released', 'published')
FLAGS = [
  '--dataset=synthetic',
  '--mechanism=blt',
  '--noise_multiplier=1',
  '--noise_seed=11',
  '--report_goal=6',
  f'--num_rounds={NUM_ROUNDS}',
  '--timer_rounds=4',
  '--rounds_per_evaluation=12',
  '--seed=3',
]


def flags_of(folder: pathlib.Path) -> list[str]:
  return [*FLAGS, f'--output_dir={folder}', '--resume']


def start(folder: pathlib.Path, *flags: str, **kwargs) -> starts.Start:
  return starts.Start(*flags_of(folder), *flags, **kwargs)


def finish(folder: pathlib.Path, *flags: str) -> str:
  process = start(folder, *flags)
  assert process.wait() == 0, process.err
  return process.err


def killed(folder: pathlib.Path, step: str, t: int, *flags: str) -> None:
  process = start(folder, *flags, kill_at=(step, t))
  assert process.wait() == -signal.SIGKILL, process.err


def state(folder: pathlib.Path) -> list[np.ndarray]:
  path = folder / loop.CHECKPOINTS_NAME / f'round-{NUM_ROUNDS:09d}.npz'
  with np.load(path, allow_pickle=False) as archive:
    return [archive[name] for name in archive.files]


def rounds_done(folder: pathlib.Path) -> int:
  """Rounds whose result is in a checkpoint."""
  paths = (folder / loop.CHECKPOINTS_NAME).glob('round-*.npz')
  return max((int(path.stem.removeprefix('round-')) for path in paths), default=0)


def noise_state(folder: pathlib.Path) -> list[np.ndarray]:
  """Seed, row, its standard deviation, and a buffer for each model tensor."""
  leaves = state(folder)
  seed = next(i for i, leaf in enumerate(leaves) if (leaf.shape, leaf.dtype) == ((2,), np.int64))
  return leaves[seed : seed + 6]


def table(folder: pathlib.Path) -> list[dict[str, str]]:
  with (folder / 'metrics.csv').open(newline='') as file:
    rows = list(csv.DictReader(file))
  for row in rows:
    del row['seconds']
  return rows


def assert_same_run(folder: pathlib.Path, expected: pathlib.Path) -> None:
  for own, other in zip(state(folder), state(expected), strict=True):
    np.testing.assert_array_equal(own, other)
  assert table(folder) == table(expected)
  log = loop.LOG_NAME
  assert (folder / log).read_bytes() == (expected / log).read_bytes()
  own, other = (json.loads((f / 'privacy.json').read_text()) for f in (folder, expected))
  assert own == other


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory) -> pathlib.Path:
  """A run of the true command line, which shares no memory with the forks."""
  folder = tmp_path_factory.mktemp('runs') / 'undisturbed'
  subprocess.run(
    [*starts.COMMAND, *flags_of(folder)],
    cwd=starts.ROOT,
    stdout=subprocess.DEVNULL,
    check=True,
    timeout=300,
  )
  assert len(table(folder)) == NUM_ROUNDS
  return folder


@pytest.fixture(scope='module')
def killed_at_each_step(tmp_path_factory) -> pathlib.Path:
  """A run that was killed five times, at last when round 6 was published."""
  folder = tmp_path_factory.mktemp('runs') / 'killed'
  for t, step in enumerate(STEPS, start=2):
    killed(folder, step, t)
  return folder


def test_killed_at_each_step_and_at_a_random_point(undisturbed, killed_at_each_step, tmp_path):
  folder = shutil.copytree(killed_at_each_step, tmp_path / 'run')
  process = start(folder, pause_at=('cohort logged', 7))
  process.wait_until_paused()
  process.go_on()
  time.sleep(random.Random(5).uniform(0.0, 0.15))
  process.send_signal(signal.SIGKILL)
  # Where this process was not scheduled for long, the run has come to its end.
  assert process.wait() in (-signal.SIGKILL, 0), process.err
  finish(folder)
  assert_same_run(folder, undisturbed)


@pytest.mark.thorough
def test_killed_at_twenty_random_moments(undisturbed, tmp_path):
  draws = random.Random(7)
  kills = 0
  for run in itertools.count():
    folder = tmp_path / str(run)
    done = 0
    while done < NUM_ROUNDS and kills < 20:
      process = start(folder, pause_at=('cohort logged', done))
      process.wait_until_paused()
      process.go_on()
      time.sleep(draws.uniform(0.0, 0.15))
      process.send_signal(signal.SIGKILL)
      kills += process.wait() == -signal.SIGKILL
      done = rounds_done(folder)
    finish(folder)
    assert_same_run(folder, undisturbed)
    if kills == 20:
      break


def test_a_destroyed_result_burns_its_row(undisturbed, killed_at_each_step, tmp_path):
  folder = shutil.copytree(killed_at_each_step, tmp_path / 'run')
  (folder / loop.CHECKPOINTS_NAME / 'round-000000007.npz').unlink()
  output = finish(folder)
  assert 'round 6 is lost: its row of noise is burnt' in output
  rows = table(folder)
  assert [int(row['round']) for row in rows] == [r for r in range(NUM_ROUNDS) if r != 6]
  # Each result has the row of noise of its own round, so none is used twice.
  assert all(row['aggregator/noise_row'] == row['round'] for row in rows)
  # The buffers hold the burnt row's own z: they are those of the other run.
  assert len(noise_state(folder)) == 6 and noise_state(folder)[1] == NUM_ROUNDS
  for own, other in zip(noise_state(folder), noise_state(undisturbed)):
    np.testing.assert_array_equal(own, other)
  log = loop.LOG_NAME
  assert (folder / log).read_bytes() == (undisturbed / log).read_bytes()
  statement = json.loads((folder / 'privacy.json').read_text())
  expected = json.loads((undisturbed / 'privacy.json').read_text())
  assert statement['num_rounds'] == NUM_ROUNDS
  assert statement['worst_case'] == expected['worst_case']
  assert statement['num_participations'] == expected['num_participations']


def test_an_interrupted_run_leaves_no_process_behind(tmp_path):
  folder = tmp_path / 'run'
  process = start(folder, pause_at=('computed', 3))
  try:
    process.wait_until_paused()
    assert not child_pids(process.pid)
    process.send_signal(signal.SIGINT)
    process.go_on()
    assert process.wait() == 130, process.err
  finally:
    process.kill()


def test_a_second_run_agrees_bit_for_bit_and_listens_nowhere(undisturbed, tmp_path):
  folder = tmp_path / 'run'
  process = start(folder, pause_at=('computed', 3))
  check = lambda: (
    # A finished log is read by a program of its own, which is no worker.
    not any('worker' in line for line in children(process.pid)) and not listening(process.pid)
  )
  try:
    process.wait_until_paused()
    assert has_log(folder) and check()
    process.go_on()
    while process.poll() is None:
      assert check()
      time.sleep(0.05)
  finally:
    process.kill()
  assert process.returncode == 0, process.err
  assert_same_run(folder, undisturbed)


def has_log(folder: pathlib.Path) -> bool:
  """Returns whether a run has begun its log, which is a journal until the end."""
  log = folder / loop.LOG_NAME
  return log.exists() or journal.path_of(log).exists()


def children(parent: int) -> list[str]:
  """Command lines of a process's children."""
  found = []
  for pid in child_pids(parent):
    with contextlib.suppress(OSError):
      found.append(pathlib.Path(f'/proc/{pid}/cmdline').read_text())
  return found


def listening(pid: int) -> set[str]:
  """Sockets at which a process listens."""
  held = set()
  try:
    for link in pathlib.Path(f'/proc/{pid}/fd').iterdir():
      try:
        held.add(os.readlink(link))
      except OSError:
        continue
    tables = [
      pathlib.Path(f'/proc/{pid}/net/{name}').read_text().splitlines()[1:]
      for name in ('tcp', 'tcp6')
    ]
  except OSError:  # It has just ended.
    return set()
  fields = [line.split() for table in tables for line in table]
  return {f[9] for f in fields if f[3] == '0A' and f'socket:[{f[9]}]' in held}


def child_pids(parent: int) -> list[int]:
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      fields = path.read_text().rsplit(')', 1)[1].split()
    except OSError:
      continue
    if int(fields[1]) == parent and fields[0] != 'Z':
      found.append(int(path.parent.name))
  return found


@pytest.mark.thorough
def test_rows_beside_tff_are_those_of_a_run_that_was_not_killed(tmp_path):
  flag = '--noise_memory=engine'
  expected = tmp_path / 'undisturbed'
  finish(expected, flag)
  folder = tmp_path / 'run'
  # Past a snapshot, and with the next row already made.
  killed(folder, 'computed', 18, flag)
  finish(folder, flag)
  assert_same_run(folder, expected)
  # Snapshots are among the checkpoints; rows and seed are in no file of their own.
  rows = folder / loop.CHECKPOINTS_NAME / 'rows'
  assert {path.name.split('-')[0] for path in rows.iterdir()} == {'before', 'buffer'}
