"""Study files, the study command with runs of the training script, and the study of topics."""

import csv
import json
import os
import pathlib
import re
import sys

import pytest

import fl_dpftrl as dpftrl
from experiments.stackoverflow import study as command
from experiments.topics import __main__ as topics
from experiments.topics import run
from fl_dpftrl.study import comparing, running, study_noise
from tests import made, pages
from tests.experiments import starts

pytestmark = pytest.mark.tff

SYNTHETIC = starts.ROOT / 'studies' / 'synthetic.json'
STUDY = {
  'title': 'A study',
  'flags': ['--report_goal=5', '--num_rounds=8', '--timer_rounds=4', '--delta=1e-5'],
  'mechanisms': ['identity'],
  'epsilons': [2],
  'server_learning_rates': [0.5],
  'seeds': [0],
}
TASK = run.Task(num_clients=150, num_sentences=3, embedding=8, num_test_sentences=60)
SMALL = {
  'mechanisms': ('identity', 'blt:2'),
  'epsilons': (4,),
  'server_learning_rates': (0.3,),
  'seeds': (0, 1),
  'participation': dpftrl.MinSep(num_rounds=12, min_sep=4),
  'report_goal': 4,
  'deployment_report_goal': 8,
}


def main(module, monkeypatch, *arguments):
  monkeypatch.setattr(sys, 'argv', ['study', *map(str, arguments)])
  with pytest.raises(SystemExit) as ended:
    module.main()
  return ended.value.code


def written(folder, **changes):
  path = folder / 'study.json'
  path.write_text(json.dumps({**STUDY, **changes}))
  return path


@pytest.mark.slow
def test_a_failed_run_is_a_line_and_the_same_command_tries_it_again(tmp_path, monkeypatch, capfd):
  folder = tmp_path / 'study'
  spoilt = folder / 'cells' / 'identity-epsilon2.0-rate0.5-seed0' / 'run' / 'thesis.txt'
  flags = [*STUDY['flags'], '--dataset=synthetic', '--embedding=8']
  path = written(tmp_path, flags=flags, without_noise=False)
  monkeypatch.chdir(starts.ROOT)
  # As `starts`: a cell is a fork of what has TensorFlow; tests/study has processes begun anew.
  monkeypatch.setattr(running.multiprocessing, 'get_context', lambda method: starts._FORKS)
  start = lambda: main(command, monkeypatch, f'--study={path}', f'--output_dir={folder}')
  study_noise.prepare(
    command.read(path), folder, print
  )  # As a study that was interrupted leaves it.
  spoilt.parent.mkdir(parents=True)
  spoilt.write_text('precious')
  capfd.readouterr()
  status, (out, err) = start(), capfd.readouterr()
  assert status == 1, err
  line = f'seed0: failed: train: --output_dir={spoilt.parent} holds other files; name a new folder'
  assert line in err and '1 failed' in out and 'tensorflow' not in err
  spoilt.unlink()
  status, (out, err) = start(), capfd.readouterr()
  assert not status and '1 of 1 runs, 1 at a time' in err, err
  assert out == (folder / 'table.txt').read_text()
  with (folder / 'results.csv').open(newline='') as stream:
    (row,) = csv.DictReader(stream)
  stated = json.loads((spoilt.parent / 'summary.json').read_text())
  assert row['status'] == 'done' and float(row['epsilon_of_run']) == stated['epsilon'] <= 2.0


@made.cases(
  'changes, words',
  ({'flags': ['--seed=1']}, r"flags has '--seed=1': give --name=value"),
  ({'flags': ['report_goal=5']}, "flags has 'report_goal=5'"),
  ({'flags': '--report_goal=5'}, 'flags must be a list of texts'),
  ({'flags': [*STUDY['flags'], '--timer_hours=8']}, 'timer'),
  ({'flags': ['--report_goal=5', '--num_rounds=8', '--timer_hours=8']}, 'give --timer_rounds'),
  ({'flags': ['--clip_norm=x']}, 'clip_norm'),
  ({'field': 1}, "a study has no field 'field'; it has title, flags"),
  ({'mechanisms': [{'label': 'x'}]}, 'a mechanism must have the field mechanism'),
  ({'mechanisms': [{'mechanism': 'blt', 'rate': 1}]}, "a mechanism has no field 'rate'"),
  ({'mechanisms': {'mechanism': 'blt'}}, 'mechanisms must be a list'),
  ({'mechanisms': [['blt']]}, 'mechanism'),
  ({'epsilons': 2}, 'epsilons must be a list of 1 to 1000 entries, got 2'),
  ({'metric': 'loss'}, 'lower_is_better must be True or False for loss'),
)
def test_bad_study_files_are_one_line(tmp_path, monkeypatch, capsys, changes, words):
  arguments = f'--study={written(tmp_path, **changes)}', f'--output_dir={tmp_path / "new"}'
  assert main(command, monkeypatch, *arguments) == 2
  line = capsys.readouterr().err
  assert line.startswith(f'study: {tmp_path}') and line.count('\n') == 1
  assert re.search(words, line) and len(line) <= 301 and not (tmp_path / 'new').exists()


