"""One rule for device ids, in every format and in what is written."""

import re

import numpy as np
import pyarrow as pa
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import id_columns, ledgers, log_tables
from fl_dpftrl.run import guards
from tests import made
from tests.logs import files

GOOD = ['a', '1', '01', 'a b', 'dévice 1', '日本', 'x' * 1024, 'NA', "O'Neill"]
BAD = {
  **dict.fromkeys([' a', 'a ', '\u3000a', '\u2028a'], 'has spaces around it'),
  'a\u00a0b': 'holds a space other than U+0020',
  **{
    f'a{hidden}b': 'holds a control or invisible character'
    for hidden in '\t\x1b\x7f\u0085\u200b\u202e\u2028\ufe0f\u3164\ue000\U000e0041\ufeff\U00013439'
  },
  'a\u200b': 'holds a control or invisible character',
  **dict.fromkeys(['e\u0301', '\u212b'], 'is not in Unicode normal form C'),
  **dict.fromkeys(['x' * 1025, 'é' * 513], 'is longer than 1024 bytes'),
}


def content_of(ids):
  """The ids in successive rounds, by the ending of the file's name."""
  return {
    'csv': files.HEAD + ''.join(f'{t},{d}\n' for t, d in enumerate(ids)).encode(),
    'parquet': {'round': range(len(ids)), 'device_id': ids},
  }


@pytest.mark.parametrize('suffix', ['csv', 'parquet'])
def test_every_format_takes_and_refuses_the_same(tmp_path, suffix):
  path = tmp_path / f'l.{suffix}'
  files.written(path, content_of(GOOD)[suffix])
  assert [device for _, device in files.rows(path)] == GOOD
  for bad in ('a\u200bb', 'e\u0301', ' a', 'x' * 1025, 'a\x7fb'):
    files.written(path, content_of(['a', 'b', bad, 'c'])[suffix])
    line = files.refusal(path)
    assert f'l.{suffix}, row 3: device_id {BAD[bad]}' in line and line.isascii()


@pytest.mark.parametrize('bad', BAD, ids=lambda bad: ascii(bad)[:20])
def test_the_rule(tmp_path, bad):
  for ids in ([bad], ['a'] * 100 + [bad, 'é'], ['é', bad, bad]):
    for kind in (pa.string(), pa.large_string()):
      index, reason = id_columns.first_fault(pa.array(['z', *ids], kind).slice(1))
      assert index == ids.index(bad)
      assert BAD[bad] in reason and len(reason) < 250
  with pytest.raises(ValueError, match=f'device_ids: at 1, .*{re.escape(BAD[bad])}'):
    log_tables.write_log(tmp_path / 'l.parquet', rounds=[0, 1], device_ids=['a', bad], num_rounds=2)


def test_the_first_of_several_is_named_and_numbers_are_all_good():
  assert id_columns.first_fault(pa.array(['a', ' b', '', 'c '])) == (
    1,
    "has spaces around it, ' b'",
  )
  assert id_columns.first_fault(pa.array(['a', '', ' b'])) == (1, 'is empty')
  assert id_columns.first_fault(pa.array(np.array([-5, 0, 2**62]))) is None


@pytest.fixture(scope='module')
def unused(tmp_path_factory):
  """Entry points for what is refused, which changes nothing."""
  return entry_points(tmp_path_factory.mktemp('unused'))


def entry_points(folder):
  """What takes device ids, by its name; each is opened in a folder of its own."""
  planned = dpftrl.MinSep(num_rounds=9, min_sep=1)
  claim = made.claim(participation=planned)
  guarded = lambda name: guards.Guard(claim, 1e-6, log=folder / f'{name}.parquet')
  loop = made.aggregator(folder / 'loop', report_goal=1)
  return {
    'write_log': lambda ids: log_tables.write_log(
      folder / 'whole.parquet', rounds=np.arange(2), device_ids=ids, num_rounds=2
    ),
    'LogWriter.append': lambda ids: ledgers.LogWriter(folder / 'l.parquet').append(0, ids, 0),
    'Guard.check': guarded('check').check,
    'Guard.admit': guarded('admit').admit,
    'PrivateAggregator.admissible': loop.admissible,
    'PrivateAggregator.round': lambda ids: loop.round(ids).__enter__(),
  }


