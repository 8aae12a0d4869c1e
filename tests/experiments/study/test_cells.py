"""Strategies and noise of a study's settings."""

import contextlib
import dataclasses
import json
import pathlib
import socket
import tempfile
import types

import pytest

from experiments.stackoverflow import datasets, machines, setting
from experiments.stackoverflow.study import (
  cells,
  command,
  estimate,
  results,
  runner,
  schemas,
  study_file,
  table,
)
from fl_dpftrl import accounting
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.strategies import files
from tests import oracle

STUDY = {
  'title': 'A study',
  'flags': [
    '--report_goal=5',
    '--deployment_report_goal=50',
    '--num_rounds=8',
    '--timer_rounds=4',
    '--delta=1e-5',
  ],
  'mechanisms': ['identity', {'mechanism': 'blt:1', 'made_for_min_sep': 2}],
  'epsilons': [2],
  'epsilon_of': 'deployment',
  'server_learning_rates': [0.5],
  'seeds': [0],
}


def prepared(tmp_path, **changes):
  study = study_file.parse({**STUDY, **changes})
  lines = []
  return study, cells.prepare(study, tmp_path, lines.append), lines


def test_noise_is_calibrated_for_the_deployment(tmp_path):
  study, noises, lines = prepared(tmp_path)
  assert lines == ['optimising blt:1 for b=2 for n=8, b=2']
  for chosen in study.settings[:2]:
    noise = noises[chosen]
    schema = setting.enforced_schema(cells.base_flags(study, chosen))
    assert (schema.min_sep, schema.participations) == (4, 2)
    guarantee = accounting.account(
      files.load_strategy(noise.strategy),
      schema,
      noise_multiplier=10 * noise.noise_multiplier,
      delta=1e-5,
    )
    assert 1.999 < guarantee.epsilon <= 2.0
  assert noises[study.settings[-1]] is None
  identity = noises[study.settings[0]]
  assert identity.max == pytest.approx(identity.noise_multiplier / 5 * 8**0.5)
  assert prepared(tmp_path)[2] == []  # Strategies are kept.


def test_noise_may_be_given_as_printed(tmp_path):
  entries = [
    {'mechanism': 'identity', 'epsilon': 1, 'server_learning_rates': [1], **noise}
    for noise in ({'effective_noise_multiplier': 3}, {'noise_multiplier': 4, 'label': 'as stored'})
  ]
  study = study_file.parse({**{k: STUDY[k] for k in ('title', 'flags', 'seeds')}, 'cells': entries})
  noises = cells.prepare(study, tmp_path, print)
  assert [noises[s].noise_multiplier for s in study.settings] == [
    pytest.approx(3 * 2**0.5),
    pytest.approx(4.0),
  ]


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'mechanisms': ['bltt']}, "bltt: 'bltt' is neither a strategy file"),
    ({'flags': ['--report_goal=5', '--num_rounds=8']}, 'needs --deployment_report_goal'),
    ({'flags': ['--report_goal=0', '--num_rounds=8']}, '--report_goal=0'),
  ],
)
def test_settings_that_cannot_be_prepared_are_named(tmp_path, changes, words):
  with pytest.raises(ValueError, match=words):
    prepared(tmp_path, **changes)


def test_a_mechanism_that_there_is_not_costs_no_training(tmp_path, monkeypatch):
  monkeypatch.setattr(estimate, 'measure', lambda *_, **__: pytest.fail('trained'))
  path = tmp_path / 'study.json'
  path.write_text(json.dumps({**STUDY, 'mechanisms': ['identity', 'bandmf']}))
  with pytest.raises(ValueError, match="bandmf: 'bandmf' is neither a strategy file nor"):
    command.run(path, tmp_path / 'new', jobs=1, say=print, only_estimate=True)
  assert not (tmp_path / 'new').exists()


