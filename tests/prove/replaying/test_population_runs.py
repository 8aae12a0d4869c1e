"""Statements over all runs of a population, by its ledger and by the folders of its runs."""

import contextlib
import json
import pathlib
import shutil
import sqlite3

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.commands import dispatch
from fl_dpftrl.logs import population_ledger, refusals
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.participation.counts import population_losses
from fl_dpftrl.participation.rules import per_units
from fl_dpftrl.prove.replaying import certificates, population_runs

_IDS = [f'phone-{i}' for i in range(6)]


def _claim(noise_multiplier=6.0, **more) -> dpftrl.Claim:
  options = dict(strategy='identity', participation=dpftrl.MinSep(50, 1, 50)) | more
  return dpftrl.Claim(noise_multiplier=noise_multiplier, **options)


def _rounds(run, num_rounds, ids=_IDS):
  for _ in range(num_rounds):
    with run.round(ids) as round_:
      round_.released()


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6)
  blt = _claim(30.0, strategy='blt-b100')
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as one:
    with dpftrl.Run(tmp_path / 'run2', blt, population=fleet) as two:
      _rounds(one, 3)
      _rounds(two, 2, _IDS[:3])
      _rounds(one, 2, _IDS[2:])
  return tmp_path / 'fleet'


def test_a_write_that_a_crash_cut_short_is_undone_in_the_copy_that_is_read(folder):
  path, before = folder / population_ledger.NAME, population_ledger.read(folder)
  journal, kept = path.with_name(f'{path.name}-journal'), folder / 'kept'
  with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
    database.execute('BEGIN')
    database.execute("UPDATE records SET content = ''")
    kept.hardlink_to(journal)
    database.execute('COMMIT')
  kept.rename(journal)  # As if the process had ended just before it deletes its journal.
  assert population_ledger.read(folder) == before and journal.exists()


def test_one_statement_over_all_runs(tmp_path, folder):
  statement = dpftrl.replay(folder, delta=1e-6)
  assert statement.num_rounds == 7 and len(statement.runs) == 2
  declared = statement.declared
  assert declared.holds and declared.guarantee.epsilon() == pytest.approx(4.0, abs=1e-9)
  assert declared.guarantee.epsilon() <= 4.0
  of_runs = dpftrl.replay([tmp_path / 'run1', tmp_path / 'run2'], delta=1e-6)
  assert statement.observed.epsilon() == of_runs.observed.epsilon()
  figures = (statement.observed, declared.guarantee, of_runs.declared.guarantee)
  assert sorted(figures, key=lambda each: each.epsilon()) == list(figures)
  assert statement.quoted == 'ε = 4 at δ = 1e-06, of any number of runs and rounds'
  words = ' '.join(statement.assumptions)
  assert 'declared: the budgets are those of the ledger' in words
  assert 'all runs that draw on the budget are in the ledger' in words
  assert 'drew on the budget of a population' not in words


def test_a_run_alone_says_that_others_draw_on_its_budget(tmp_path, folder):
  statement = dpftrl.replay(tmp_path / 'run1', delta=1e-6)
  assert any('drew on the budget of a population' in each for each in statement.assumptions)


def test_other_deltas_and_groups(folder):
  mu = 1.0 / gaussian.effective_noise_multiplier(4.0, 1e-6)
  statement = dpftrl.replay(folder, delta=[1e-6, 1e-9], adjacency='replace_one', group_size=2)
  guarantee = statement.declared.guarantee
  assert guarantee.mu == pytest.approx(4.0 * mu, rel=1e-9)
  assert guarantee.epsilon(1e-9) == pytest.approx(gaussian.epsilon(0.25 / mu, 1e-9), rel=1e-9)


def test_a_run_whose_folder_is_missing_counts_by_the_ledger(tmp_path, folder):
  before = dpftrl.replay(folder, delta=1e-6)
  shutil.rmtree(tmp_path / 'run2')
  statement = dpftrl.replay(folder, delta=1e-6)
  assert statement.observed == before.observed
  assert 'run 2 (run2): its rounds are those of the ledger' in statement.warnings[0]


def test_runs_are_found_where_both_were_moved(tmp_path, folder):
  moved = shutil.move(tmp_path, tmp_path.with_name('moved'))
  assert not dpftrl.replay(moved / folder.name, delta=1e-6).warnings
  shutil.rmtree(moved / 'run1')
  (warning,) = dpftrl.replay(moved / folder.name, delta=1e-6).warnings
  assert 'run 1 (run1)' in warning and str(moved) in warning


@pytest.mark.parametrize('place', ['before', 'alone', 'with its runs'])
def test_logs_are_compared_with_the_ledger(place, tmp_path, folder):
  copy = tmp_path / place / ('' if place == 'before' else folder.name)
  shutil.copytree(folder, copy)
  if place == 'with its runs':
    shutil.copytree(tmp_path / 'run1', tmp_path / place / 'run1')
    shutil.copytree(tmp_path / 'run2', tmp_path / place / 'run2')
  fleet = dpftrl.Population(folder)
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 1)
  assert dpftrl.replay(folder, delta=1e-6).num_rounds == 8
  with pytest.raises(refusals.LogError, match='earlier moment'):
    dpftrl.replay(copy, delta=1e-6)


