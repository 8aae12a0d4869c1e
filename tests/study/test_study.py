"""Studies in this process and in processes of their cells: noise, resuming, schedulers, folders."""

import contextlib
import csv
import functools
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.support import style
from fl_dpftrl.support.files import durable
from tests import made
from tests.study import linear

ROOT = pathlib.Path(__file__).parents[2]
ONE = dict(mechanisms=['identity'], server_learning_rates=[0.1], seeds=[0], without_noise=False)
SCHEME = sampling.CyclicPoisson(num_rounds=16, num_examples=4000, batch_size=400)
TABLE = """
ε | mechanism | test accuracy (%) | below the best (points) | told apart from | seeds
4 | identity | 55.50 ± 1.96 | best | blt:1 | 5
4 | blt:1 | 52.50 ± 1.96 | 3.00 ± 0.00 | identity | 5
server rate | noise multiplier | ε of a run | remarks
0.4 | 1.688 | 4 | rate at an end of those tried
0.4 | 2.294 | 4 | rate at an end of those tried
"""


def rows(folder):
  with (folder / 'results.csv').open(newline='') as stream:
    return list(csv.DictReader(stream))


def recorded(trained, run=linear.train):
  """Returns a function that trains, and notes which cells."""

  def train(cell):
    trained.append(cell.name)
    return run(cell)

  return train


def kept(cells, cell):
  cells.append(cell)
  return formula(cell)


def formula(cell):
  """Returns an accuracy that follows from the cell alone."""
  value = 0.53 if cell.setting.label == 'identity' else 0.5
  rate = 0.0 if cell.server_learning_rate == 0.1 else 0.005
  return linear.proved(cell, value + rate + 0.01 * cell.seed, seconds=2.0)


def test_a_small_study_has_its_golden_table(tmp_path):
  said = []
  study = linear.study(tmp_path, formula, seeds=range(5), without_noise=False, say=said.append)
  shown = (tmp_path / 'table.txt').read_text()
  assert study.table + '\n' == shown
  head, *lines = (re.split(' {2,}', line) for line in shown.splitlines()[:3])
  table = [head[:6], *(line[:6] for line in lines), head[6:], *(line[6:] for line in lines)]
  assert '\n'.join(map(' | '.join, table)) == TABLE.strip()
  assert 'Told apart: 1 of 1 pairs of one ε' in shown and shown.endswith(
    'run itself, at δ = 1e-06.\n'
  )
  names = {f'{n}.{kind}' for n in study.figures for kind in ('svg', 'png')}
  assert names | {'results.csv', 'table.txt', 'study.md', 'study.json'} <= set(os.listdir(tmp_path))
  assert (tmp_path / 'study.md').read_text() == study.page
  assert said[:2] == ['noise of 2 settings', 'optimising blt:1 for 8 rounds']
  assert said[2].startswith('4 of 12 runs, 1 at a time')
  assert said[-1].startswith(
    '8/8 | blt_1-epsilon4.0-rate0.4-seed4: test accuracy (%) 54.50 | 0:00:0'
  )


def test_the_noise_is_that_of_account(tmp_path):
  for goal in (None, 400):
    cells = []
    run = functools.partial(kept, cells)
    linear.study(tmp_path / f'{goal}', run, deployment_report_goal=goal, seeds=[0])
    for cell in cells:
      if cell.noise is None:
        assert cell.noise_multiplier == 0.0 and cell.strategy.family == 'identity'
        continue
      scale = 1 if goal is None else 10
      stated = dpftrl.account(
        cell.strategy, linear.SCHEMA, noise_multiplier=scale * cell.noise_multiplier, delta=1e-6
      )
      assert 3.999 < stated.epsilon() <= 4.0 and (cell.noise.epsilon > 20) == (scale > 1)
  assert 'hypothetical deployment of 400 devices' in (tmp_path / '400' / 'table.txt').read_text()


@pytest.mark.slow
def test_strategies_are_optimised_for_the_workload(tmp_path):
  cells, momentum = [], dpftrl.Workload(momentum=0.9)
  arguments = dict(seeds=[0], workload=momentum, without_noise=False, mechanisms=['blt:1'])
  linear.study(tmp_path / 'study', functools.partial(kept, cells), **arguments)
  best = dpftrl.optimize('blt', linear.SCHEMA, num_buffers=1, workload=momentum)
  assert best != dpftrl.optimize('blt', linear.SCHEMA, num_buffers=1)
  assert cells and all(cell.strategy == best for cell in cells)
  described = dpftrl.describe(tmp_path / 'study' / 'strategies' / 'blt_1.json', linear.SCHEMA)
  assert described.strategy == best


