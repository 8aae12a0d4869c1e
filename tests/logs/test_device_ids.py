"""One rule for device ids, in every format and in what is written."""

import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import refusals, schema

GOOD = ['a', '1', '01', 'a b', 'dévice 1', '日本', 'x' * 1024, 'NA', "O'Neill"]
BAD = {
  ' a': 'has spaces around it',
  'a ': 'has spaces around it',
  '\u3000a': 'has spaces around it',
  'a\u00a0b': 'holds a space other than U+0020',
  'a\tb': 'holds a control or invisible character',
  'a\x1b[2J': 'holds a control or invisible character',
  'a\x7f': 'holds a control or invisible character',
  'a\u0085b': 'holds a control or invisible character',
  'a\u200bb': 'holds a control or invisible character',
  'a\u202eb': 'holds a control or invisible character',
  'a\u2028b': 'holds a control or invisible character',
  'a\ufe0f': 'holds a control or invisible character',
  'a\u3164b': 'holds a control or invisible character',
  'a\ue000': 'holds a control or invisible character',
  'a\U000e0041': 'holds a control or invisible character',
  'a\ufeffb': 'holds a control or invisible character',
  'e\u0301': 'is not in Unicode normal form C',
  '\u212b': 'is not in Unicode normal form C',
  'x' * 1025: 'is longer than 1024 bytes',
  'é' * 513: 'is longer than 1024 bytes',
}


def write(folder, suffix, ids):
  path = folder / f'l.{suffix}'
  if suffix == 'csv':
    lines = ''.join(f'{t},{d}\n' for t, d in enumerate(ids))
    path.write_bytes(f'round,device_id\n{lines}'.encode())
  elif suffix == 'jsonl':
    entries = [{'round': t, 'device_id': d} for t, d in enumerate(ids)]
    path.write_text(''.join(f'{json.dumps(e)}\n' for e in entries))
  else:
    pq.write_table(pa.table({'round': range(len(ids)), 'device_id': ids}), path)
  return log_lib.open_shard(path)


@pytest.mark.parametrize('suffix', ['csv', 'jsonl', 'parquet'])
def test_every_format_takes_the_same(tmp_path, suffix):
  shard = write(tmp_path, suffix, GOOD)
  assert [value for t in shard.tables() for value in t.column(1).to_pylist()] == GOOD


@pytest.mark.parametrize('suffix', ['csv', 'jsonl', 'parquet'])
@pytest.mark.parametrize('bad', ['a\u200bb', 'e\u0301', ' a', 'x' * 1025, 'a\x7f'])
def test_every_format_refuses_the_same(tmp_path, suffix, bad):
  shard = write(tmp_path, suffix, ['a', 'b', bad, 'c'])
  with pytest.raises(refusals.LogError) as raised:
    list(shard.tables())
  line = str(raised.value)
  assert f'l.{suffix}, row 3: device_id {BAD[bad]}' in line
  assert len(line) <= 300 and line.isascii()


@pytest.mark.parametrize('bad', BAD, ids=lambda bad: ascii(bad)[:20])
def test_the_rule(tmp_path, bad):
  for ids in ([bad], ['a'] * 100 + [bad, 'é'], ['é', bad, bad]):
    for kind in (pa.string(), pa.large_string()):
      fault = refusals.first_fault(pa.array(['z', *ids], kind).slice(1))
      assert fault[0] == ids.index(bad)
      assert BAD[bad] in fault[1] and len(fault[1]) < 250
  with pytest.raises(ValueError, match=f'device_ids: at 1, .*{re.escape(BAD[bad])}'):
    schema.write_log(tmp_path / 'l.parquet', rounds=[0, 1], device_ids=['a', bad], num_rounds=2)


def test_bytes_that_are_no_text():
  for size in (1, 2, 3, 10):
    for place in range(size):
      values = [b'a'] * size
      values[place] = b'\xc3'
      fault = refusals.first_fault(pa.array(values, pa.large_binary()))
      assert fault == (place, r"device_id is not UTF-8, b'\xc3'")


def test_the_first_of_several_is_named():
  assert refusals.first_fault(pa.array(['a', ' b', '', 'c ']))[0] == 1


def test_numbers_are_all_good():
  assert refusals.first_fault(pa.array(np.array([-5, 0, 2**62]))) is None