@made.cases(
  'arguments, words',
  (['--study=nowhere.json', '--output_dir=x'], 'nowhere.json is not there; a relative path'),
  ([f'--study={SYNTHETIC}'], '--output_dir'),
  ([f'--study={SYNTHETIC}', '--output_dir=x', '--jobs=0'], '--jobs=0 must be at least 1'),
  ([f'--study={SYNTHETIC}', '--output_dir=x', '--cell=4'], 'cell must be 0 to 3, got 4'),
)
def test_bad_arguments_are_one_line(tmp_path, monkeypatch, capsys, arguments, words):
  monkeypatch.chdir(tmp_path)
  assert main(command, monkeypatch, *arguments) == 2
  line = capsys.readouterr().err
  assert line.startswith('study: ') and line.count('\n') == 1 and words in line
  assert os.listdir(tmp_path) == []


def test_a_cell_is_an_ordinary_run(tmp_path):
  cells = []

  def train(cell):
    cells.append(cell)
    values = {part: {'accuracy': 0.5} for part in ('validation', 'test')}
    return {**values, 'epsilon': cell.noise and cell.noise.epsilon, 'delta': 1e-5}

  study = command.design(STUDY)
  assert study.workload.momentum == 0.95 and study.participation == dpftrl.MinSep(8, 4)
  comparing.compare(study, train, tmp_path / 'study', jobs=0, cell=None, say=print)
  noisy, silent = map(command.arguments, cells)
  assert noisy[:4] == STUDY['flags'] and f'--output_dir={cells[0].folder}' in noisy
  assert f'--noise_multiplier={cells[0].noise_multiplier!r}' in noisy and '--resume' in noisy
  assert f'--strategy={tmp_path / "study" / "strategies" / "identity.json"}' in noisy
  assert '--noise_multiplier=0' in silent


@pytest.mark.parametrize(
  'path', sorted((starts.ROOT / 'studies').glob('*.json')), ids=lambda p: p.stem
)
def test_committed_studies_fit_their_flags(path):
  goal = None if path.stem == 'docstrings' else 1000  # ε is then that of the runs themselves.
  assert command.read(path).deployment_report_goal == goal
  assert path.stem in (pages.DOCS / 'studies.md').read_text() + 'synthetic'


@pytest.mark.slow
def test_the_study_of_topics(tmp_path, monkeypatch, capsys):
  monkeypatch.setattr(topics, 'STUDY', {**topics.STUDY, **SMALL})
  monkeypatch.setattr(topics, 'TASK', TASK)
  folder = tmp_path / 'study'
  assert main(topics, monkeypatch, f'--output_dir={folder}', '--cell=0') == 0
  (first,) = folder.glob('cells/*/row.json')
  before = first.read_bytes()
  assert main(topics, monkeypatch, f'--output_dir={folder}') == 0
  assert first.read_bytes() == before and len(list(folder.glob('cells/*/row.json'))) == 6
  out, err = capsys.readouterr()
  assert 'deployment of 8 devices' in out and '5 of 6 runs, 1 at a time' in err
  for name in ('identity', 'blt_2'):
    log = folder / f'cells/{name}-epsilon4.0-rate0.3-seed1/run/rounds/participation.parquet'
    assert log.exists()
  (pathlib.Path(tmp_path) / 'notes.txt').write_text('mine')
  assert main(topics, monkeypatch, f'--output_dir={tmp_path}') == 2
  message = capsys.readouterr().err
  assert message.startswith('topics: ') and message.count('\n') == 1
