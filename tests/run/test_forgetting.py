"""Devices under random names: one can be erased, and every statement stays as it is."""

import contextlib
import decimal
import json
import random
import re
import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import population_ledger, pseudonyms, refusals
from fl_dpftrl.support.files import mark
from tests import made

_IDS = [f'phone-{i}' for i in range(5)]


@pytest.fixture
def fleet(tmp_path):
  return made.named_population(tmp_path, epsilon=4.0, delta=1e-6)


def _claim() -> dpftrl.Claim:
  return made.claim('identity', noise_multiplier=8.0, participation=dpftrl.MinSep(50, 1, 50))


def _run(tmp_path, fleet, name='run1'):
  return dpftrl.Run(tmp_path / name, _claim(), population=fleet)


def test_files_hold_names_only(tmp_path, fleet):
  with _run(tmp_path, fleet) as run:
    with run.round(_IDS) as round_:
      assert list(round_.device_ids) == _IDS
    assert made.holding(tmp_path, 'phone-3') == ['names.db']
  assert made.holding(tmp_path, 'phone-3') == ['names.db']
  with fleet.names._database() as database:  # Durable, and nothing of what is deleted stays.
    names = ('synchronous', 'trusted_schema', 'secure_delete', 'temp_store')
    assert [database.execute(f'PRAGMA {n}').fetchone()[0] for n in names] == [3, 0, 1, 2]


def test_a_start_that_was_killed_leaves_no_file(tmp_path):
  for folder in (tmp_path / 'names', tmp_path / 'fleet'):
    folder.mkdir()
    for end in ('', '-journal'):
      (folder / f'.writing-0123456789abcdef{end}').touch()
  made.named_population(tmp_path, epsilon=4.0, delta=1e-6)
  assert not [path.name for path in tmp_path.rglob('.writing-*')]


def test_a_device_keeps_its_name_and_its_charges(tmp_path, fleet):
  with _run(tmp_path, fleet) as run:
    for _ in range(3):
      with run.round(_IDS):
        pass
  again = made.named_population(tmp_path)
  with _run(tmp_path, again, 'run2') as run:
    with run.round([*_IDS, 'new']) as round_:
      assert round_.device_ids.tolist() == [*_IDS, 'new']
  statement = dpftrl.replay(tmp_path / 'run1', delta=1e-6)
  assert (statement.num_devices, statement.max_participations) == (5, 3)
  assert again.status()['charged_share'] == pytest.approx(2.0 / 8.0 / again.claim.mu('everybody'))


def test_forgetting_leaves_no_byte_and_every_statement(tmp_path, fleet):
  with _run(tmp_path, fleet) as run:
    for _ in range(2):
      with run.round(_IDS):
        pass
  before = dpftrl.replay(tmp_path / 'run1', delta=1e-6).to_json()
  share = fleet.status()['charged_share']
  assert fleet.forget(['phone-1', 'phone-3', 'unknown']) == 2
  assert not made.holding(tmp_path, 'phone-1') + made.holding(tmp_path, 'phone-3')
  assert made.holding(tmp_path, 'phone-2') == ['names.db']
  assert dpftrl.replay(tmp_path / 'run1', delta=1e-6).to_json() == before
  assert fleet.status()['charged_share'] == share
  for opened in (fleet, made.named_population(tmp_path)):
    with _run(tmp_path, opened) as run:
      with run.round([*_IDS, 'unknown']) as round_:
        assert list(round_.device_ids) == ['phone-0', 'phone-2', 'phone-4']
        assert [each.reason for each in round_.turned_away] == ['withdrawn'] * 3
  assert not made.holding(tmp_path, 'phone-1')


def test_another_spelling_is_no_other_device(tmp_path, fleet):
  with _run(tmp_path, fleet) as run:
    with run.round(['7', '8.0']) as round_:
      assert len(round_.device_ids) == 2
    with run.round(['+7', '007', '8']) as round_:
      assert round_.device_ids.tolist() == ['+7', '8']
    fleet.forget(['7'])
    with run.round(['7.0', '8', '+7', '7e+00', '.07E+2', '7.0e0', '700e-2']) as round_:
      assert round_.device_ids.tolist() == ['8']
  assert dpftrl.replay(tmp_path / 'run1', delta=1e-6).num_devices == 2


def test_an_older_table_of_names_is_refused(tmp_path, fleet):
  with _run(tmp_path, fleet) as run:
    with run.round(_IDS[:2]):
      pass
    before_a_name = shutil.copy(tmp_path / 'names/names.db', tmp_path / 'before a name')
    with run.round(_IDS):
      pass
    before_erasure = shutil.copy(tmp_path / 'names/names.db', tmp_path / 'before erasure')
  fleet.forget(['phone-1'])
  for copy in (before_a_name, before_erasure):
    shutil.copy(copy, tmp_path / 'names/names.db')
    with pytest.raises(refusals.LogError, match='earlier moment'):
      fleet.status()
    with pytest.raises(refusals.LogError, match='earlier moment'):
      made.named_population(tmp_path)