def test_sampled_noise_has_a_part_for_each_of_the_best_bands(tmp_path):
  scheme, bands = sampling.CyclicFixedSize(num_rounds=16, num_examples=4000, batch_size=400), {}

  def run(cell):
    if cell.noise is not None:
      assert cell.participation.num_parts == accountant.num_bands(cell.strategy)
      stated = accountant.account(
        cell.strategy, cell.participation, noise_multiplier=cell.noise_multiplier, delta=1e-6
      )
      assert 0.999 * cell.setting.epsilon < stated.epsilon() <= cell.setting.epsilon
      noise = cell.noise_multiplier * dpftrl.describe(cell.strategy, once).error.rms
      bands[cell.setting.label, cell.setting.epsilon] = cell.participation.num_parts, noise
    return linear.proved(cell, 0.5)

  once = dpftrl.MinSep(16, max_participations=1)
  mechanisms = ['identity', 'banded_toeplitz', 'banded_toeplitz:4']
  study = linear.study(
    tmp_path, run, mechanisms=mechanisms, epsilons=[0.5, 8.0], participation=scheme
  )
  for e in (0.5, 8.0):
    assert bands['identity', e][0] == 1 and bands['banded_toeplitz:4', e][0] == 4
    assert bands['banded_toeplitz', e][1] == min(
      noise for (_, at), (_, noise) in bands.items() if at == e
    )
  assert bands['banded_toeplitz', 0.5][0] < bands['banded_toeplitz', 8.0][0]
  assert f'bands: {bands["banded_toeplitz", 8.0][0]}' in study.table


def test_secret_bins_serve_any_mechanism(tmp_path):
  scheme, seen = dpftrl.SecretBins(16, 4), []

  def run(cell):
    if cell.noise is not None:
      assert cell.participation == scheme
      for handed in (lambda: cell.arguments, cell.aggregator):
        with pytest.raises(ValueError, match='are for timers'):
          handed()
      noise = {'noise_multiplier': cell.noise_multiplier, 'delta': 1e-6}
      stated = dpftrl.account(cell.strategy, scheme, **noise)
      assert 3.99 < stated.epsilon() == cell.noise.epsilon <= 4.0
      seen.append(cell.strategy.family)
    return linear.proved(cell, 0.5)

  linear.study(
    tmp_path, run, mechanisms=['blt:2', 'tree_full'], epsilons=[4.0], participation=scheme
  )
  assert {'blt', 'tree_full'} == set(seen)


@made.cases(
  'changes, status, words',
  ({}, 'done', ''),
  ({'epsilon': 3.0}, 'done', ''),
  ({'epsilon': None}, 'void', 'neither a log nor epsilon and delta=1e-06 of the run prove its ε'),
  ({'epsilon': 4.1}, 'void', 'it has ε = 4.1, and its noise is for 4'),
  ({'epsilon': float('nan')}, 'void', 'it has ε = nan'),
  ({'delta': 1e-3}, 'void', 'neither a log'),
  ({'void_reason': 'the noise has a seed'}, 'void', 'the noise has a seed'),
  ({'test': {'accuracy': None}}, 'diverged', 'not finite'),
  ({'diverged_since_round': 3}, 'diverged', 'not finite from round 3 on'),
)
def test_a_run_counts_only_with_the_epsilon_of_its_noise(tmp_path, changes, status, words):
  study = linear.study(tmp_path, lambda cell: {**formula(cell), **changes}, **ONE)
  (result,) = study.results
  assert result.status == status and result.reason.startswith(words)
  assert (result.test is None) == (status != 'done') == ('53.00' not in study.table)
  assert (result.epsilon_of_run is None) == (status == 'void')


