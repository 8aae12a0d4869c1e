"""Strategies, noise and runs of a study's settings."""

import contextlib
import dataclasses
import functools
import json
import pathlib
import re
import socket
import tempfile

import pytest

from fl_dpftrl import accounting
from fl_dpftrl.families import identity
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from fl_dpftrl.studies import cells, estimate, folders, processes, results, run, runner
from fl_dpftrl.studies import design as design_lib

STUDY = {
  'title': 'A study',
  'flags': [],
  'mechanisms': ['identity', {'mechanism': 'blt:1', 'made_for_min_sep': 2}],
  'epsilons': [2],
  'epsilon_of': 'deployment',
  'server_learning_rates': [0.5],
  'seeds': [0],
}
CONDITIONS = cells.Conditions(
  schema=schemas.MinSep(num_rounds=8, min_sep=4),
  clip_norm=1.0,
  report_goal=5,
  delta=1e-5,
  deployment_report_goal=50,
)


def task(train=None, conditions=CONDITIONS, **kwargs):
  return cells.Task(conditions=lambda setting: conditions, train=train, **kwargs)


def prepared(folder, conditions=CONDITIONS, **changes):
  lines = []
  design = design_lib.parse({**STUDY, **changes})
  return cells.prepare(design, task(conditions=conditions), folder, lines.append), lines


def summary(accuracy, **others):
  return {'validation': {'accuracy': accuracy}, 'test': {'accuracy': accuracy}, **others}


def test_noise_is_calibrated_for_the_deployment(tmp_path):
  made, lines = prepared(tmp_path)
  assert lines == ['optimising blt:1 for b=2 for n=8, b=2']
  *noisy, silent = made.design.settings
  for setting in noisy:
    guarantee = accounting.account(
      files.load_strategy(made.noises[setting].strategy),
      CONDITIONS.schema,
      noise_multiplier=10 * made.noises[setting].noise_multiplier,
      delta=1e-5,
    )
    assert 1.999 < guarantee.epsilon <= 2.0
  assert made.noises[silent] is None
  one = made.noises[noisy[0]]
  assert one.max == pytest.approx(one.noise_multiplier / 5 * 8**0.5)
  assert prepared(tmp_path)[1] == []  # Strategies are kept.


def test_noise_may_be_given_as_printed(tmp_path):
  entries = [
    {'mechanism': 'identity', 'epsilon': 1, 'server_learning_rates': [1], **noise}
    for noise in ({'effective_noise_multiplier': 3}, {'noise_multiplier': 4, 'label': 'as stored'})
  ]
  content = {**{k: STUDY[k] for k in ('title', 'flags', 'seeds')}, 'cells': entries}
  made = cells.prepare(design_lib.parse(content), task(), tmp_path, print)
  assert [noise.noise_multiplier for noise in made.noises.values()] == [
    pytest.approx(3 * 2**0.5),
    pytest.approx(4.0),
  ]


@pytest.mark.parametrize(
  'changes, conditions, words',
  [
    ({'mechanisms': ['bltt']}, {}, "bltt: 'bltt' is neither a strategy file"),
    ({}, {'deployment_report_goal': None}, 'needs deployment_report_goal to be given'),
    ({}, {'report_goal': 0}, 'report_goal must be at least 1, got 0'),
    ({}, {'clip_norm': 0.0}, 'clip_norm must be'),
    ({}, {'report_goal': 60}, 'deployment_report_goal=50 must be at least report_goal=60'),
  ],
)
def test_settings_that_cannot_be_prepared_are_named(tmp_path, changes, conditions, words):
  with pytest.raises(ValueError, match=words):
    prepared(tmp_path, dataclasses.replace(CONDITIONS, **conditions), **changes)


def test_a_cell_has_its_noise_and_a_folder(tmp_path):
  made, _ = prepared(tmp_path)
  *_, blt, silent = made.design.settings
  cell = made.cell(blt, 0.5, 0)
  assert cell.name == 'blt_1_for_b_2-epsilon2-rate0.5-seed0'
  assert cell.folder == tmp_path / 'cells' / cell.name and cell.num_rounds == 8
  assert cell.strategy.family == 'blt'
  run_of = dict(num_rounds=8, timer_rounds=4, delta=1e-5, seed=0)
  assert cell.arguments == {'folder': cell.folder, **run_of}
  assert cell.noise_multiplier == made.noises[blt].noise_multiplier
  without = made.cell(silent, 0.5, 0)
  assert (without.strategy, without.noise_multiplier) == (identity.Identity(), 0.0)


