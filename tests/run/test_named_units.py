"""People and their devices under random names: either can be erased, and statements stay."""

import shutil

import numpy as np
import pyarrow as pa
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import pseudonyms, refusals, unit_tables
from fl_dpftrl.prove.replaying import population_runs
from fl_dpftrl.support.files import durable
from tests import made

_ROWS = (
  ('phone-1', 'u-ada', 0),
  ('tab-7', 'u-ada', 0),
  ('tab-7', 'u-ben', 0),
  ('phone-2', 'u-cleo', 0),
)
_DEVICES = ['phone-1', 'tab-7', 'phone-2']
_IDS = sorted({each for row in _ROWS for each in row[:2]})


@pytest.fixture
def fleet(tmp_path):
  return made.named_population(tmp_path, epsilon=4.0, delta=1e-6, unit='person')


def _table(rows=_ROWS) -> unit_tables.UnitTable:
  devices, owners, rounds = zip(*rows)
  return unit_tables.UnitTable('owners', pa.array(devices), pa.array(owners), np.array(rounds))


def _run(folder, fleet, rows=_ROWS, name='run1', inner=None):
  inner = dpftrl.MinSep(50, 1, 50) if inner is None else inner
  claim = made.claim(
    'identity', noise_multiplier=8.0, participation=dpftrl.PerUnit(inner, max_rows=2)
  )
  return dpftrl.Run(folder / name, claim, population=fleet, units=_table(rows))


def _away(round_) -> dict[str, str]:
  return {each.device_id: each.reason for each in round_.turned_away}


def _charged(fleet) -> list[float]:
  with fleet.exclusive():
    return fleet._state.losses.shares().tolist()


def _statement(folder, name='run1'):
  run = dpftrl.open_run(folder / name)
  return dpftrl.replay(run, delta=1e-6).to_json()


def test_files_hold_names_and_charges_are_those_of_ids(tmp_path, fleet):
  plain = dpftrl.Population(tmp_path / 'plain', epsilon=4.0, delta=1e-6, unit='person')
  for population, name in ((fleet, 'run1'), (plain, 'run2')):
    with _run(tmp_path, population, name=name) as run:
      for cohort in (_DEVICES, ['tab-7'], ['phone-2', 'phone-1']):
        with run.round(cohort) as round_:
          assert round_.device_ids.tolist() == cohort
  assert sorted(_charged(fleet)) == sorted(_charged(plain))
  shutil.rmtree(tmp_path / 'run2')
  shutil.rmtree(tmp_path / 'plain')
  for each in _IDS:
    assert made.holding(tmp_path, each) == ['names.db']


@pytest.mark.parametrize('erased', [['phone-1'], ['u-ada'], ['u-ada', 'phone-1', 'tab-7']])
@pytest.mark.parametrize('is_purged', [False, True])
def test_forgetting_leaves_no_byte_and_every_statement(tmp_path, fleet, erased, is_purged):
  inner = dpftrl.LossBudget(max_participations=20, min_sep=1)
  with _run(tmp_path, fleet, inner=inner) as run:
    for _ in range(2):
      with run.round(_DEVICES):
        pass
  tables = [tmp_path / 'run1' / 'units.parquet']
  stated = dpftrl.replay(tmp_path / 'fleet', units=tables, delta=1e-6).to_json()
  statement, table, charged = _statement(tmp_path), tables[0].read_bytes(), _charged(fleet)
  assert fleet.forget(erased) == len(erased)
  for each in _IDS:
    assert made.holding(tmp_path, each) == ([] if each in erased else ['names.db'])
  again = dpftrl.replay(tmp_path / 'fleet', delta=1e-6)
  assert (again.to_json(), _statement(tmp_path), _charged(fleet)) == (stated, statement, charged)
  rows = [row for row in _ROWS if not (is_purged and {*row[:2]} & {*erased})]
  for opened in (fleet, made.named_population(tmp_path)):
    with _run(tmp_path, opened, rows, inner=inner) as run:
      with run.round(_DEVICES) as round_:
        gone = [
          each for each in _DEVICES if each in erased or ('u-ada' in erased and each != 'phone-2')
        ]
        assert _away(round_) == dict.fromkeys(gone, 'withdrawn')
      assert all('withdrew' in str(each) for each in round_.turned_away)
    assert tables[0].read_bytes() == table
  if is_purged and 'tab-7' in erased:  # Else its other owner alone would be charged in a new run.
    with (
      _run(tmp_path, fleet, [_ROWS[2], _ROWS[3]], 'run2') as run,
      run.round(_DEVICES[1:]) as round_,
    ):
      assert _away(round_) == {'tab-7': 'withdrawn'}
  assert not [each for each in erased if made.holding(tmp_path, each)]


def test_evidence_after_forgetting_verifies(tmp_path, fleet):
  with _run(tmp_path, fleet) as run, run.round(_DEVICES):
    pass
  fleet.forget(['u-ada', 'phone-2'])
  opened = population_runs.opened(tmp_path / 'fleet')
  dpftrl.write_evidence(tmp_path / 'evidence', opened, delta=1e-6)
  result = dpftrl.verify(tmp_path / 'evidence')
  assert result.passed, str(result)
  assert not made.holding(tmp_path, 'u-ada') + made.holding(tmp_path, 'phone-2')
  assert made.holding(tmp_path, 'phone-1') == ['names.db']