@made.cases(
  'changes, words',
  ({'mechanisms': 'identity'}, "mechanisms must be a list of 1 to 1000 entries, got 'identity'$"),
  ({'mechanisms': ['blt:1', 'blt:1']}, 'mechanisms must be distinct'),
  ({'mechanisms': ['blt:1', dpftrl.Mechanism(mechanism='blt:2', label='blt 1')]}, 'is there twice'),
  ({'mechanisms': ['bltt']}, 'bltt.* did you mean'),
  ({'epsilons': 4.0}, 'epsilons must be a list of 1 to 1000 entries, got 4'),
  ({'epsilons': [-1.0]}, 'epsilons must be numbers above 0, got -1'),
  ({'seeds': [0.5]}, 'seeds must be whole numbers from 0 on, got 0.5'),
  ({'clip_norm': 0.0}, 'clip_norm .* got 0'),
  ({'delta': 2.0}, 'delta .* got 2'),
  ({'participation': dpftrl.LossBudget(squared=5.0)}, 'participation must have num_rounds'),
  ({'participation': SCHEME, 'deployment_report_goal': 99}, 'means nothing where'),
  ({'participation': 3}, 'participation must be one of'),
  ({'participation': SCHEME, 'mechanisms': ['tree_full']}, 'tree_full: amplification'),
  ({'deployment_report_goal': 1}, 'deployment_report_goal=1 must be at least report_goal=40'),
  ({'jobs': -1}, 'jobs must be 0 to 1000, got -1'),
  ({'cell': 10}, 'cell must be 0 to 8, got 10'),
  ({'jobs': 1}, 'must be one of a module: move it into one, or give jobs=0'),
)
def test_bad_arguments_are_one_line_and_leave_nothing(tmp_path, changes, words):
  with pytest.raises(ValueError, match=words) as refused:
    linear.study(tmp_path / 'new', lambda cell: formula(cell), **changes)
  assert '\n' not in str(refused.value) and len(str(refused.value)) <= 300
  assert not (tmp_path / 'new').exists()


class Killed(BaseException):
  """The end of a process, which cleans nothing up."""


def kill_at(monkeypatch, number, where):
  """Ends the process before or after it makes the file of this number durable."""
  real, calls = durable.replacing, []

  @contextlib.contextmanager
  def replacing(path, **options):
    calls.append(path)
    if len(calls) == number and where == 'before':
      path.with_name(f'{durable.TEMPORARY_PREFIX}{number:016x}').write_bytes(b'half')
      raise Killed
    with real(path, **options) as temporary:
      yield temporary
    if len(calls) == number and where == 'after':
      raise Killed

  monkeypatch.setattr(durable, 'replacing', replacing)


@pytest.mark.parametrize('where', ['before', 'after'])
def test_a_study_goes_on_after_a_kill_at_each_write(tmp_path, monkeypatch, where):
  monkeypatch.setattr(style, 'image', lambda figure, kind: b'picture')
  options = {'mechanisms': ['identity'], 'without_noise': False}
  linear.study(tmp_path / 'whole', **options)
  expected = (tmp_path / 'whole' / 'results.csv').read_bytes()
  for number in range(1, 100):
    folder, trained, ended = tmp_path / f'{number}', [], []
    with monkeypatch.context() as patched:
      kill_at(patched, number, where)
      try:
        linear.study(folder, recorded(trained), **options)
        break
      except Killed:
        ended = [path.parent.name for path in folder.glob('cells/*/row.json')]
    before = list(trained)
    linear.study(folder, recorded(trained), **options)
    assert (folder / 'results.csv').read_bytes() == expected
    again = set(before) & set(trained[len(before) :])
    assert not again & set(ended) and len(again) <= 1
    left = {path.parent.name for path in folder.rglob(f'{durable.TEMPORARY_PREFIX}*')}
    assert left <= {'strategies'}
  assert 12 < number < 40


def test_a_scheduler_gets_the_results_of_the_call_in_order(tmp_path):
  linear.study(tmp_path / 'ordered')
  expected = (tmp_path / 'ordered' / 'results.csv').read_bytes()
  folder, said = tmp_path / 'scheduled', []
  with pytest.raises(ValueError, match='cell=8 has no learning rate yet: first run those of the'):
    linear.study(folder, cell=8)
  for number in (5, 0, 4, 2, 3, 1, 8, 6, 7):
    found = linear.study(folder, cell=number, say=said.append)
    assert not (folder / 'results.csv').exists()
  assert not found.unfinished and len(found.results) == 9
  assert said[-1].startswith('blt_1-epsilon4.0-rate0.1-seed1: test accuracy (%) ')
  trained = []
  linear.study(folder, recorded(trained))
  assert (folder / 'results.csv').read_bytes() == expected and not trained


def test_a_cell_that_is_being_trained_is_left_alone(tmp_path):
  def run(cell):
    with pytest.raises(ValueError, match='is held by another process'):
      linear.study(tmp_path, cell=0, **ONE)
    with pytest.raises(ValueError, match='is held by another process'):
      linear.study(tmp_path, **ONE)
    return formula(cell)

  assert not linear.study(tmp_path, run, **ONE).unfinished