def test_a_folder_keeps_to_its_study(tmp_path):
  text = json.dumps(dataclasses.asdict(design_lib.parse(STUDY)))
  (tmp_path / 'study.json').write_text(text)
  more = design_lib.parse({**STUDY, 'seeds': [0, 1], 'epsilons': [2, 4]})
  folders.check(more, tmp_path)
  for changes, words in (
    ({'flags': ['--batch_size=3']}, 'differs in --batch_size;'),
    ({'mechanisms': ['identity', {'mechanism': 'blt:1', 'label': 'identity2'}]}, None),
    ({'mechanisms': [{'mechanism': 'blt:1', 'label': 'identity'}]}, 'setting identity 2.0'),
  ):
    other = design_lib.parse({**STUDY, **changes})
    with contextlib.nullcontext() if words is None else pytest.raises(ValueError, match=words):
      folders.check(other, tmp_path)
  (tmp_path / 'study.json').unlink()
  (tmp_path / 'thesis.txt').write_text('precious')
  with pytest.raises(ValueError, match='holds other files'):
    folders.check(more, tmp_path)


def test_the_reason_of_a_failed_cell(tmp_path):
  log = tmp_path / 'log'
  log.write_text('round 0/3\ntrain: --embedding=0 must be at least 1\nand more\n')
  assert processes._reason(2, log) == '--embedding=0 must be at least 1'
  log.write_text('round 0/3\n\nIllegal instruction\n')
  assert processes._reason(1, log) == 'Illegal instruction'
  assert processes._reason(-9, log) == 'ended by signal 9'
  assert processes._reason(3, tmp_path / 'none') == 'exit status 3'


@pytest.mark.parametrize('longer, method', [(0, 'forkserver'), (1, 'spawn')])
def test_a_long_temporary_folder_has_no_room_for_a_socket(longer, method, monkeypatch):
  with tempfile.TemporaryDirectory(dir='/tmp') as short:
    folder = pathlib.Path(short)
    folder /= 'x' * (processes._LONGEST_FOLDER + longer - len(f'{folder}/'))
    path = folder / 'pymp-12345678' / 'listener-12345678'
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(tempfile, 'tempdir', str(folder))
    assert processes.start_method() == method
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
      bound = contextlib.nullcontext() if method == 'forkserver' else pytest.raises(OSError)
      with bound:
        listener.bind(str(path))


def test_progress_says_how_long_is_left():
  lines = []
  progress = runner.Progress(total=4, jobs=2, say=lines.append, done=1)
  progress.ended('a cell', 30.0)
  assert lines == ['2/4 cells | a cell | 0:00:30 left']


def test_the_estimate_says_how_long_and_what_to_cut():
  design = design_lib.parse({**STUDY, 'seeds': [0, 1], 'server_learning_rates': [0.5, 1.0]})
  found = estimate.Estimate(
    design=design,
    num_rounds=8,
    num_evaluations=2,
    start_seconds=10.0,
    round_seconds=5.0,
    evaluation_seconds=25.0,
    jobs=2,
  )
  assert found.seconds(9) == 5 * 100.0  # The last job has no second cell.
  text = found.text()
  assert text.startswith('9 runs of 8 rounds, 5 s a round, 2 at a time: about 0:08:20')
  assert '; 0:15:00 with 9 more' in text.splitlines()[0]
  assert 'fewer seeds (2 now), learning rates (up to 2 a setting) or settings (3)' in text


