"""The study command: a run that fails, and what it leaves."""

import csv
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import pytest

from experiments.stackoverflow.study import __main__
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
  folder = tmp_path / 'study'
  # Of three runs, the command trains one; the rest are started from a process that has TensorFlow.
  names = 'identity-epsilon0.05-rate0.3-seed0', 'blt_2-epsilon0.05-rate0.3-seed1'
  spoilt = [folder / 'cells' / name / 'thesis.txt' for name in names]
  for path in spoilt:
    path.parent.mkdir(parents=True)
    path.write_text('precious')
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'experiments.stackoverflow.study'),
      *(f'--study={STUDY}', f'--output_dir={folder}', '--jobs=2'),
    ],
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
  assert '2 of 3 runs failed; run the study again to try them anew' in done.stderr
  assert 'tensorflow' not in done.stderr
  finished = {p: p.read_bytes() for p in folder.glob('cells/*/summary.json')}
  for path in spoilt:
    path.unlink()
  design = design_lib.read(starts.ROOT / STUDY)
  again = run.run(design, starts.task(design), folder, jobs=None, say=print)
  assert not again.failed and finished
  assert 'with 2 seeds it is 12.7 standard errors' in capsys.readouterr().out
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
  written = (folder / 'results.csv').read_bytes()
  monkeypatch.chdir(starts.ROOT)
  monkeypatch.setattr(sys, 'argv', ['study', HERE[0], f'--output_dir={folder}'])
  with pytest.raises(SystemExit) as ended:
    __main__.main()
  assert ended.value.code == 0
  assert (folder / 'results.csv').read_bytes() == written
  assert capsys.readouterr().out.strip() == (folder / 'table.txt').read_text().strip()


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
