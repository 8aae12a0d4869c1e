"""Marks of missing data are no device ids, in every reader; numbers have one notation in a log."""

import urllib.parse

import numpy as np
import pyarrow as pa
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import id_columns, id_spellings, layouts, ledgers, refusals
from fl_dpftrl.prove.replaying import opened_runs, replays
from tests import made
from tests.commands import lines
from tests.logs import files

IDS = ['d1', 'd2', 'd1', None, 'd3', 'd1']  # None: where the id is missing.
ROW = IDS.index(None) + 1


def delimited(by):
  return lambda ids: f'round{by}device_id\n' + ''.join(f'{t}{by}{d}\n' for t, d in enumerate(ids))


def columns(kind):
  return lambda ids: {'round': range(len(ids)), 'device_id': pa.array(ids, kind)}


LISTED = pa.list_(pa.string())
READERS = {
  'l.csv': delimited(','),
  'quoted.csv': lambda ids: delimited(',')([f'"{d}"' for d in ids]),
  'tabs.csv': delimited('\t'),
  'l.parquet': columns(pa.string()),
  'large.parquet': columns(pa.large_string()),
  'view.parquet': columns(pa.string_view()),
  'dictionary.parquet': lambda ids: (
    columns(pa.string())(ids) | {'device_id': pa.array(ids).dictionary_encode()}
  ),
  'lists.parquet': lambda ids: columns(LISTED)([['x', d] for d in ids]),
  'folders': None,
}


def log_of(folder, reader, ids):
  """Writes a log of a round for each id; of folders, the files are in the order of their names."""
  if reader != 'folders':
    return files.written(folder / reader, READERS[reader](ids))
  for t, device in enumerate(ids):
    name = urllib.parse.quote(device, safe='') or '__HIVE_DEFAULT_PARTITION__'
    files.written(folder / reader / f'round={t}' / f'device_id={name}' / 'l.csv', 'x\n7\n')
  return folder / reader


def with_id(device):
  return [device if d is None else d for d in IDS]


def epsilon(path, missing=None):
  run = opened_runs.open_run(
    path, 'tree_online', noise_multiplier=2.0, num_rounds=20, missing=missing
  )
  told = replays.replay(run, delta=1e-6)
  return told.observed.epsilon(), told.num_devices, told


@pytest.mark.parametrize('mark', [*id_columns.MISSING, ''])
@pytest.mark.parametrize('reader', READERS)
def test_a_mark_is_refused_by_its_row_unless_it_is_said_to_be_an_id(tmp_path, reader, mark):
  path = log_of(tmp_path / 'marked', reader, with_id(mark))
  with pytest.raises(refusals.LogError) as raised:
    epsilon(path)
  line = str(raised.value)
  row = 1 if reader == 'folders' else ROW
  assert f'row {row}: device_id is ' in line and len(line) <= 300
  if not mark:
    assert 'is empty' in line
    with pytest.raises(refusals.LogError, match='device_id is empty'):
      epsilon(path, missing='')
    return
  assert f'is a mark of missing data, {mark!r}; if it is an id, say which texts' in line
  plain = epsilon(log_of(tmp_path / 'plain', reader, with_id('d4')))
  for missing in ('', 'unknown,-1', ','.join(m for m in id_columns.MISSING if m != mark)):
    told = epsilon(path, missing)
    assert told[:2] == plain[:2]
    assert 'whoever replays said which texts mean a missing' in ' '.join(told[2].assumptions)


def test_whoever_replays_names_other_marks(tmp_path):
  texts = log_of(tmp_path, 'l.csv', with_id('unknown'))
  numbers = files.written(tmp_path / 'n.parquet', {'round': range(4), 'device_id': [1, 2, -1, 1]})
  assert epsilon(texts)[1] == 4 and epsilon(numbers)[1] == 3
  for path, row, shown in ((texts, ROW, "'unknown'"), (numbers, 3, '-1')):
    with pytest.raises(refusals.LogError, match=f'row {row}: device_id is a mark .*, {shown}; if'):
      epsilon(path, missing='-1,unknown')


@pytest.mark.parametrize('mark', id_columns.MISSING)
def test_what_writes_a_log_takes_no_mark(tmp_path, mark):
  with pytest.raises(ValueError, match='device_ids: at 1, device_id is a mark of missing data'):
    dpftrl.write_log(tmp_path / 'l.parquet', rounds=[0, 1], device_ids=['a', mark], num_rounds=2)
  with ledgers.LogWriter(tmp_path / 'l.parquet') as writer:
    with pytest.raises(ValueError, match='device_ids: at 0, device_id is a mark of missing data'):
      writer.append(0, [mark], 0)
    writer.append(0, ['a'], 0)


def test_text_with_a_short_id_at_its_end_is_read(tmp_path):
  ids = ['a', 'null-1', '<NA', 'N', 'NaNa', 'NULLs', 'nul', '\\', 'n', 'NA']
  assert [d for _, d in files.rows(log_of(tmp_path, 'l.parquet', ids))] == ids


