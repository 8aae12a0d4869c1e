"""A run's folder: held before it is written, resumed, interrupted, diverged."""

import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import time
from typing import NamedTuple

import pytest

from experiments.stackoverflow import evaluate
from experiments.stackoverflow import train as command
from fl_dpftrl.files import durable
from tests import leaks
from tests.experiments import starts

pytestmark = [pytest.mark.tff, pytest.mark.slow]

NUM_ROUNDS = 12
FLAGS = [
  '--dataset=synthetic',
  '--mechanism=tree_online',
  '--noise_multiplier=1',
  '--report_goal=6',
  '--timer_rounds=4',
  f'--num_rounds={NUM_ROUNDS}',
  '--rounds_per_evaluation=6',
  '--seed=3',
  '--noise_seed=5',
]


def start(folder: pathlib.Path, *flags: str, **kwargs) -> starts.Start:
  return starts.Start(*FLAGS, f'--output_dir={folder}', *flags, **kwargs)


def train(folder: pathlib.Path, *flags: str, **kwargs) -> tuple[int, str, str]:
  return ended(start(folder, *flags, **kwargs))


def ended(process: starts.Start) -> tuple[int, str, str]:
  code, out, err = process.wait(), process.out, process.err
  assert 'Traceback' not in err and 'Exception ignored' not in err, err
  return code, out, err


class Finished(NamedTuple):
  """A run that tests copy, and do not change, and the time that it took."""

  folder: pathlib.Path
  seconds: float


@pytest.fixture(name='finished', scope='module')
def fixture_finished(tmp_path_factory) -> Finished:
  folder = tmp_path_factory.mktemp('finished') / 'run'
  process = start(folder)
  began = time.monotonic()
  assert ended(process)[0] == 0
  return Finished(folder, time.monotonic() - began)


@pytest.fixture(name='copy')
def fixture_copy(finished, tmp_path) -> pathlib.Path:
  return shutil.copytree(finished.folder, tmp_path / 'run')