def test_names_and_salt_are_those_of_before(tmp_path, fleet):
  with pytest.raises(ValueError, match='names and salt must be given, as before'):
    dpftrl.Population(tmp_path / 'fleet')
  (tmp_path / 'keys' / 'salt').write_bytes(b'x' * 32)
  with pytest.raises(ValueError, match='is another salt'):
    made.named_population(tmp_path)
  (tmp_path / 'keys' / 'salt').unlink()
  with pytest.raises(refusals.LogError, match='salt'):
    made.named_population(tmp_path)


def test_salt_lies_apart(tmp_path):
  with pytest.raises(ValueError, match='folders of their own'):
    dpftrl.Population(
      tmp_path / 'fleet', epsilon=1.0, delta=1e-6, names=tmp_path / 'names', salt=tmp_path / 'salt'
    )
  with pytest.raises(ValueError, match='together'):
    dpftrl.Population(tmp_path / 'fleet', epsilon=1.0, delta=1e-6, names=tmp_path / 'names')
  assert not (tmp_path / 'fleet').exists()


def test_a_population_without_names_forgets_nobody(tmp_path):
  fleet = dpftrl.Population(tmp_path / 'fleet', epsilon=1.0, delta=1e-6)
  with pytest.raises(ValueError, match='has no names'):
    fleet.forget(['a'])


def test_who_withdraws_or_has_a_class_has_a_name(tmp_path):
  fleet = made.named_population(tmp_path, epsilon={'a': 4.0, 'b': 0.3}, delta=1e-6, default='a')
  fleet.withdraw(['phone-1'])
  fleet.classify(['phone-2'], 'b')
  with _run(tmp_path, fleet) as run:
    with run.round(_IDS) as round_:
      assert {each.device_id: each.reason for each in round_.turned_away} == {
        'phone-1': 'withdrawn',
        'phone-2': 'population_life',
      }
  assert made.holding(tmp_path, 'phone-') == ['names.db']


def test_a_private_aggregator_has_ids_and_its_log_has_names(tmp_path, fleet):
  with dpftrl.PrivateAggregator(
    'identity',
    template=np.zeros(2),
    noise_multiplier=8.0,
    clip_norm=1.0,
    report_goal=2,
    participation=dpftrl.MinSep(9, 1, 9),
    folder=tmp_path / 'run1',
    population=fleet,
  ) as aggregator:
    with aggregator.round(['phone-1', 'phone-2']) as round_:
      for device_id in ('phone-1', 'phone-2'):
        round_.add(np.ones(2), device_id=device_id)
    assert round_.mean.shape == (2,)
  assert made.holding(tmp_path, 'phone-1') == ['names.db']


def test_the_command(tmp_path, fleet, capsys):
  from fl_dpftrl.commands import dispatch

  with _run(tmp_path, fleet) as run:
    with run.round(_IDS):
      pass
  (tmp_path / 'ids').write_text('phone-1\nphone-9\n')
  flags = [f'--names={tmp_path}/names/names.db', f'--salt={tmp_path}/keys/salt']
  dispatch.run(['forget', str(tmp_path / 'fleet'), *flags, f'--ids={tmp_path}/ids', '--json'])
  assert json.loads(capsys.readouterr().out) == {'num_ids': 2, 'num_erased': 1}
  assert not made.holding(tmp_path / 'names', 'phone-1')
  for folder, content, words in (
    ('fleet', b'\n', 'has no id'),
    ('fleet', 'ä'.encode('latin-1'), "--ids='.*ids' is no text in UTF-8"),
    ('run1', b'phone-2\n', "run1' is no folder of a population"),
  ):
    (tmp_path / 'ids').write_bytes(content)
    with pytest.raises(SystemExit):
      dispatch.run(['forget', str(tmp_path / folder), *flags, f'--ids={tmp_path}/ids'])
    assert re.search(words, capsys.readouterr().err)
  dispatch.run(['replay', str(tmp_path / 'run1'), '--delta=1e-6'])
  assert 'names, how ids are spelt is not known' in capsys.readouterr().out


def test_a_crash_between_any_two_writes_of_forgetting(tmp_path):
  """An erasure is whole or not begun: no id is erased and open, or closed and in the table."""
  base = tmp_path / 'all'
  base.mkdir()
  with _run(base, made.named_population(base, epsilon=4.0, delta=1e-6)) as run:
    with run.round(_IDS):
      pass
  share = made.named_population(base).status()['charged_share']
  steps = (
    (population_ledger.PopulationLedger, 'append'),
    (mark.MarkFile, 'write'),
    (pseudonyms.Names, 'erase'),
  )
  forget = lambda: made.named_population(base).forget(['phone-1'])
  copies = made.copies_around(base, steps, forget)
  erased = set()
  for copy in copies:
    fleet = made.named_population(copy, moved=True)
    assert fleet.status()['charged_share'] == share
    with _run(copy, fleet) as run, run.round(_IDS) as round_:
      is_erased = 'phone-1' not in round_.device_ids
    assert bool(made.holding(copy, 'phone-1')) != is_erased
    assert fleet.forget(['phone-1']) == (not is_erased)
    assert not made.holding(copy, 'phone-1')
    erased.add(is_erased)
  assert erased == {True, False}


