"""Logs in every format, and those of other systems, say the same as a log of ours."""

import gzip
import json
import pathlib
import re

import duckdb
import pyarrow as pa
import pytest

from fl_dpftrl.logs import layouts
from tests import made, pages
from tests.logs import files

ROWS = [(0, 'a'), (0, 'b'), (1, 'c'), (3, 'a')]
COHORTS = {0: ['a', 'b'], 1: ['c'], 3: ['a']}
STEPS = 'round=step,device_id=user_id'


def rows(path, layout=layouts.PLAIN):
  return sorted(files.rows(path, num_rounds=4, layout=layout))


def delimited(by=',', names=('round', 'device_id'), first=0):
  lines = [by.join(names), *(f'{t + first}{by}{device}' for t, device in ROWS)]
  return '\n'.join(lines) + '\n'


def columns(*names, device_id=pa.string()):
  rounds, ids = zip(*ROWS)
  return dict(zip(names, (pa.array(rounds, pa.uint16()), pa.array(ids, device_id))))


@pytest.mark.parametrize('name, content, layout, first', [
  ('l.csv', delimited(), None, 0),
  ('l.csv', delimited().replace('\n', '\r\n'), None, 0),
  ('l.csv', 'device_id,x,round\na,,0\n"b",1,0\nc,"z ""y""",1\na,,3\n', None, 0),
  ('l.csv', '\ufeff' + delimited().replace('\n', '\n\n'), None, 0),
  ('l.csv', delimited(';'), None, 0),
  ('l.csv', delimited('\t'), None, 0),
  ('l.csv', delimited(first=1), None, 1),
  ('l.csv', delimited(names=('step', 'user_id'), first=7), STEPS, 7),
  ('l.csv', delimited(names=('device_id', 'round')), 'round=device_id,device_id=round', 0),
  ('round=9/l.csv', delimited(), None, 0),
  ('l.csv', 'round,step,device_id\n9,0,a\n9,0,b\n9,1,c\n9,3,a\n', 'round=step', 0),
  ('l.parquet', columns('step', 'user_id'), STEPS, 0),
  ('l.parquet', columns('round', 'device_id', device_id=pa.dictionary(pa.int8(), pa.utf8())), None,
   0),
  ('l.parquet', {'round': list(COHORTS), 'device_id': list(COHORTS.values())}, None, 0),
  ('l.parquet', {'step': list(COHORTS), 'user_id': list(COHORTS.values())}, STEPS, 0),
])  # fmt: skip
def test_says_the_same(tmp_path, name, content, layout, first):
  path = files.written(tmp_path / name, content)
  assert rows(path, layouts.parse(layout, first)) == ROWS


def test_hive_folders(tmp_path):
  csv, parquet, by_device = (tmp_path / name for name in ('csv', 'parquet', 'device'))
  for t, cohort in COHORTS.items():
    lines = ''.join(f'{device}\n' for device in cohort)
    files.written(csv / 'day=monday' / f'step={t}' / 'part-0.csv', f'device_id\n{lines}')
    files.written(parquet / f'round={t}' / 'part-0.snappy.parquet', {'device_id': cohort})
  files.written(csv / '_SUCCESS', '')
  for device in 'abc':
    lines = ''.join(f'{t}\n' for t, other in ROWS if other == device)
    files.written(by_device / f'device_id={device}' / '0.csv', f'round\n{lines}')
  assert rows(csv, layouts.parse('round=step')) == ROWS
  assert rows(parquet) == rows(by_device) == ROWS


@pytest.mark.parametrize('name, content', [('l.csv', 'x\n7\n'), ('l.parquet', {'x': [7]})])
def test_folders_that_give_both_columns_lose_no_rows(tmp_path, name, content):
  files.written(tmp_path / 'round=3' / 'device_id=a%20b' / name, content)
  assert rows(tmp_path) == [(3, 'a b')]


def test_bytes_are_refused(tmp_path):
  ids = pa.array([bytes([i, 255]) for i in range(4)])
  for kind in (pa.binary(), pa.binary(2)):
    files.written(tmp_path / 'l.parquet', {'round': range(4), 'device_id': ids.cast(kind)})
    assert 'write bytes as hexadecimal text' in files.refusal(tmp_path / 'l.parquet')


@made.cases(
  'name, kind', ('log.jsonl', 'VARCHAR'), ('log.jsonl.gz', 'VARCHAR'), ('log.jsonl', 'VARCHAR[]')
)
def test_duckdb_makes_parquet_of_json_lines(tmp_path, monkeypatch, name, kind):
  monkeypatch.chdir(tmp_path)
  ids = {'a': '007', 'b': '1e5', 'c': '2026-01-31'}  # As text, whatever else they look like.
  entries = [(t, ids[d]) for t, d in ROWS]
  if kind == 'VARCHAR[]':
    entries = [(t, [ids[d] for d in cohort]) for t, cohort in COHORTS.items()]
  lines = ''.join(json.dumps(dict(zip(layouts.NAMES, e))) + '\n' for e in entries).encode()
  pathlib.Path(name).write_bytes(gzip.compress(lines) if name.endswith('.gz') else lines)
  page = (pages.DOCS / 'write-the-log.md').read_text()
  (query,) = re.findall(r'```sql\n(.*?)```', page, re.DOTALL)
  duckdb.sql(query.replace('log.jsonl', name).replace('VARCHAR', kind))
  assert rows('log.parquet') == sorted((t, ids[d]) for t, d in ROWS)


@made.cases(
  'text, first, message',
  ('round', 0, 'must be like round=step'),
  ('round=', 0, 'must be like'),
  ('step=round', 0, 'must be like'),
  ('timestamp=at', 0, 'must be like'),
  ('round=a,round=b', 0, 'must be like'),
  ('round=a,device_id=a', 0, 'names one column twice'),
  ({'step': 'round'}, 0, 'must be like round=step'),
  ({'round': 3}, 0, 'must be like round=step'),
  (['round'], 0, 'must be like'),
  (None, -1, 'first_round must be at least 0, got -1'),
  (None, '1', "first_round must be a whole number, got '1'"),
)
def test_malformed_layouts_are_refused(text, first, message):
  with pytest.raises(ValueError, match=message):
    layouts.parse(text, first)


def test_names_may_be_a_mapping_and_marks_are_text():
  names = {'round': 'step', 'device_id': 'user'}
  assert layouts.parse(names) == layouts.parse('round=step,device_id=user')
  assert layouts.parse({'round': 'at,round=step'}).names['round'] == 'at,round=step'
  with pytest.raises(ValueError, match='missing=.* must be like NULL,unknown'):
    layouts.parse(None, missing=['NULL'])