def contents(folder: pathlib.Path) -> dict[pathlib.Path, bytes]:
  return {p: p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_a_second_start_is_refused_and_changes_nothing(tmp_path):
  folder = tmp_path / 'run'
  folder.mkdir()
  # As the first start has it before it writes anything.
  with durable.exclusive(folder / 'lock'):
    before = contents(folder)
    code, out, err = train(folder, '--clip_norm=5')
    assert code == 2 and not out and contents(folder) == before
    assert f'{folder / "lock"} is held by another process' in err
    assert len([l for l in err.splitlines() if l.startswith('train: ')]) == 1


def test_a_diverged_run_ends_and_says_so(tmp_path, copy):
  folder = tmp_path / 'diverged'
  flags = ('--server_learning_rate=3e38', '--client_learning_rate=1e30', '--num_rounds=3')
  code, out, err = train(folder, *flags)
  assert code == 0, err
  assert 'THE RUN DIVERGED' in out and 'Guarantee of this run' in out
  summary = json.loads((folder / 'summary.json').read_text(), parse_constant=pytest.fail)
  assert summary['test']['loss'] is None
  assert summary['diverged_since_round'] is not None
  assert train(folder, *flags, '--resume')[:2] == (0, out)
  code, out, err = train(copy, '--resume', f'--compare_with={folder}')
  assert code == 0 and 'not known' in out, err


def test_a_lost_table_is_told_of_and_written_again_where_it_can(copy):
  whole = (copy / 'metrics.csv').read_text().splitlines()
  leftover = copy / f'{durable.TEMPORARY_PREFIX}x'
  leftover.write_bytes(b'half')
  bundle = copy / f'{durable.TEMPORARY_PREFIX}y'
  bundle.mkdir()
  (bundle / 'log-1-1.parquet').write_bytes(b'half')
  (copy / 'metrics.csv').unlink()
  code, _, err = train(copy, '--resume')
  assert code == 0 and not leftover.exists() and not bundle.exists()
  assert 'had lost rounds 9-10' in err and 'has lost rounds 0-8' in err
  rows = (copy / 'metrics.csv').read_text().splitlines()
  assert [row.split(',')[:5] for row in rows[1:]] == [row.split(',')[:5] for row in whole[-3:]]


def test_a_state_of_another_type_is_not_quoted_by_a_round(tmp_path):
  folder = tmp_path / 'run'
  process = start(folder, pause_at=('published', 1))
  process.wait_until_paused()
  process.send_signal(signal.SIGINT)
  process.go_on()
  assert ended(process)[0] == 130, process.err
  secrets = leaks.spoil(folder)
  code, out, err = train(folder, '--resume')
  assert code == 1 and 'failed: state.aggregator.noise.seed: expected' in err, err
  assert not secrets.found_in(out + err), err


def test_a_state_of_another_type_is_not_quoted_where_its_row_is_burnt(copy):
  (copy / f'checkpoints/round-{NUM_ROUNDS:09d}.npz').unlink()
  secrets = leaks.spoil(copy)
  process = start(copy, '--resume')
  assert process.wait() != 0 and 'noise.seed' in process.err, process.err
  assert not secrets.found_in(process.out + process.err), process.err


def test_a_run_without_its_flags_is_told_what_is_missing(copy):
  (copy / 'hparams.json').unlink()
  code, _, err = train(copy, '--resume')
  assert code == 2 and 'holds a run without hparams.json' in err and 'put that file back' in err
  with pytest.raises(ValueError, match=r'hparams\.json is missing.*name the output folder'):
    evaluate.read_hparams(copy)


def test_an_edited_clip_norm_is_refused(copy):
  parameters = json.loads((copy / 'hparams.json').read_text())
  edited = json.dumps({**parameters, 'clip_norm': 0.01}, indent=2) + '\n'
  (copy / 'hparams.json').write_text(edited)
  before = contents(copy)
  code, out, err = train(copy, '--clip_norm=0.01', '--resume')
  (told,) = [line for line in err.splitlines() if line.startswith('train: ')]
  assert code == 2 and not out and 'clip_norm' in told and str(copy) in told, err
  after = contents(copy)
  assert {path: after[path] for path in before} == before


def test_a_full_disk_is_one_line_that_names_the_file(tmp_path):
  folder = tmp_path / 'run'
  code, _, err = train(folder, largest_file=20_000)
  last = err.strip().splitlines()[-1]
  assert code == 1 and last.startswith('train: ') and str(folder) in last
  assert not list(folder.rglob(f'{durable.TEMPORARY_PREFIX}*'))
  assert train(folder, '--resume')[0] == 0


def test_a_killed_run_keeps_its_temporary_files_in_its_folder(tmp_path):
  folder = tmp_path / 'run'
  process = start(folder, kill_at=('computed', 0))
  assert process.wait() == -signal.SIGKILL, process.err
  assert (folder / '.temporary').is_dir()
  (folder / '.temporary' / 'code.py').write_text('half')
  assert train(folder, '--resume')[0] == 0
  assert not (folder / '.temporary').exists()


def test_a_disk_without_room_is_one_line_at_once(tmp_path, monkeypatch, capsys):
  usage = shutil.disk_usage(tmp_path)._replace(free=2**20)
  monkeypatch.setattr(shutil, 'disk_usage', lambda folder: usage)
  with pytest.raises(SystemExit) as end:
    command.app.run(
      command.main,
      argv=['train', *FLAGS, f'--output_dir={tmp_path / "run"}'],
      flags_parser=command._parse,
    )
  assert end.value.code == 1
  line = f"train: [Errno 28] No space left on device: '{tmp_path / 'run'}'"
  assert line in capsys.readouterr().err
  assert not list(tmp_path.iterdir())


def test_interrupted_while_it_imports(tmp_path):
  temporary = tmp_path / 'temporary'
  temporary.mkdir()
  process = subprocess.Popen(
    [*starts.COMMAND, *FLAGS, f'--output_dir={tmp_path / "run"}'],
    cwd=starts.ROOT,
    env={**os.environ, 'TMPDIR': str(temporary)},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )
  deadline = time.monotonic() + 60
  # TensorFlow is imported with the folder held.
  while not (tmp_path / 'run' / 'lock').exists() and time.monotonic() < deadline:
    time.sleep(0.02)
  time.sleep(0.5)
  process.send_signal(signal.SIGTERM)  # SIGINT is ignored where tests run in the background.
  out, err = process.communicate(timeout=60)
  assert (process.returncode, out) == (143, '')
  assert 'Traceback' not in err and 'Exception ignored' not in err, err
  assert not list(temporary.iterdir())


def test_interrupted_at_any_time_and_resumed(finished, tmp_path):
  """FL_DPFTRL_INTERRUPTS=24 in the environment takes as many moments."""
  draws = random.Random(7)
  folder = tmp_path / 'run'
  for number, at in ((signal.SIGINT, ('computed', 2)), (signal.SIGTERM, ('stored', 5))):
    process = start(folder, '--resume', pause_at=at)
    process.wait_until_paused()
    process.send_signal(number)
    process.go_on()
    assert ended(process)[0] == 128 + number, process.err
  codes = []
  for _ in range(int(os.environ.get('FL_DPFTRL_INTERRUPTS', '1'))):
    process = start(folder, '--resume')
    time.sleep(draws.uniform(0.0, 0.8 * finished.seconds))
    process.send_signal(signal.SIGINT)
    codes.append(ended(process)[0])
    # One that comes to its end before the signal cannot be interrupted.
    assert codes[-1] in (0, 130), process.err
  print('exit statuses', sorted(codes), 'of a run of', round(finished.seconds, 1), 's')
  assert train(folder, '--resume')[0] == 0
  for name in (f'checkpoints/round-{NUM_ROUNDS:09d}.npz', 'participation.parquet'):
    assert (folder / name).read_bytes() == (finished.folder / name).read_bytes()
