"""A run that is killed, at any point, ends as one that was not."""

import contextlib
import csv
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from fl_dpftrl.learning import loop

pytestmark = [pytest.mark.tff, pytest.mark.slow]

ROOT = pathlib.Path(__file__).parents[2]
NUM_ROUNDS = 24
STEPS = ('cohort logged', 'computed', 'stored', 'released', 'published')
FLAGS = [
  '--dataset=synthetic',
  '--mechanism=blt',
  '--noise_multiplier=0.05',
  '--noise_seed=11',
  '--report_goal=6',
  f'--num_rounds={NUM_ROUNDS}',
  '--timer_rounds=4',
  '--rounds_per_evaluation=3',
  '--seed=3',
]
# Trains as the command does, and kills itself where it is told to.
DRIVER = """
import os, pathlib, signal, sys
from experiments.stackoverflow import train
from experiments.stackoverflow import run as run_lib

# Where the tests run in the background, Ctrl-C is ignored and inherited. To set
# this between fork and exec would fork gRPC's threads, which can abort.
signal.signal(signal.SIGINT, signal.default_int_handler)
step, round_index = sys.argv[1], int(sys.argv[2])
original = run_lib.run

def run(hparams, folder, **kwargs):
  def on_step(now, t):
    if (now, t) == (step, round_index):
      os.kill(os.getpid(), signal.SIGKILL)
  original(hparams, folder, **{**kwargs, 'on_step': on_step})

run_lib.run = run
train.app.run(train.main, argv=['train', *sys.argv[3:]],
              flags_parser=train._parse)
"""


def command(folder: pathlib.Path, step: str = '', t: int = -1, *flags: str) -> list[str]:
  return [
    sys.executable,
    '-c',
    DRIVER,
    step,
    str(t),
    *FLAGS,
    *flags,
    f'--output_dir={folder}',
    f'--cache_dir={folder.parent}',
    '--resume',
  ]


def start(folder: pathlib.Path, *args) -> subprocess.Popen:
  return subprocess.Popen(
    command(folder, *args), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
  )


def finish(folder: pathlib.Path, *flags: str) -> str:
  process = start(folder, '', -1, *flags)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == 0, output
  return output


def state(folder: pathlib.Path) -> list[np.ndarray]:
  path = folder / loop.CHECKPOINTS_NAME / f'round-{NUM_ROUNDS:09d}.npz'
  with np.load(path, allow_pickle=False) as archive:
    return [archive[name] for name in archive.files]


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
  folder = tmp_path_factory.mktemp('runs') / 'undisturbed'
  finish(folder)
  assert len(table(folder)) == NUM_ROUNDS
  return folder


def test_two_runs_with_the_same_seeds_agree_bit_for_bit(undisturbed):
  again = undisturbed.parent / 'again'
  finish(again)
  assert_same_run(again, undisturbed)


def test_killed_at_each_step_and_at_random_points(undisturbed):
  folder = undisturbed.parent / 'killed'
  for t, step in enumerate(STEPS, start=2):
    process = start(folder, step, t)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, output
  draws = random.Random(5)
  for _ in range(6):
    process = start(folder)
    checkpoint = folder / loop.CHECKPOINTS_NAME
    before = {p.name for p in checkpoint.iterdir()}
    deadline = time.monotonic() + 120
    # Rounds start when the first new file appears; importing takes seconds.
    while (
      {p.name for p in checkpoint.iterdir()} == before
      and process.poll() is None
      and time.monotonic() < deadline
    ):
      time.sleep(0.005)
    time.sleep(draws.uniform(0.0, 0.15))
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, output
  finish(folder)
  assert_same_run(folder, undisturbed)


def test_a_destroyed_result_burns_its_row(undisturbed):
  folder = undisturbed.parent / 'destroyed'
  process = start(folder, 'published', 6)
  process.communicate(timeout=300)
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