def test_timers_in_hours_are_calibrated_for_the_simulated_cohorts(tmp_path):
  flags = ['--dataset=synthetic', '--report_goal=10', '--num_rounds=40', '--timer_hours=1.3']
  changes = {'flags': flags, 'epsilon_of': 'run', 'epsilons': [1], 'without_noise': False}
  study, noises, _ = prepared(tmp_path, **changes, seeds=[0, 1], mechanisms=['identity', 'blt:1'])
  hparams = cells.base_flags(study, study.settings[0])
  seen = []
  for seed in study.seeds:
    of_seed = dataclasses.replace(hparams, seed=seed)
    num_clients = len(datasets.load_for(of_seed).train_clients)
    rounds = setting.scenario(of_seed, num_clients).simulation().rounds()
    log = [(t, i) for t, c in zip(range(40), rounds) for i in c.device_ids]
    seen.append(oracle.schema_of(*zip(*log), 40))
  assert 1 < seen[0].min_sep < 40 and seen[0] != seen[1]
  assert schemas.schema(hparams, study.seeds) == participation.MinSep(
    num_rounds=40,
    min_sep=min(s.min_sep for s in seen),
    max_participations=max(s.participations for s in seen),
  )
  for noise in noises.values():
    strategy = files.load_strategy(noise.strategy)
    proven = [
      accounting.account(strategy, s, noise_multiplier=noise.noise_multiplier, delta=1e-6).epsilon
      for s in seen
    ]
    assert all(epsilon <= 1.0 for epsilon in proven)
  assert 'A timer in hours enforces no min-sep' in table.notes(study)[0]
  assert not any('hours' in note for note in table.notes(study_file.parse(STUDY)))


def test_a_cell_is_an_ordinary_run(tmp_path):
  study, noises, _ = prepared(tmp_path)
  cell = cells.cell(study, study.settings[1], noises[study.settings[1]], 0.5, 0)
  assert cell.name == 'blt_1_for_b_2-epsilon2-rate0.5-seed0'
  arguments = cell.arguments(tmp_path)
  assert arguments[: len(study.flags)] == list(study.flags)
  assert f'--output_dir={tmp_path}/cells/{cell.name}' in arguments and '--resume' in arguments


def test_a_folder_keeps_to_its_study(tmp_path):
  study, _, _ = prepared(tmp_path)
  text = json.dumps(dataclasses.asdict(study))
  (tmp_path / 'study.json').write_text(text)
  more = study_file.parse({**STUDY, 'seeds': [0, 1], 'epsilons': [2, 4]})
  command._check_folder(more, tmp_path)
  for changes, words in (
    ({'flags': [*STUDY['flags'], '--batch_size=3']}, 'flags'),
    ({'mechanisms': ['identity', {'mechanism': 'blt:1', 'label': 'identity2'}]}, None),
    ({'mechanisms': [{'mechanism': 'blt:1', 'label': 'identity'}]}, 'setting identity 2.0'),
  ):
    other = study_file.parse({**STUDY, **changes})
    if words is None:
      command._check_folder(other, tmp_path)
      continue
    with pytest.raises(ValueError, match=words):
      command._check_folder(other, tmp_path)
  (tmp_path / 'study.json').unlink()
  (tmp_path / 'thesis.txt').write_text('precious')
  with pytest.raises(ValueError, match='holds other files'):
    command._check_folder(study, tmp_path)


def test_the_reason_of_a_failed_cell(tmp_path):
  log = tmp_path / 'log'
  log.write_text('round 0/3\ntrain: --embedding=0 must be at least 1\nand more\n')
  assert runner._reason(2, log) == '--embedding=0 must be at least 1'
  log.write_text('round 0/3\n\nIllegal instruction\n')
  assert runner._reason(1, log) == 'Illegal instruction'
  assert runner._reason(-9, log) == 'ended by signal 9'
  assert runner._reason(3, tmp_path / 'none') == 'exit status 3'


@pytest.mark.parametrize('longer, method', [(0, 'forkserver'), (1, 'spawn')])
def test_a_long_temporary_folder_has_no_room_for_a_socket(longer, method, monkeypatch):
  with tempfile.TemporaryDirectory(dir='/tmp') as short:
    folder = pathlib.Path(short)
    folder /= 'x' * (runner._LONGEST_FOLDER + longer - len(f'{folder}/'))
    path = folder / 'pymp-12345678' / 'listener-12345678'
    path.parent.mkdir(parents=True)
    monkeypatch.setattr(tempfile, 'tempdir', str(folder))
    assert runner.start_method() == method
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as listener:
      bound = contextlib.nullcontext() if method == 'forkserver' else pytest.raises(OSError)
      with bound:
        listener.bind(str(path))