@made.cases(
  'ids, message',
  ([1, 2**63], 'whole numbers of 64 bits'),
  (np.array([1, 2**63], np.uint64), 'whole numbers of 64 bits'),
  (['a', '\ud800'], 'at 1, device_id is not UTF-8'),
  (['a', 'e\u0301'], 'at 1, device_id is not in Unicode normal form C'),
  (['a', None], 'at 1, there is no id'),
  (np.ma.array([1, 2], mask=[False, True]), 'at 1, there is no id'),
  (pa.DictionaryArray.from_arrays([0, 1], ['a', None]), 'at 1, there is no id'),
  (pa.chunked_array([['a'], [None]]), 'at 1, there is no id'),
  ([1.0, float('nan')], 'got double'),
  (['a', float('nan')], 'all text or all whole numbers'),
  (['a', 1], 'all text or all whole numbers'),
  ([b'a', b'b'], 'got binary'),
  ([True, False], 'got bool'),
  (np.zeros((2, 2), np.int64), 'must be one list, got ndarray'),
  ('ab', 'must be one list, got str'),
  ({'device_id': ['a']}, 'must be one list, got dict'),
  (None, 'all text or all whole numbers'),
)
def test_what_takes_ids_refuses_the_same_in_one_sentence(unused, ids, message):
  for name, take in unused.items():
    with pytest.raises(ValueError, match=f'^device_ids.*{message}') as caught:
      take(ids)
    assert type(caught.value) is ValueError and len(str(caught.value)) <= 300, name


@pytest.mark.parametrize('ids', [
  pa.array(['a', 'é'], pa.large_string()), pa.array(['a', 'é'], pa.string_view()),
  pa.array(['a', 'é']).dictionary_encode(), pa.chunked_array([['a'], ['é']]), np.array(['a', 'é']),
  np.array(['a', 'é'], object), ('a', 'é'), pa.array([1, 2], pa.uint8()),
  pa.array([1, 2]).dictionary_encode(), np.array([1, 2], np.uint64),
])  # fmt: skip
def test_what_takes_ids_takes_every_form_of_them(tmp_path, ids):
  for take in entry_points(tmp_path).values():
    take(ids)
  rows = files.rows(tmp_path / 'whole.parquet')
  assert [device for _, device in rows] in (['a', 'é'], [1, 2])


def test_numbers_beyond_64_bits_are_no_times_and_no_rounds(tmp_path):
  one = dict(rounds=[0], device_ids=['a'], num_rounds=1)
  late = np.array([2**64 - 1], np.uint64)
  for change in (dict(timestamps=late), dict(rounds=late), dict(rounds=np.ma.array([0], mask=[1]))):
    with pytest.raises(ValueError, match=f'^{next(iter(change))} must be'):
      log_tables.write_log(tmp_path / 'l.parquet', **one | change)


def test_bytes_that_are_no_text():
  for size in (1, 2, 3, 10):
    for place in range(size):
      values = [b'a'] * size
      values[place] = b'\xc3'
      fault = id_columns.first_fault(pa.array(values, pa.large_binary()))
      assert fault == (place, r"is not UTF-8, b'\xc3'")


def test_a_large_array_of_text_is_one_column():
  ids = np.repeat(np.array(['x' * 200, 'y' * 200]), 50_000)  # 20 MB, which Arrow cuts.
  column = id_columns.column(ids)
  assert isinstance(column, pa.Array) and len(column) == ids.size
  with pytest.raises(ValueError, match='at 99999, device_id is a mark of missing data'):
    id_columns.column(np.append(ids[:-1], 'NULL'))