@pytest.mark.parametrize('runtime', ['in_process', 'worker'])
def test_an_interrupted_run_leaves_no_process_behind(undisturbed, runtime):
  folder = undisturbed.parent / f'interrupted {runtime}'
  process = start(folder, '', -1, f'--runtime={runtime}')
  try:
    children = []
    deadline = time.monotonic() + 120
    begun = lambda: children if runtime == 'worker' else (folder / loop.LOG_NAME).exists()
    while not begun() and time.monotonic() < deadline:
      children = worker_pids(process.pid)
      time.sleep(0.05)
    assert begun()
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
  finally:
    process.kill()
  assert not any(is_running(pid) for pid in children)


def test_in_process_no_socket_listens_and_no_worker_is_started(undisturbed):
  folder = undisturbed.parent / 'watched'
  process = start(folder)
  watched = 0
  try:
    while process.poll() is None:
      # A finished log is read by a program of its own, which is no worker.
      assert not any('worker' in line for line in children(process.pid))
      assert not listening(process.pid)
      watched += (folder / loop.LOG_NAME).exists()
      time.sleep(0.02)
    assert watched > 3
  finally:
    process.kill()
    process.communicate()


def children(parent: int) -> list[str]:
  """Command lines of a process's children."""
  found = []
  for pid in worker_pids(parent):
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


def worker_pids(parent: int) -> list[int]:
  found = []
  for path in pathlib.Path('/proc').glob('[0-9]*/stat'):
    try:
      fields = path.read_text().rsplit(')', 1)[1].split()
    except OSError:
      continue
    if int(fields[1]) == parent and fields[0] != 'Z':
      found.append(int(path.parent.name))
  return found


def is_running(pid: int) -> bool:
  try:
    return pathlib.Path(f'/proc/{pid}/stat').read_text().split()[2] != 'Z'
  except OSError:
    return False


def test_a_run_that_loses_its_worker_says_so_and_goes_on(undisturbed):
  flag = '--runtime=worker'
  expected = undisturbed.parent / 'worker, undisturbed'
  finish(expected, flag)
  folder = undisturbed.parent / 'lost worker'
  process = start(folder, '', -1, flag)
  logged = folder / loop.LOG_NAME
  while not logged.exists() and process.poll() is None:
    time.sleep(0.01)
  for pid in worker_pids(process.pid):
    os.kill(pid, signal.SIGKILL)
  output, _ = process.communicate(timeout=120)
  assert process.returncode == 1, output
  last = output.strip().splitlines()[-1]
  assert last.startswith('train: round ') and 'worker has ended' in last
  assert 'Traceback' not in output
  finish(folder, flag)
  assert_same_run(folder, expected)


def test_worker_dies_with_a_killed_run(undisturbed):
  folder = undisturbed.parent / 'worker'
  process = start(folder, '', -1, '--runtime=worker')
  children = []
  while not children and process.poll() is None:
    children = worker_pids(process.pid)
    time.sleep(0.05)
  os.kill(process.pid, signal.SIGKILL)
  process.communicate(timeout=60)
  deadline = time.monotonic() + 10
  while any(map(is_running, children)) and time.monotonic() < deadline:
    time.sleep(0.05)
  assert children and not any(map(is_running, children))


def test_rows_beside_tff_are_those_of_a_run_that_was_not_killed(undisturbed):
  flag = '--noise_memory=memory'
  expected = undisturbed.parent / 'rows, undisturbed'
  finish(expected, flag)
  folder = undisturbed.parent / 'rows, killed'
  # Past a snapshot, and with the next row already made.
  process = start(folder, 'computed', 18, flag)
  output, _ = process.communicate(timeout=300)
  assert process.returncode == -signal.SIGKILL, output
  finish(folder, flag)
  assert_same_run(folder, expected)
  # The seed is among the checkpoints, and no row or buffer is left behind.
  rows = folder / loop.CHECKPOINTS_NAME / 'rows'
  assert not any(p.name.startswith(('row-', 'ready')) for p in rows.iterdir())
  assert json.loads((rows / 'served.json').read_text())['row'] == NUM_ROUNDS - 1
