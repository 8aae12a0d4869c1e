"""One rule for device ids, in every format and in what is written."""

import json
import re

import numpy as np
import pyarrow as pa
import pytest

from fl_dpftrl.logs import refusals, schema
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
    'json': ''.join(json.dumps({'round': t, 'device_id': d}) + '\n' for t, d in enumerate(ids)),
    'parquet': {'round': range(len(ids)), 'device_id': ids},
  }


@pytest.mark.parametrize('suffix', ['csv', 'json', 'parquet'])
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
      index, reason = refusals.first_fault(pa.array(['z', *ids], kind).slice(1))
      assert index == ids.index(bad)
      assert BAD[bad] in reason and len(reason) < 250
  with pytest.raises(ValueError, match=f'device_ids: at 1, .*{re.escape(BAD[bad])}'):
    schema.write_log(tmp_path / 'l.parquet', rounds=[0, 1], device_ids=['a', bad], num_rounds=2)


def test_bytes_that_are_no_text():
  for size in (1, 2, 3, 10):
    for place in range(size):
      values = [b'a'] * size
      values[place] = b'\xc3'
      fault = refusals.first_fault(pa.array(values, pa.large_binary()))
      assert fault == (place, r"device_id is not UTF-8, b'\xc3'")


def test_the_first_of_several_is_named_and_numbers_are_all_good():
  assert refusals.first_fault(pa.array(['a', ' b', '', 'c '])) == (
    1,
    "device_id has spaces around it, ' b'",
  )
  assert refusals.first_fault(pa.array(['a', '', ' b'])) == (1, 'device_id is empty')
  assert refusals.first_fault(pa.array(np.array([-5, 0, 2**62]))) is None