def test_rows_are_appended_also_after_an_erasure(tmp_path, fleet):
  with _run(tmp_path, fleet) as run:
    with run.round(_DEVICES):
      pass
    run.extend_units(_table((*_ROWS, ('phone-9', 'u-ben', 1))))
    with run.round(['phone-9']):
      pass
    fleet.forget(['u-ada'])
    with pytest.raises(refusals.LogError, match='row 6: is of round 1, and was not in the table'):
      run.extend_units(_table((*_ROWS, ('phone-9', 'u-ben', 1), ('phone-10', 'u-dan', 1))))
    rows = (*_ROWS[2:], ('phone-9', 'u-ben', 1), ('phone-10', 'u-dan', 2))
    run.extend_units(_table(rows))
    with run.round(['phone-10', 'phone-9', 'tab-7', 'phone-1']) as round_:
      assert round_.device_ids.tolist() == ['phone-10', 'phone-9']
    with pytest.raises(
      refusals.LogError, match='lacks rows of .*units.parquet, or has them in ano'
    ):
      run.extend_units(_table(rows[1:]))
    with pytest.raises(refusals.LogError, match='lacks rows'):
      run.extend_units(_table((rows[1], rows[0], *rows[2:])))
  with (
    _run(tmp_path, made.named_population(tmp_path), rows) as run,
    run.round(['phone-10']) as round_,
  ):
    assert round_.device_ids.tolist() == ['phone-10']
  assert _statement(tmp_path)['num_rounds'] == 4


def test_a_new_device_of_an_erased_owner_takes_no_part(tmp_path, fleet):
  """Else its other owners alone would be charged for the data of the erased one."""
  with _run(tmp_path, fleet) as run:
    with run.round(_DEVICES):
      pass
    fleet.forget(['u-ada', 'u-eve'])
    rows = (('new-1', 'u-ada', 1), ('new-2', 'u-ada', 9), ('new-2', 'u-ben', 1))
    rows = (*_ROWS, *rows, ('new-2', 'u-eve', 2))
    for _ in range(2):  # The second time nothing is appended.
      run.extend_units(_table(rows))
      assert len(run.guard.units) == len(rows)
    for gone in (['new-1'], ['new-1', 'new-2'], ['new-1', 'new-2']):
      with run.round(['new-1', 'new-2', 'phone-2']) as round_:
        assert _away(round_) == dict.fromkeys(gone, 'withdrawn')
  assert _statement(tmp_path)['num_rounds'] == 4


def test_a_device_without_an_owner_is_named_by_its_place(tmp_path, fleet):
  with _run(tmp_path, fleet) as run:
    fleet.forget(['phone-1'])
    with pytest.raises(ValueError, match='device_ids: at 2, no person owns the device in round 0'):
      run.admissible(['phone-1', 'phone-2', 'unknown'])


def test_a_table_of_names_that_is_gone_is_refused(tmp_path, fleet):
  with _run(tmp_path, fleet) as run, run.round(_DEVICES):
    pass
  (tmp_path / 'run1' / 'units.parquet').unlink()
  with pytest.raises(refusals.LogError, match='units.parquet: is gone; put it back'):
    _run(tmp_path, fleet)
  fleet.forget(_IDS)
  with pytest.raises(refusals.LogError, match='owners: all of its ids were erased'):
    _run(tmp_path, fleet, name='run2')


def test_runs_share_the_budget_of_a_person(tmp_path, fleet):
  for name in ('run1', 'run2'):
    with _run(tmp_path, fleet, name=name) as run, run.round(['phone-1']):
      pass
  assert fleet.status()['charged_share'] == pytest.approx(
    np.sqrt(2.0) / 8.0 / fleet.claim.mu('everybody')
  )
  fleet.withdraw(['u-ada'])
  with _run(tmp_path, fleet) as run, run.round(_DEVICES) as round_:
    assert _away(round_) == {'phone-1': 'withdrawn', 'tab-7': 'withdrawn'}


def test_a_crash_at_any_write_of_a_table_goes_on(tmp_path):
  base = tmp_path / 'all'
  base.mkdir()
  with _run(base, made.named_population(base, epsilon=4.0, delta=1e-6, unit='person')) as run:
    with run.round(_DEVICES):
      pass
  made.named_population(base).forget(['phone-1'])
  charged = _charged(made.named_population(base))
  rows = (*_ROWS, ('phone-9', 'u-dan', 1))

  def act():
    with _run(base, made.named_population(base), rows) as run, run.round(['phone-9']):
      pass

  steps = (pseudonyms.Names, 'add'), (unit_tables.UnitTable, 'save'), (durable, 'sync_folder')
  for copy in made.copies_around(base, steps, act):
    fleet = made.named_population(copy, moved=True)
    if fleet.status()['num_rounds'] == 1:
      assert _charged(fleet) == charged
    with _run(copy, fleet, rows) as run, run.round(['phone-9', 'phone-2', 'phone-1']) as round_:
      assert round_.device_ids.tolist() == ['phone-9', 'phone-2']
    assert _statement(copy)['num_devices'] == 4
    assert not made.holding(copy, 'phone-1')


def test_rows_of_one_device_in_two_spellings_are_refused(tmp_path, fleet):
  rows = [('tab', 'u-ada', 0), ('100000', 'u-ada', 0), ('1e5', 'u-ada', 0)]
  with pytest.raises(
    refusals.LogError, match='owners: has device and unit of an earlier row, in a'
  ):
    _run(tmp_path, fleet, rows)


def test_hexadecimal_ids_of_people_of_several_classes_are_refused(tmp_path):
  budgets = dict(epsilon={'strict': 1.0, 'loose': 4.0}, default='strict', delta=1e-6)
  fleet = made.named_population(tmp_path, unit='person', **budgets)
  for row in (('1e3', 'u-ada', 0), ('phone', '1e3', 0)):
    with pytest.raises(refusals.LogError, match='owners, row 2: an id reads as a number and as he'):
      _run(tmp_path, fleet, [('tab', 'u-bob', 0), row])