@pytest.mark.slow
def test_evidence_and_commands_repeat_which_marks_there_were(tmp_path):
  log = log_of(tmp_path, 'l.csv', with_id('None'))
  given = [f'--log={log}', '--strategy=tree_online', '--noise_multiplier=2', '--delta=1e-6']
  given += ['--num_rounds=9']
  done = lines.run(['replay', *given])
  assert done.returncode == 2 and f'row {ROW}: device_id is a mark' in done.stderr
  assert len(done.stderr.splitlines()) == 1
  evidence, public = tmp_path / 'evidence', tmp_path / 'public.html'
  given += ['--missing=', f'--evidence={evidence}', f'--public_report={public}']
  assert lines.run(['replay', *given]).returncode == 0
  assert '--missing=' in public.read_text()
  assert lines.run(['verify', str(evidence)]).returncode == 0
  done = lines.run(['replay', *given[:5], '--missing=', f'--write_counts={tmp_path / "c.csv"}'])
  assert done.returncode == 2 and 'leave out --missing' in done.stderr


WRONG = {
  '1.0': 'reads as a float, and other ids are whole numbers',
  '1.': 'reads as a float', '.5': 'reads as a float', '1.5E3': 'reads as a float',
  '1e+05': 'reads as a float', '-2.0': 'reads as a float', '7e5': 'reads as a float',
  '01': 'has zeros or a sign before a number that is an id too',
  '0001': 'has zeros or a sign', '+1': 'has zeros or a sign', '-02': 'has zeros or a sign',
}  # fmt: skip


@pytest.mark.parametrize('wrong', WRONG)
@pytest.mark.parametrize('reader', READERS)
def test_a_number_in_two_notations_is_refused_by_its_row(tmp_path, reader, wrong):
  if reader.startswith('lists'):  # These have a device that is no number.
    wrong = wrong if wrong != '7e5' else '7.0e5'
  ids = ['1', '-2', '1', wrong, '30', '-2']
  path = log_of(tmp_path, reader, ids)
  with pytest.raises(refusals.LogError) as raised:
    epsilon(path)
  line = str(raised.value)
  place = {'folders': 1, 'lists.parquet': 8}.get(reader, 4)
  assert f'row {place}: device_id {WRONG.get(wrong, "reads as a float")}' in line
  assert repr(wrong) in line and len(line) <= 300
  assert epsilon(log_of(tmp_path / 'one', reader, ['1', '-2', '1', '2', '30', '-2']))


def of_ids(statement):
  return [warning for warning in statement.warnings if 'device ids' in warning]


def test_notations_of_two_shards_and_two_runs_are_compared(tmp_path):
  one, two = log_of(tmp_path, 'l.csv', ['1', '2']), log_of(tmp_path, 'tabs.csv', ['1.0', '2.0'])
  assert not of_ids(epsilon(two)[2]) and epsilon(two)[1] == 2
  with pytest.raises(refusals.LogError, match='tabs.csv, row 1: device_id reads as a float'):
    epsilon([one, two])
  opened = [
    opened_runs.open_run(p, 'tree_online', noise_multiplier=2.0, num_rounds=9) for p in (one, two)
  ]
  with pytest.raises(refusals.LogError, match='tabs.csv, row 1: device_id reads as a float'):
    replays.replay(opened, delta=1e-6)


@made.cases(
  'ids',
  ['1e5', 'abc', '5', '12'],  # hexadecimal
  ['1.0', '2.5', '1e3'],
  ['007', '08', '12'],
  ['1.2.3', '1', '2'],
  ['1,0', '1', '2-1', 'e', '+', '-'],
)
def test_ids_that_are_no_number_twice_are_read(tmp_path, ids):
  assert epsilon(log_of(tmp_path, 'l.parquet', ids))[1:2] == (len(ids),)


def test_ids_that_may_be_one_are_counted(tmp_path):
  ids = ['User', 'user', 'USER', '0user', 'é', 'É', 'x', '00ab', 'AB', 'u01', 'u1']
  told = epsilon(log_of(tmp_path, 'l.parquet', ids))[2]
  (warning,) = of_ids(told)
  assert warning.startswith('5 of 11 device ids would be one with another if letter case and')
  assert of_ids(epsilon(log_of(tmp_path, 'l.csv', ['user', 'é', 'x', 'ab', 'u01']))[2]) == []
  numbers = files.written(tmp_path / 'n.parquet', {'round': [0, 1], 'device_id': [1, 10]})
  assert of_ids(epsilon(numbers)[2]) == []


def test_drawn_ids_are_counted_as_one_by_one(monkeypatch):
  """Also where parts are short, and ids have up to three words of eight bytes."""
  monkeypatch.setattr(id_spellings, '_BLOCK', 7)
  rng = np.random.default_rng(0)
  for _ in range(200):
    size = rng.integers(1, 60)
    letters = rng.choice(['0', 'a', 'A', 'é', 'É', 'x-', '日'], (size, rng.integers(1, 20)))
    ids = sorted({''.join(row[: rng.integers(1, len(row) + 1)]) for row in letters})
    folded = {(d.lstrip('0') or '0').lower() for d in ids}
    counted, whole = id_spellings.Spellings(), sum(not d.strip('0') for d in ids)
    for part in np.array_split(ids, 3):
      counted.add(pa.array(part.tolist(), pa.string()))
    assert counted.mergeable == len(ids) - len(folded) - max(whole - 1, 0)
    assert counted.has_faults == (whole > 1)


def test_layouts_of_marks():
  parse = lambda text: layouts.parse(None, missing=text).missing
  assert parse(None) == id_columns.MISSING and parse('') == () and parse('a,,b') == ('a', 'b')