def test_seeds_and_mechanisms_may_be_added_and_conditions_not(tmp_path):
  trained = []
  linear.study(tmp_path, recorded(trained), seeds=[0])
  more = {'mechanisms': ['identity', 'tree_full', 'blt:1'], 'seeds': [0, 1]}
  study = linear.study(tmp_path, recorded(trained), **more)
  assert len(trained) == len(set(trained)) == len(study.results) == 12
  other = [dpftrl.Mechanism(mechanism='blt:1', objective='rms')]
  for changes, words in (
    ({'clip_norm': 0.5}, 'differs in clip_norm'),
    ({'participation': dpftrl.MinSep(8, 2)}, 'differs in participation'),
    ({'mechanisms': other}, 'differs in mechanism blt:1'),
  ):
    with pytest.raises(ValueError, match=words):
      linear.study(tmp_path, **changes)
  (tmp_path / 'other').mkdir()
  (tmp_path / 'other' / 'thesis.txt').write_text('precious')
  with pytest.raises(ValueError, match='holds other files; name a new folder'):
    linear.study(tmp_path / 'other')


def test_a_mapping_labels_strategies_names_and_mechanisms(tmp_path):
  mine = dpftrl.BLT([0.5], [0.4])
  options = {'server_learning_rates': [0.1], 'seeds': [0], 'without_noise': False}
  labelled = {'mine': mine, 'trees': 'tree_full', 'rms': dpftrl.Mechanism(mechanism=mine)}
  study = linear.study(tmp_path, mechanisms=labelled, **options)
  assert [row.mechanism for row in study.rows] == [*labelled]
  assert dpftrl.load_strategy(tmp_path / 'strategies/mine.json') == mine
  assert [row.mechanism for row in linear.study(tmp_path, mechanisms=[mine], **options).rows] == [
    'blt'
  ]
  with pytest.raises(ValueError, match='differs in mechanism mine'):
    linear.study(tmp_path, mechanisms={'mine': dpftrl.BLT([0.5], [0.3])}, **options)
  with pytest.raises(ValueError, match='label must be a str, got 7'):
    linear.study(tmp_path, mechanisms={7: mine}, **options)
  with pytest.raises(ValueError, match='mechanism must be a name or a strategy, got 7'):
    linear.study(tmp_path, mechanisms=[7], **options)


@pytest.mark.slow
def test_cells_have_processes_whose_failures_are_lines_of_the_table(tmp_path):
  said = []
  changes = ONE | dict(server_learning_rates=[0.1, 2.0, 3.0, 9.0])
  study = linear.study(tmp_path / 'many', linear.fatal, jobs=2, say=said.append, **changes)
  reasons = {r.server_learning_rate: r.reason for r in study.results if r.status == 'failed'}
  assert reasons == {
    2.0: 'ended by signal 9',
    3.0: 'it ended without a result',
    9.0: 'RuntimeError: the rate is too large',
  }
  assert any('rate9.0-seed0: failed: RuntimeError: the rate is too large' in line for line in said)
  own = {(r.server_learning_rate, r.seed): r.test for r in study.results if r.test is not None}
  alone = linear.study(tmp_path / 'alone', **ONE)
  assert own == {(0.1, r.seed): r.test for r in alone.results}
  logs = [path.read_text() for path in (tmp_path / 'many').glob('cells/*/log.txt')]
  assert sum(f'trained in process {os.getpid()}' not in log for log in logs) == 4
  linear.study(tmp_path / 'one', jobs=1, **(ONE | dict(server_learning_rates=[0.1, 0.4])))
  told = [path.read_text() for path in (tmp_path / 'one').glob('cells/*/log.txt')]
  assert len(told) == 2 and len(set(told)) == 1 and 'trained in process' in told[0]
  # A mistake that every run has ends the study with the first one.
  with pytest.raises(ValueError, match='log.txt: ValueError: the run must return a mapping'):
    linear.study(tmp_path / 'mistaken', linear.mistaken, jobs=1)


@pytest.mark.slow
def test_cells_end_with_a_study_that_is_killed(tmp_path):
  program = (
    'import pathlib, sys; from tests.study import linear;'
    ' linear.study(pathlib.Path(sys.argv[1]), linear.endless, jobs=2)'
  )
  process = subprocess.Popen([sys.executable, '-c', program, str(tmp_path / 'own')], cwd=ROOT)
  deadline = time.monotonic() + 240
  while len(told := list(tmp_path.glob('own/cells/*/run/process'))) < 2 or not all(
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