def test_a_loop_of_links_is_a_missing_folder(tmp_path, folder):
  shutil.rmtree(tmp_path / 'run1')
  (tmp_path / 'run1').symlink_to(tmp_path / 'run1')
  (warning,) = dpftrl.replay(folder, delta=1e-6).warnings
  assert 'run 1 (run1)' in warning


def test_while_runs_are_live(tmp_path, folder):
  fleet = dpftrl.Population(folder)
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 1)
    assert dpftrl.replay(folder, delta=1e-6).num_rounds == 8
    _rounds(run, 1)
  assert dpftrl.replay(folder, delta=1e-6).num_rounds == 9


def test_classes_have_figures_by_name(tmp_path):
  budgets = {'a': 1.0, 'b': 4.0}
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=budgets, delta=1e-6, default='a')
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    _rounds(run, 1)
  statement = dpftrl.replay(tmp_path / 'fleet', delta=1e-6)
  assert statement.declared.guarantee.epsilon() == pytest.approx(4.0)
  said = 'declared: a device that was always of class a has ε = 1 at δ = 1e-06'
  assert said in statement.assumptions
  for terms in ({'adjacency': 'replace_one'}, {'group_size': 2}):  # Of which ε is larger.
    sentences = dpftrl.replay(tmp_path / 'fleet', delta=1e-6, **terms).assumptions
    assert f'{said} for zero-out of it alone, and more here' in sentences
  document = statement.to_json()['declared']
  assert document['budgets'] == {'a': 1.0, 'b': 4.0}


def test_a_ledger_that_passes_a_budget_does_not_hold(tmp_path, folder, monkeypatch):
  fleet = dpftrl.Population(folder)
  admits_all = lambda self, place, ids, rows=1: np.full(len(ids), '')
  with monkeypatch.context() as patched:
    patched.setattr(population_losses.PopulationLosses, 'reasons', admits_all)
    with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
      _rounds(run, 40)
  statement = dpftrl.replay(folder, delta=1e-6)
  assert not statement.declared.holds
  assert 'passes the budget of a device' in statement.declared.reason
  assert any('BUDGET OF THE POPULATION DOES NOT HOLD' in each for each in statement.assumptions)
  assert certificates.certified(statement).document is None  # None takes a budget that was passed.


def test_people(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=8.0, delta=1e-6, unit='person')
  schema = dpftrl.PerUnit(dpftrl.MinSep(40, 1, 40), max_rows=2)
  units = tmp_path / 'units.csv'
  units.write_text('device_id,unit_id,from_round\na1,a,0\na2,a,0\nb1,b,0\n')
  with dpftrl.Run(
    tmp_path / 'run1', _claim(participation=schema), population=fleet, units=units
  ) as run:
    _rounds(run, 3, ['a1', 'a2', 'b1'])
  with dpftrl.Run(
    tmp_path / 'run2', _claim(participation=schema), population=fleet, units=units
  ) as run:
    _rounds(run, 1, [])  # Nobody is in any of its rounds.
  statement = dpftrl.replay(population_runs.opened(tmp_path / 'fleet', [units]), delta=1e-6)
  assert statement.unit == 'person' and statement.num_devices == 2 and statement.num_rounds == 4
  assert statement.declared.holds and statement.observed.mu < statement.declared.guarantee.mu


def test_the_command(tmp_path, folder, capsys):
  for name in ('run3', 'run4'):  # With the same cohorts.
    with dpftrl.Run(tmp_path / name, _claim(), population=dpftrl.Population(folder)) as run:
      _rounds(run, 1)
  dispatch.run(['replay', str(folder), '--delta=1e-6', '--json'])
  output = capsys.readouterr()
  result = json.loads(output.out)
  assert 'byte for byte' not in output.err
  assert result['declared']['budgets'] == {'everybody': 4.0} and result['declared']['holds']
  page, public = tmp_path / 'privacy.html', tmp_path / 'public.html'
  dispatch.run(
    ['replay', str(folder), '--delta=1e-6', f'--report={page}', f'--public_report={public}']
  )
  assert 'any number of runs and rounds' in capsys.readouterr().out
  assert 'any number of runs and rounds' in page.read_text()
  assert 'replay POPULATION' in public.read_text()
  assert not any(device in public.read_text() for device in _IDS)
  for words in (['--strategy=identity'], [str(tmp_path / 'run1')], ['--sites=disjoint']):
    with pytest.raises(SystemExit) as stopped:
      dispatch.run(['replay', str(folder), '--delta=1e-6', *words])
    assert stopped.value.code == 2