def test_names_of_another_population_are_refused(tmp_path, fleet):
  with _run(tmp_path, fleet) as run, run.round(_IDS):
    pass
  fleet.forget(['phone-1'])
  place = {'names': tmp_path / 'n2' / 'names.db', 'salt': tmp_path / 'k2' / 'salt'}
  other = dpftrl.Population(tmp_path / 'other', epsilon=4.0, delta=1e-6, **place)
  other.withdraw([f'x{i}' for i in range(40)])
  with pytest.raises(ValueError, match='names and salt must be given, as before'):
    dpftrl.Population(tmp_path / 'fleet', **place)
  with pytest.raises(ValueError, match='is of another population'):
    dpftrl.Population(tmp_path / 'third', epsilon=4.0, delta=1e-6, **place)


def test_two_spellings_in_one_cohort_are_one_device(tmp_path, fleet):
  with _run(tmp_path, fleet) as run:
    with run.round(['7', '07', '7.0', '1e3', '1000', '0' * 30 + '7', '1E+0003']) as round_:
      assert round_.device_ids.tolist() == ['7', '1e3']
    fleet.forget(['7'])
    with run.round(['0' * 30 + '7', '7.' + '0' * 26, '-0', '0']) as round_:
      assert round_.device_ids.tolist() == ['-0']


@hypothesis.given(
  st.from_regex(r'[+-]?[0-9]{0,4}\.?[0-9]{0,4}([eE][+-]?0{0,2}[0-9]{1,4})?', fullmatch=True)
)
def test_numbers_have_one_key_each(text):
  key = pseudonyms.key(text)
  with contextlib.suppress(decimal.InvalidOperation), decimal.localcontext(prec=40_000):
    number = decimal.Decimal(text)  # Not such as '.' and 'e5'.
    assert decimal.Decimal(key) == number
    other = pseudonyms.key(format(number, 'f'))
    assert key == pseudonyms.key(key) == other


def test_two_spellings_in_several_runs_draw_on_one_budget(tmp_path, fleet):
  num_rounds = 0
  for ids in (['100000'], ['1e5'], ['1e+05'], ['100000.0']):
    claim = made.claim('identity', noise_multiplier=8.0, participation=dpftrl.MinSep(60, 1, 60))
    with dpftrl.Run(tmp_path / ids[0], claim, population=fleet) as run:
      while len(run.admissible(ids)):
        with run.round(ids) as round_:
          num_rounds += len(round_.device_ids)
  one = dpftrl.account(
    'identity', dpftrl.MinSep(60, 1, num_rounds), noise_multiplier=8.0, delta=1e-6
  )
  assert 3.8 < one.epsilon() <= 4.0


def test_an_id_that_may_be_hexadecimal_has_no_class_of_a_number(tmp_path):
  budgets = dict(epsilon={'strict': 1.0, 'loose': 4.0}, default='strict', delta=1e-6)
  fleet = made.named_population(tmp_path, **budgets)
  for change in (lambda ids: fleet.classify(ids, 'loose'), fleet.withdraw, fleet.forget):
    with pytest.raises(ValueError, match='units: one reads as a number and as hexadecimal digits'):
      change(['abc', '1e3'])
  fleet.classify(['1000'], 'loose')
  with _run(tmp_path, fleet) as run, run.round(['1e3', 'abc', '1000']) as round_:
    assert round_.device_ids.tolist() == ['abc', '1000']
    (away,) = round_.turned_away
  assert 'reads as a number and as hexadecimal digits' in str(away)


def test_split_pages_of_the_table_keep_no_copy_of_an_erased_id(tmp_path):
  """SQLite overwrites an entry that it deletes, but not the copies that moved entries left."""
  names = pseudonyms.Names(tmp_path / 'names' / 'names.db', tmp_path / 'salt', is_new=True)
  ids = [f'pppp{i:06d}q' for i in random.Random(4).sample(range(10**6), 1000)]
  names.named(ids)
  erased = sorted(ids[500:])
  for first in range(0, 500, 50):
    names.erase(erased[first : first + 50])
  content = names.path.read_bytes()
  assert not [each for each in erased if each.encode() in content]
  assert all(each.encode() in content for each in ids[:500])
  assert [path.name for path in names.path.parent.iterdir()] == ['names.db']
