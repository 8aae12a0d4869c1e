"""A run's folder: held before it is written, resumed, interrupted, diverged."""

import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys
import time

import pytest

from fl_dpftrl import files

pytestmark = [pytest.mark.tff, pytest.mark.slow]

ROOT = pathlib.Path(__file__).parents[2]
NUM_ROUNDS = 12
# As the command itself, except that Ctrl-C is heard where the tests run in the
# background, which would be inherited as ignored.
DRIVER = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, lambda *_: os._exit(130))
sys.argv[0] = 'train'
runpy.run_module('experiments.stackoverflow.train', run_name='__main__')
"""


def start(folder: pathlib.Path, *flags: str, **kwargs) -> subprocess.Popen:
  return subprocess.Popen(
    [
      sys.executable,
      '-c',
      DRIVER,
      '--dataset=synthetic',
      '--mechanism=tree_online',
      '--noise_multiplier=0.05',
      '--report_goal=6',
      '--timer_rounds=4',
      f'--num_rounds={NUM_ROUNDS}',
      '--rounds_per_evaluation=3',
      '--seed=3',
      f'--cache_dir={folder.parent}',
      f'--output_dir={folder}',
      *flags,
    ],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **kwargs,
  )


def train(folder: pathlib.Path, *flags: str, **kwargs):
  process = start(folder, *flags, **kwargs)
  out, err = process.communicate(timeout=300)
  assert 'Traceback' not in err and 'Exception ignored' not in err, err
  return process.returncode, out, err


def contents(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_a_second_start_is_refused_and_changes_nothing(tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  # As the first start has it before it writes anything.
  with files.exclusive(folder / 'lock'):
    before = contents(folder)
    code, out, err = train(folder, '--clip_norm=5')
    assert code == 2 and not out and contents(folder) == before
    assert f'{folder / "lock"} is held by another process' in err
    assert len([l for l in err.splitlines() if l.startswith('train: ')]) == 1


def test_a_diverged_run_ends_and_says_so(tmp_path):
  folder = tmp_path / 'run'
  flags = ('--server_learning_rate=3e38', '--client_learning_rate=1e30')
  code, out, err = train(folder, *flags)
  assert code == 0, err
  assert 'THE RUN DIVERGED' in out and 'Guarantee of this run' in out
  summary = json.loads((folder / 'summary.json').read_text(), parse_constant=pytest.fail)
  assert summary['test']['loss'] is None
  assert summary['diverged_since_round'] is not None
  assert train(folder, *flags, '--resume')[:2] == (0, out)
  compared = tmp_path / 'compared'
  code, out, err = train(compared, '--num_rounds=2', f'--compare_with={folder}')
  assert code == 0 and 'not known' in out, err


def test_a_lost_table_is_told_of_and_written_again_where_it_can(tmp_path):
  folder = tmp_path / 'run'
  assert train(folder)[0] == 0
  whole = (folder / 'metrics.csv').read_text().splitlines()
  leftover = folder / f'{files.TEMPORARY_PREFIX}x'
  leftover.write_bytes(b'half')
  (folder / 'metrics.csv').unlink()
  code, _, err = train(folder, '--resume')
  assert code == 0 and not leftover.exists()
  assert 'had lost rounds 9-10' in err and 'has lost rounds 0-8' in err
  rows = (folder / 'metrics.csv').read_text().splitlines()
  assert [row.split(',')[:5] for row in rows[1:]] == [row.split(',')[:5] for row in whole[-3:]]


def test_an_edited_clip_norm_is_refused(tmp_path):
  folder = tmp_path / 'run'
  assert train(folder, '--num_rounds=1')[0] == 0
  parameters = json.loads((folder / 'hparams.json').read_text())
  edited = json.dumps({**parameters, 'clip_norm': 0.01}, indent=2) + '\n'
  (folder / 'hparams.json').write_text(edited)
  before = contents(folder)
  code, out, err = train(folder, '--num_rounds=1', '--clip_norm=0.01', '--resume')
  (told,) = [line for line in err.splitlines() if line.startswith('train: ')]
  assert code == 2 and not out and 'clip_norm' in told and str(folder) in told, err
  after = contents(folder)
  assert {path: after[path] for path in before} == before


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
  def small():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

  folder = tmp_path / 'run'
  assert train(tmp_path / 'first', '--num_rounds=1')[0] == 0  # Makes the cache.
  code, _, err = train(folder, preexec_fn=small)
  last = err.strip().splitlines()[-1]
  assert code == 1 and last.startswith('train: ') and str(folder) in last
  assert not list(folder.rglob(f'{files.TEMPORARY_PREFIX}*'))
  assert train(folder, '--resume')[0] == 0


def interrupt_at(folder, seconds, number, *flags):
  """Interrupts a run some time after it has started to import."""
  process = start(folder, '--resume', *flags)
  # Before Python runs any of the program, nothing can be heard.
  time.sleep(1.5 + seconds)
  expected = 130 if process.poll() is None else 0
  process.send_signal(number)
  out, err = process.communicate(timeout=60)
  assert 'Traceback' not in err and 'Exception ignored' not in err, err
  # One that had come to its end before the signal cannot be interrupted.
  assert process.returncode == expected, err
  return process.returncode, out, err


def test_interrupted_at_any_time_and_resumed(tmp_path):
  """FL_DPFTRL_INTERRUPTS=24 in the environment takes as many moments."""
  expected = tmp_path / 'undisturbed'
  began = time.monotonic()
  assert train(expected, '--noise_seed=5')[0] == 0
  whole = time.monotonic() - began
  draws, codes = random.Random(7), []
  folder = tmp_path / 'run'
  for i in range(int(os.environ.get('FL_DPFTRL_INTERRUPTS', '4'))):
    number = signal.SIGTERM if i % 4 == 3 else signal.SIGINT
    at = draws.uniform(0.0, 0.4 * whole)
    codes.append(interrupt_at(folder, at, number, '--noise_seed=5')[0])
  print('exit statuses', sorted(codes), 'of a run of', round(whole, 1), 's')
  assert 130 in codes
  assert train(folder, '--noise_seed=5', '--resume')[0] == 0
  name = f'checkpoints/round-{NUM_ROUNDS:09d}.npz'
  assert (folder / name).read_bytes() == (expected / name).read_bytes()
  name = 'participation.parquet'
  assert (folder / name).read_bytes() == (expected / name).read_bytes()