def test_every_record_is_needed(folder):
  records = population_ledger.read(folder)
  kinds = [record.kind for record in records]
  assert kinds == ['population', 'run', 'run', *['rounds'] * 7]


def test_evidence_is_verified_elsewhere(tmp_path, folder, capsys):
  evidence = tmp_path / 'evidence'
  dispatch.run(['replay', str(folder), '--delta=1e-6', f'--evidence={evidence}'])
  assert len(list(evidence.glob('*.json'))) == 4  # Two strategies, statement and certificate.
  for path in (folder, tmp_path / 'run1', tmp_path / 'run2'):
    shutil.rmtree(path)
  result = dpftrl.verify(evidence)
  assert result.passed, result.checks
  assert result.statement.declared.participation.epsilons == {'everybody': 4.0}
  capsys.readouterr()
  dispatch.run(['verify', str(evidence)])
  assert 'any number of runs and rounds' in capsys.readouterr().out


@pytest.mark.parametrize('change', ['ledger', 'strategy', 'statement', 'more'])
def test_evidence_that_was_changed_fails(tmp_path, folder, change):
  evidence = tmp_path / 'evidence'
  dpftrl.write_evidence(evidence, folder, delta=1e-6)
  path = {
    'ledger': evidence / population_ledger.NAME,
    'strategy': min(evidence.glob('[0-9a-f]*.json')),
    'statement': evidence / 'statement.json',
    'more': evidence / 'another',
  }[change]
  content = path.read_bytes() if path.exists() else b''
  if change == 'ledger':
    content = content.replace(b'phone-1', b'phone-9', 1)
  path.write_bytes(content + b' ' * (change != 'ledger'))
  result = dpftrl.verify(evidence)
  assert 'files' in result.failed and not result.passed
  assert ('statement' in result.failed) == (change in ('ledger', 'more'))


def _people(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=8.0, delta=1e-6, unit='person')
  schema = dpftrl.PerUnit(dpftrl.MinSep(40, 1, 40), max_rows=2)
  rows = ['a1,ann,0', 'a2,ann,0', 'b1,ben,0']
  for name, order, num_rounds in (('run1', rows, 2), ('run2', rows, 0), ('run3', rows[::-1], 2)):
    units = tmp_path / f'{name}.csv'
    units.write_text('\n'.join(['device_id,unit_id,from_round', *order, '']))
    with dpftrl.Run(
      tmp_path / name, _claim(participation=schema), population=fleet, units=units
    ) as run:
      _rounds(run, num_rounds, ['a1', 'a2', 'b1'])
  return fleet, [tmp_path / f'run{i}.csv' for i in (1, 2, 3)]


def test_people_are_charged_by_their_ids_in_runs_with_tables_of_other_orders(tmp_path):
  fleet, tables = _people(tmp_path)
  # Two rows of ann in each of four rounds.
  share = (4 * 4) ** 0.5 / 6.0 / fleet.claim.mu('everybody')
  assert fleet.status()['charged_share'] == pytest.approx(share, rel=1e-9)
  statement = dpftrl.replay(tmp_path / 'fleet', units=tables, delta=1e-6)
  with pytest.raises(ValueError, match='units is for a population'):
    dpftrl.replay(tmp_path / 'run1', units=tables, delta=1e-6)
  assert statement.declared.holds and statement.num_devices == 2
  assert statement.per_device.most_exposed == 'ann'
  evidence = tmp_path / 'evidence'
  dpftrl.write_evidence(evidence, population_runs.opened(tmp_path / 'fleet', tables), delta=1e-6)
  result = dpftrl.verify(evidence)
  assert result.passed, result.checks
  with pytest.raises(ValueError, match='one table, or one for each of 3 runs'):
    population_runs.opened(tmp_path / 'fleet', [*tables, tables[0]])


def test_owners_that_the_table_does_not_have_void_the_budget(tmp_path, monkeypatch):
  owned = per_units.UnitGate.owned
  halved = lambda *arguments: (owned(*arguments)[0], np.ones_like(owned(*arguments)[1]))
  with monkeypatch.context() as patched:
    patched.setattr(per_units.UnitGate, 'owned', halved)
    _, tables = _people(tmp_path)
  statement = dpftrl.replay(population_runs.opened(tmp_path / 'fleet', tables), delta=1e-6)
  assert not statement.declared.holds
  assert 'charged others than the owners' in statement.declared.reason


def test_a_log_beside_a_ledger_without_its_rounds_is_refused(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=4.0, delta=1e-6)
  with dpftrl.Run(tmp_path / 'run2', _claim(), population=fleet) as run:
    _rounds(run, 1)
  with dpftrl.Run(tmp_path / 'run1', _claim(), population=fleet) as run:
    copy = shutil.copytree(tmp_path / 'fleet', tmp_path / 'before')
    _rounds(run, 1)
  with pytest.raises(refusals.LogError, match='has 0 rounds of run 2 .run1.*earlier moment'):
    dpftrl.replay(copy, delta=1e-6)
