"""The study command, killed and started again."""

import csv
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

from experiments.stackoverflow.study import __main__
from tests.experiments import starts

pytestmark = pytest.mark.tff

_MOST_SECONDS = 400
HERE = ['--study=studies/synthetic.json', '--output_dir=x']


def start(folder, temporary, stderr=subprocess.PIPE) -> subprocess.Popen:
  temporary.mkdir(exist_ok=True)
  return subprocess.Popen(
    [
      *(sys.executable, '-m', 'experiments.stackoverflow.study'),
      *('--study=studies/synthetic.json', f'--output_dir={folder}', '--jobs=2'),
    ],
    cwd=starts.ROOT,
    env={**os.environ, 'TMPDIR': str(temporary)},
    stdout=subprocess.PIPE,
    stderr=stderr,
    text=True,
  )


@pytest.fixture(name='temporary')
def _temporary():
  """A folder whose path is short enough for the sockets in it."""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    yield pathlib.Path(folder)


@pytest.mark.slow
def test_a_study_that_is_killed_goes_on(tmp_path, temporary, monkeypatch, capsys):
  folder = tmp_path / 'study'
  spoilt = folder / 'cells' / 'identity-epsilon0.05-rate0.3-seed0'
  spoilt.mkdir(parents=True)
  (spoilt / 'thesis.txt').write_text('precious')
  study = start(folder, temporary / 'killed')
  lines = []
  while len([line for line in lines if '/4 cells' in line]) < 2:
    lines.append(study.stderr.readline())
    assert lines[-1], lines
  os.kill(study.pid, signal.SIGKILL)
  study.communicate()
  text = ''.join(lines)
  assert f'{spoilt.name} failed: --output_dir={spoilt} holds other files' in text
  assert 'tensorflow' not in text
  finished = {p: p.read_bytes() for p in folder.glob('cells/*/summary.json')}
  assert finished
  (spoilt / 'thesis.txt').unlink()
  deadline = time.monotonic() + _MOST_SECONDS
  while (again := start(folder, temporary / 'again')).wait(
    _MOST_SECONDS
  ) == 1 and time.monotonic() < deadline:
    # Cells of the killed study may hold their folders until their step is done.
    assert 'is held by another process' in again.stderr.read()
  out, err = again.communicate()
  assert again.returncode == 0, err
  assert not list((temporary / 'again').iterdir())
  assert 'with 2 seeds it is 12.7 standard errors' in err
  assert {p: p.read_bytes() for p in finished} == finished
  with (folder / 'results.csv').open(newline='') as stream:
    rows = list(csv.DictReader(stream))
  assert [row['status'] for row in rows] == ['done'] * 4
  assert all(float(row['deployment_epsilon']) <= 0.05 for row in rows)
  assert {path.name for path in folder.iterdir()} >= {
    'table.txt',
    'table.md',
    'study.html',
    'accuracy_by_epsilon.png',
    'accuracy_by_round.png',
    'accuracy_by_noise.png',
  }
  written = (folder / 'results.csv').read_bytes()
  monkeypatch.setattr(sys, 'argv', ['study', *HERE[:1], f'--output_dir={folder}'])
  with pytest.raises(SystemExit) as ended:
    __main__.main()
  assert ended.value.code == 0 and capsys.readouterr().out == out
  assert (folder / 'results.csv').read_bytes() == written
  assert (folder / 'table.txt').read_text().strip() == out.strip()


@pytest.mark.parametrize(
  'arguments, words',
  [
    (['--study=nowhere.json', '--output_dir=x'], 'nowhere.json is not there; a relative path'),
    (['--study=studies/synthetic.json'], '--output_dir'),
    ([*HERE, '--jobs=0'], '--jobs=0'),
    (
      [*HERE, '--jobs=2', '--machines=auto'],
      '--jobs=2 runs share the room of --machines: say with',
    ),
    ([*HERE, '--publish=page.md', '--machines=auto'], '--publish trains nothing: leave --machines'),
    ([*HERE, '--actor_gpus=0.5'], '--actor_gpus is for the Ray cluster that --machines names'),
  ],
)
def test_bad_arguments_get_one_line(arguments, words, capsys, monkeypatch):
  monkeypatch.setattr(sys, 'argv', ['study', *arguments])
  with pytest.raises(SystemExit) as ended:
    __main__.main()
  assert ended.value.code == 2
  line = capsys.readouterr().err
  assert line.startswith('study: ') and line.count('\n') == 1 and words in line