def test_progress_says_how_long_is_left():
  lines = []
  progress = runner.Progress(total=4, jobs=2, say=lines.append, done=1)
  progress.ended('a cell', 30.0)
  assert lines == ['2/4 cells | a cell | 0:00:30 left']


def test_finished_cells_are_not_run_again(tmp_path):
  cell = types.SimpleNamespace(name='cell')
  (tmp_path / 'cells' / 'cell').mkdir(parents=True)
  (tmp_path / 'cells' / 'cell' / 'summary.json').write_text('{}')
  progress = runner.Progress(total=1, jobs=1, say=print)
  assert (
    runner.run(
      [cell], tmp_path, jobs=1, num_threads=1, machines=machines.Machines(), progress=progress
    )
    == {}
  )
  assert progress.done == 1


def test_the_estimate_says_how_long_and_what_to_cut():
  study = study_file.parse({**STUDY, 'seeds': [0, 1], 'server_learning_rates': [0.5, 1.0]})
  found = estimate.Estimate(
    num_cells=estimate.num_cells(study),
    num_rounds=8,
    num_evaluations=2,
    start_seconds=10.0,
    round_seconds=5.0,
    evaluation_seconds=25.0,
    jobs=2,
  )
  assert found.num_cells == 3 * (2 + 1)
  assert found.seconds == 5 * 100.0  # The last job has no second cell.
  text = found.text(study)
  assert text.startswith('9 runs of 8 rounds, 5 s a round, 2 at a time: about 0:08:20')
  assert '; 0:15:00 with 9 more' in text.splitlines()[0]
  assert 'fewer seeds (2 now), learning rates (up to 2 a setting) or settings (3)' in text


def test_a_grid_is_extended_until_its_best_rate_is_inside(tmp_path, monkeypatch):
  changes = {'mechanisms': ['identity'], 'without_noise': False, 'seeds': [0, 1]}
  study, noises, _ = prepared(tmp_path, **changes, server_learning_rates=[0.5, 1.0])
  started, lines = [], []

  def run(waiting, folder, *, progress, **_):
    for cell in waiting:
      place = folder / 'cells' / cell.name
      if not place.exists():
        started.append(cell.name)
        place.mkdir(parents=True)
        accuracy = 1.0 - abs(cell.server_learning_rate - 0.125)  # The third rate beyond is worse.
        measured = {'accuracy': accuracy}
        summary = {'test': measured, 'validation': measured, 'seconds': 1.0}
        (place / 'summary.json').write_text(json.dumps({**summary, 'diverged_since_round': None}))
      progress.done += 1
    return {}

  monkeypatch.setattr(runner, 'run', run)
  found = command._train(study, noises, tmp_path, 1, machines.Machines(), lines.append)
  rates = [0.5, 1.0, 0.25, 0.125, 0.0625]
  names = [f'identity-epsilon2-rate{rate:g}-seed0' for rate in rates]
  assert started == [*names, 'identity-epsilon2-rate0.125-seed1']
  (row,) = results.rows(study, noises, found)
  assert (row.server_learning_rate, row.at_edge, len(row.tests)) == (0.125, False, 2)
  assert lines[0] == 'the best rate is at an end of its grid, so further ones: identity 0.25'
  # A study that is resumed, begun without the field or only read, has the same cells.
  assert command._train(study, noises, tmp_path, 1, machines.Machines(), print) == found
  assert len(started) == 6
  before = dataclasses.asdict(study)
  del before['extend_rates']
  (tmp_path / 'study.json').write_text(json.dumps(before))
  assert command.gather(study, tmp_path) == (noises, found)


def test_gathering_searches_for_no_strategy(tmp_path):
  with pytest.raises(ValueError, match='strategies/identity-n8-b4.json is missing; run the study'):
    command.gather(study_file.parse(STUDY), tmp_path)
  assert not list(tmp_path.iterdir())
