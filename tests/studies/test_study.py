"""`dpftrl.study` of a model of one's own, in this process and in processes of its cells."""

import csv
import json
import os
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl import studies
from tests.studies import linear

ROOT = pathlib.Path(__file__).parents[2]
# What a script must have around what starts processes.
GUARD = "if __name__ == '__main__':\n  "
# What makes a study one run.
ONE = dict(mechanisms=['identity'], server_learning_rates=[0.1], seeds=[0], without_noise=False)


def study(folder, train=linear.train, **changes):
  arguments = dict(
    mechanisms=['identity', 'blt:1'],
    epsilons=[4.0],
    server_learning_rates=[0.1, 0.4],
    seeds=[0, 1],
    schema=linear.SCHEMA,
    clip_norm=1.0,
    report_goal=linear.GOAL,
    extend_rates=0,
    title='Own model',
    say=lambda line: None,
  )
  return dpftrl.study(train, folder=folder, **{**arguments, **changes})


@pytest.fixture(name='finished', scope='module')
def fixture_finished(tmp_path_factory):
  """A study whose last seed was added later."""
  folder = tmp_path_factory.mktemp('studies') / 'own'
  said = []
  study(folder, seeds=[0], say=said.append)
  assert any(line.startswith('6/6 cells | no_noise-rate0.4-seed0') for line in said)
  before = {p: p.read_bytes() for p in folder.glob('cells/*/summary.json')}
  found = study(folder)
  assert len(before) == 6 and {p: p.read_bytes() for p in before} == before
  return found


def test_a_study_of_an_own_model_has_a_table_a_page_and_its_noise(finished):
  rows = {row.label: row for row in finished.rows}
  assert list(rows) == ['identity', 'blt:1', 'no noise'] and not finished.failed
  schema = linear.SCHEMA
  for label in ('identity', 'blt:1'):
    assert len(rows[label].tests) == 2
    strategy = rows[label].results[0].cell.strategy
    stated = dpftrl.account(
      strategy, schema, noise_multiplier=rows[label].noise.noise_multiplier, delta=1e-6
    )
    assert 3.999 < stated.epsilon <= 4.0
  assert rows['no noise'].mean > 0.9
  assert {path.name for path in finished.folder.iterdir()} >= {
    'study.json',
    'study.html',
    'results.csv',
    'table.txt',
    'accuracy_by_epsilon.png',
  }
  with (finished.folder / 'results.csv').open(newline='') as stream:
    lines = list(csv.DictReader(stream))
  assert len(lines) == len(finished.results) == 9
  assert 'schema=MinSep(num_rounds=8' in (finished.folder / 'study.html').read_text()


def test_it_shows_itself_in_few_lines_and_draws(finished):
  lines = repr(finished).splitlines()
  assert lines[0].startswith('Own model: 9 runs, in ') and len(lines) <= 12
  assert lines[1].split()[:2] == ['ε', 'mechanism'] and 'no noise' in lines[-1]
  assert '<th>verdict</th>' in finished._repr_html_()
  assert finished.plot('accuracy_by_rate').axes
  with pytest.raises(ValueError, match="name must be one of accuracy_by_epsilon, .* got 'rates'"):
    finished.plot('rates')


def test_other_arguments_are_another_study(finished):
  with pytest.raises(ValueError, match='differs in clip_norm; name another folder'):
    study(finished.folder, clip_norm=0.5)
  with pytest.raises(ValueError, match='deployment_report_goal=3 must be at least report_goal=40'):
    study(finished.folder, deployment_report_goal=3)
  with pytest.raises(ValueError, match='jobs must be at least 1, got 0'):
    study(finished.folder, jobs=0)
  with pytest.raises(ValueError, match='train must be a function of a module where'):
    study(finished.folder, train=lambda cell: None, jobs=1)


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'mechanisms': 'identity'}, "mechanisms must be a list .* got 'identity'$"),
    ({'mechanisms': [3]}, 'mechanisms must be names, Mechanisms or objects .* got 3$'),
    ({'mechanisms': [{'label': 'x'}]}, 'a mechanism must have the field mechanism'),
    ({'mechanisms': ['blt:1', 'blt:1']}, "'blt:1' is there twice for epsilon 4"),
    ({'mechanisms': ['bltt']}, 'bltt.* did you mean'),
    ({'epsilons': 4.0}, 'epsilons must be a list of 1 to 1000 entries, got 4'),
    ({'epsilons': [-1.0]}, 'epsilons must be a number above 0, got -1'),
    ({'server_learning_rates': 0.1}, 'server_learning_rates must be a list .* got 0.1'),
    ({'seeds': 3}, 'seeds must be a list of 1 to 1000 entries, got 3'),
    ({'seeds': [0.5]}, 'seeds must be a whole number from 0 on, got 0.5'),
    ({'tuning_seeds': 3}, 'tuning_seeds=3 must be at most the 2 seeds'),
    ({'extend_rates': -1}, 'extend_rates must be a whole number from 0 on, got -1'),
    ({'without_noise': 'no'}, 'without_noise must be true or false, got .no'),
    ({'title': ''}, 'title must be text'),
    ({'clip_norm': 0.0}, 'clip_norm .* got 0'),
    ({'report_goal': 0}, 'report_goal .* got 0'),
    ({'delta': 2.0}, 'delta .* got 2'),
    ({'schema': None}, 'give a study schema or sampling; it has neither'),
    ({'until_told_apart': -1.0}, 'until_told_apart=-1.0 must be a number of hours'),
    ({'deployment_report_goal': 1}, 'deployment_report_goal=1 must be at least report_goal=40'),
  ],
)
def test_messages_name_the_argument_and_neither_flags_nor_files(tmp_path, changes, words):
  with pytest.raises(ValueError, match=words) as refused:
    study(tmp_path / 'own', **changes)
  for word in ('--', 'flag', 'JSON', 'study file', 'command', '\n'):
    assert word not in str(refused.value)
  assert not (tmp_path / 'own').exists()


