"""The study command: a run that fails, and what it leaves."""

import csv
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from experiments.stackoverflow.study import __main__
from experiments.stackoverflow.study import task as task_lib
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import run
from tests.experiments import starts

pytestmark = pytest.mark.tff

STUDY = 'studies/synthetic.json'
HERE = [f'--study={STUDY}', '--output_dir=x']


@pytest.fixture(name='temporary')
def _temporary():
  """A folder whose path is short enough for the sockets in it."""
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
    yield pathlib.Path(folder)


@pytest.mark.slow
def test_a_study_with_a_failed_run_goes_on(tmp_path, temporary, monkeypatch, capsys):
  """Of three runs the command trains one; those that failed are then said to have ended like it."""
  folder = tmp_path / 'study'
  names = 'identity-epsilon0.05-rate0.3-seed0', 'blt_2-epsilon0.05-rate0.3-seed1'
  spoilt = [folder / 'cells' / name / 'thesis.txt' for name in names]
  for path in spoilt:
    path.parent.mkdir(parents=True)
    path.write_text('precious')
  arguments = [f'--study={starts.ROOT / STUDY}', f'--output_dir={folder}']
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.stackoverflow.study', *arguments, '--jobs=2'],
    cwd=starts.ROOT,
    env={**os.environ, 'TMPDIR': str(temporary)},
    capture_output=True,
    text=True,
    timeout=400,
  )
  assert done.returncode == 1 and not list(temporary.iterdir()), done.stderr
  for path in spoilt:
    line = f'{path.parent.name} failed: --output_dir={path.parent} holds other files'
    assert line in done.stderr
    path.unlink()
  assert '2 of 3 runs failed; run the study again to try them anew' in done.stderr
  assert 'tensorflow' not in done.stderr
  (finished,) = folder.glob('cells/*/summary.json')
  before = finished.read_bytes()
  train = lambda cell: {**json.loads(before), 'noise_multiplier': cell.noise_multiplier}
  plain, task = run.run, task_lib.task
  monkeypatch.setattr(run, 'run', lambda *given, jobs, **others: plain(*given, jobs=None, **others))
  monkeypatch.setattr(
    task_lib, 'task', lambda *given: dataclasses.replace(task(*given), train=train)
  )
  monkeypatch.setattr(sys, 'argv', ['study', *arguments])
  with pytest.raises(SystemExit) as ended:
    __main__.main()
  assert ended.value.code == 0 and finished.read_bytes() == before
  out, err = capsys.readouterr()
  assert out.strip() == (folder / 'table.txt').read_text().strip()
  assert 'with 2 seeds it is 12.7 standard errors' in err
  with (folder / 'results.csv').open(newline='') as stream:
    rows = list(csv.DictReader(stream))
  assert [row['status'] for row in rows] == ['done'] * 4
  assert all(float(row['deployment_epsilon']) <= 0.05 for row in rows)
  pictures = (f'accuracy_by_{of}.png' for of in ('epsilon', 'round', 'noise'))
  assert {*pictures, 'table.md', 'study.html'} <= {path.name for path in folder.iterdir()}
  # The same runs are a study of their losses.
  losses = design_lib.parse(
    {**json.loads((starts.ROOT / STUDY).read_text()), 'metric': 'loss', 'lower_is_better': True}
  )
  for part in ('cells', 'strategies'):
    shutil.copytree(folder / part, tmp_path / 'losses' / part)
  gathered = run.gather(losses, starts.task(losses), tmp_path / 'losses')
  assert [r.status for r in gathered.results] == ['done'] * 4
  assert all(r.test == r.summary['test']['loss'] > 1.0 for r in gathered.results)
  assert set(gathered.figures()) >= {'loss_by_epsilon', 'loss_by_round', 'loss_by_noise'}


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
    ([*HERE, '--publish=page.html'], "--publish='page.html' must be a file NAME.md"),
    ([*HERE, '--publish=page.md', '--figures=pdf'], '--figures=pdf cannot be shown by a page'),
    ([*HERE, '--until_told_apart=-1'], 'until_told_apart=-1.0 must be a number of hours'),
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


def test_hours_of_added_seeds_reach_the_study(monkeypatch, tmp_path):
  class Asked(Exception):
    """The study was asked for."""

  def asked(*unused, until_told_apart, **others):
    raise Asked(until_told_apart)

  monkeypatch.setattr(run, 'run', asked)
  for flags, hours in (([], None), (['--until_told_apart=1.5'], 1.5)):
    monkeypatch.setattr(sys, 'argv', ['study', HERE[0], f'--output_dir={tmp_path}', *flags])
    with pytest.raises(Asked) as caught:
      __main__.main()
    assert caught.value.args == (hours,)