def test_a_grid_is_extended_until_its_best_rate_is_inside(tmp_path):
  changes = {'mechanisms': ['identity'], 'without_noise': False, 'seeds': [0, 1]}
  started, lines = [], []

  def train(cell):
    started.append(cell.name)
    return summary(1.0 - abs(cell.server_learning_rate - 0.125))  # The third beyond is worse.

  def study():
    design = design_lib.parse({**STUDY, **changes, 'server_learning_rates': [0.5, 1.0]})
    return run.run(design, task(train), tmp_path, jobs=None, say=lines.append)

  found = study()
  rates = [0.5, 1.0, 0.25, 0.125, 0.0625]
  names = [f'identity-epsilon2-rate{rate:g}-seed0' for rate in rates]
  assert started == [*names, 'identity-epsilon2-rate0.125-seed1']
  (row,) = found.rows
  assert (row.server_learning_rate, row.at_edge, len(row.tests)) == (0.125, False, 2)
  assert 'the best rate is at an end of its grid, so further ones: identity 0.25' in lines
  # A study that is resumed, begun without the field or only read, has the same cells.
  assert study().results == found.results and len(started) == 6
  before = dataclasses.asdict(found.design)
  del before['extend_rates']
  (tmp_path / 'study.json').write_text(json.dumps(before))
  assert run.gather(found.design, task(train), tmp_path).results == found.results


def test_gathering_searches_for_no_strategy(tmp_path):
  with pytest.raises(ValueError, match='strategies/identity-n8-b4.json is missing; run the study'):
    run.gather(design_lib.parse(STUDY), task(), tmp_path)
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  'content, status, reason',
  [
    (summary(0.5), results.DONE, ''),
    (summary(0.5, num_rounds=8, min_sep=4, max_participations=2), results.DONE, ''),
    (summary(0.5, num_rounds=3, min_sep=3, max_participations=1), results.DONE, ''),
    (summary(0.5, num_rounds=9), results.FAILED, 'num_rounds=9, and .* at most 8'),
    (summary(0.5, num_rounds=8, min_sep=3), results.FAILED, 'min_sep=3, and .* at least 4'),
    (summary(0.5, max_participations=3), results.FAILED, 'max_participations=3, .* at most 2'),
    (summary(0.5, delta=1e-3), results.FAILED, 'delta=0.001, and the study has delta=1e-05'),
    (summary(0.5, noise_multiplier=0.1), results.FAILED, 'noise_multiplier=0.1, and .* at least'),
    (summary(float('nan')), results.DIVERGED, 'not finite'),
    (summary(0.5, diverged_since_round=3), results.DIVERGED, 'not finite from round 3 on'),
  ],
)
def test_a_run_counts_only_with_the_noise_and_participation_of_its_cell(
  tmp_path, content, status, reason
):
  made, _ = prepared(tmp_path, mechanisms=['identity'])
  cell = made.cell(made.design.settings[0], 0.5, 0)
  progress = runner.Progress(total=1, jobs=1, say=print)
  assert not runner.run([cell], task(lambda cell: content), jobs=None, progress=progress)
  found = results.read(cell)
  assert found.status == status and (found.test == 0.5) == (status == results.DONE)
  assert re.search(reason, found.reason)


def test_failures_are_reasons_and_mistakes_end_a_study(tmp_path):
  made, _ = prepared(tmp_path, mechanisms=['identity'], seeds=[0, 1])
  both = list(made.tuning())
  said = []

  def train(cell):
    if cell.setting.mechanism is None:
      raise RuntimeError('round 3 failed')
    return summary(0.5)

  progress = runner.Progress(total=2, jobs=1, say=said.append)
  failed = runner.run(both, task(train), jobs=None, progress=progress)
  assert failed == {both[1].name: 'round 3 failed'}
  assert results.read(both[1], failed).status == results.FAILED
  assert results.read(both[1]).status == results.WAITING
  for wrong in (None, 0.5, {'test': {'accuracy': 1.0}}):
    unfit = task(functools.partial(lambda wrong, cell: wrong, wrong))
    with pytest.raises(ValueError, match='train must return a mapping such as .*accuracy'):
      runner.run(both, unfit, jobs=None, progress=progress)
  percent = task(lambda cell: {'validation': {'accuracy': 0.5}, 'test': {'accuracy': 50.0}})
  with pytest.raises(ValueError, match='test accuracy must be between 0 and 1, got 50'):
    runner.run(both, percent, jobs=None, progress=progress)