def test_numbers_of_numpy_are_numbers(tmp_path):
  changes = dict(epsilons=np.array([4.0]), seeds=np.arange(1), mechanisms=('identity',))
  found = study(tmp_path, server_learning_rates=np.array([0.1, 0.4]), **changes)
  assert found.design.seeds == (0,) and not found.failed


@pytest.mark.parametrize('start, guards', [('forkserver', ('', GUARD)), ('spawn', ('',))])
@pytest.mark.slow
def test_a_script_that_starts_it_in_each_process_is_told_so(tmp_path, start, guards):
  script = tmp_path / 'script.py'
  script.write_text(
    'import sys\n'
    'from fl_dpftrl.studies import processes\n'
    'from tests.studies import linear, test_study\n'
    f'processes.start_method = lambda: {start!r}\n'
    'test_study.study(sys.argv[1], linear.train, jobs=2, **test_study.ONE)\n'
  )
  environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
  for guard in guards:
    text = script.read_text().replace('test_study.study', f'{guard}test_study.study')
    script.write_text(text)
    done = subprocess.run(
      [sys.executable, str(script), str(tmp_path / 'own')],
      capture_output=True,
      text=True,
      env=environment,
      timeout=120,
    )
    assert (done.returncode == 0) == bool(guard), done.stderr
    if not guard:
      assert done.stderr.count('Traceback') == 1
      assert "put its call under if __name__ == '__main__':" in done.stderr.splitlines()[-1]
  assert len(list(tmp_path.glob('own/cells/*/summary.json'))) == bool(guard)


@pytest.mark.slow
def test_runs_of_processes_are_those_of_this_one(finished, tmp_path):
  changes = ONE | dict(seeds=[0, 1], server_learning_rates=[0.1, 9.0])
  found = study(tmp_path / 'own', jobs=2, **changes)
  (failed,) = found.failed
  assert '-rate9-' in failed.cell.name and failed.reason == 'RuntimeError: the rate is too large'
  own, other = (
    {r.cell.name: r.test for r in one.results if r.test is not None} for one in (found, finished)
  )
  assert len(own) == 2 and own.items() <= other.items()
  logs = [path.read_text() for path in (tmp_path / 'own' / 'cells').glob('*.log')]
  own = {line for text in logs for line in text.splitlines() if line.startswith('trained in')}
  assert len(own) == 2


def test_machines_without_ray_say_what_to_install(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, 'ray', None)
  monkeypatch.delitem(sys.modules, 'fl_dpftrl.studies.machines', raising=False)
  monkeypatch.delattr(studies, 'machines', raising=False)
  with pytest.raises(ImportError, match=r'install fl_dpftrl\[machines\]'):
    study(tmp_path / 'own', machines='auto')
  assert not (tmp_path / 'own').exists()


def test_an_interrupted_study_goes_on(tmp_path):
  trained = []

  def train(cell):
    if len(trained) == 3 and cell.name not in trained:
      trained.append('interrupted')
      raise KeyboardInterrupt
    trained.append(cell.name)
    return linear.train(cell)

  with pytest.raises(KeyboardInterrupt):
    study(tmp_path, train)
  assert len(list(tmp_path.glob('cells/*/summary.json'))) == 3
  found = study(tmp_path, train)
  assert len(set(trained)) == len(trained) == 10 and not found.failed
  content = json.loads((found.results[0].cell.folder / 'summary.json').read_text())
  assert content['seconds'] >= 0 and content['diverged_since_round'] is None
  assert np.isfinite(content['test']['accuracy'])


@pytest.mark.slow
def test_runs_end_with_a_study_that_is_killed(tmp_path):
  program = (
    'import pathlib, sys; from tests.studies import linear, test_study;'
    ' test_study.study(pathlib.Path(sys.argv[1]), linear.endless, jobs=2)'
  )
  process = subprocess.Popen([sys.executable, '-c', program, str(tmp_path / 'own')], cwd=ROOT)
  deadline = time.monotonic() + 120
  while len(told := list(tmp_path.glob('own/cells/*/process'))) < 2 or not all(
    path.read_text() for path in told
  ):
    assert process.poll() is None and time.monotonic() < deadline
    time.sleep(0.05)
  process.kill()
  process.wait()
  for path in told:
    while is_running(int(path.read_text())):
      assert time.monotonic() < deadline
      time.sleep(0.05)


def is_running(pid):
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except OSError:
    return False
  return stat.rsplit(')', 1)[1].split()[0] != 'Z'
