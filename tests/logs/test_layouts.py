"""Logs of other systems say the same as a log of ours."""

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.commands import main
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import refusals

ROWS = [(0, 'a'), (0, 'b'), (1, 'c'), (3, 'a')]
COHORTS = {0: ['a', 'b'], 1: ['c'], 3: ['a']}
PLAIN = layout_lib.PLAIN


def rows(path, layout=PLAIN, num_rounds=4):
  log = log_lib.read_log(path, num_rounds=num_rounds, layout=layout)
  return sorted(tuple(row.values()) for table in log.tables() for row in table.to_pylist())


def written(path, text):
  path.parent.mkdir(parents=True, exist_ok=True)
  content = text if isinstance(text, bytes) else text.encode()
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)
  return path


def delimited(by=',', names=('round', 'device_id'), first=0):
  lines = [by.join(names), *(f'{t + first}{by}{device}' for t, device in ROWS)]
  return '\n'.join(lines) + '\n'


def objects(lists=False, names=('round', 'device_id')):
  pairs = COHORTS.items() if lists else ROWS
  return ''.join(json.dumps(dict(zip(names, pair))) + '\n' for pair in pairs)


def parquet(table):
  sink = io.BytesIO()
  pq.write_table(pa.table(table), sink)
  return sink.getvalue()


STEPS = 'round=step,device_id=user_id'


@pytest.mark.parametrize(
  'name, content, columns, first',
  [
    ('l.csv.gz', delimited(), None, 0),
    ('l.tsv', delimited('\t'), None, 0),
    ('l.tsv.gz', delimited('\t'), None, 0),
    ('l.csv', delimited(';'), None, 0),
    ('l.csv', delimited('\t'), None, 0),
    ('l.csv', delimited(first=1), None, 1),
    ('l.csv', delimited(names=('step', 'user_id'), first=7), STEPS, 7),
    ('l.csv', delimited(names=('device_id', 'round')), 'round=device_id,device_id=round', 0),
    ('l.jsonl.gz', objects(), None, 0),
    ('l.json', objects(names=('step', 'user_id')), STEPS, 0),
    ('l.json', objects(lists=True), None, 0),
    ('l.json', objects(lists=True, names=('step', 'user_id')), STEPS, 0),
    ('l.parquet', parquet({'step': [t for t, _ in ROWS], 'user_id': list('abca')}), STEPS, 0),
    ('l.parquet', parquet({'round': list(COHORTS), 'device_id': list(COHORTS.values())}), None, 0),
  ],
)
def test_says_the_same(tmp_path, name, content, columns, first):
  path = written(tmp_path / name, content)
  assert rows(path, layout_lib.parse(columns, first)) == ROWS


def test_hive_folders(tmp_path):
  folder = tmp_path / 'csv' / 'log'
  for t, cohort in COHORTS.items():
    lines = ''.join(f'{device}\n' for device in cohort)
    written(folder / 'day=monday' / f'step={t}' / 'part-0.csv', f'device_id\n{lines}')
  written(folder / '_SUCCESS', '')
  steps = layout_lib.parse('round=step')
  assert rows(folder, steps) == ROWS
  folder = tmp_path / 'parquet'
  for t, cohort in COHORTS.items():
    written(folder / f'round={t}' / 'part-0.snappy.parquet', parquet({'device_id': cohort}))
  assert rows(folder) == ROWS
  folder = tmp_path / 'json'
  for device in 'abc':
    of = [t for t, other in ROWS if other == device]
    lines = ''.join(json.dumps({'round': t}) + '\n' for t in of)
    written(folder / f'device_id={device}' / '0.jsonl', lines)
  assert rows(folder) == ROWS


def test_bytes_become_hexadecimal(tmp_path):
  ids = [bytes([i, 255]) for i in range(4)]
  table = {'round': [0, 1, 2, 3], 'device_id': pa.array(ids, pa.binary())}
  path = written(tmp_path / 'l.parquet', parquet(table))
  found = rows(path, layout_lib.parse('device_id=hex(device_id)'))
  assert found == [(0, '00ff'), (1, '01ff'), (2, '02ff'), (3, '03ff')]
  with pytest.raises(refusals.LogError, match=r'give --columns=device_id=hex\(NAME\)'):
    rows(path)
  table['device_id'] = pa.array(ids, pa.binary(2))
  assert rows(written(path, parquet(table))) == found
  table['device_id'] = list('abcd')
  with pytest.raises(refusals.LogError, match='must be bytes'):
    rows(written(path, parquet(table)), layout_lib.parse('device_id=hex(device_id)'))


def test_cohorts_longer_than_a_line_of_one_device(tmp_path):
  cohort = [f'device-{i:09d}' for i in range(6500)]
  lines = ''.join(json.dumps({'round': t, 'device_id': cohort}) + '\n' for t in range(3))
  path = written(tmp_path / 'l.jsonl', lines)
  assert rows(path) == [(t, device) for t in range(3) for device in cohort]


@pytest.mark.parametrize(
  'name, content, layout, message',
  [
    (
      'l.csv',
      'step,user_id\n0,a\n',
      PLAIN,
      r"no column 'round'.*say which it is: --columns=round=",
    ),
    ('l.csv', delimited(first=1), PLAIN, r'round 4 is beyond the 4 rounds.*give --first_round=1'),
    ('l.csv', delimited(), layout_lib.Layout(first_round=1), 'round 0 is before --first_round=1'),
    ('l.csv.gz', 'round,device_id\n0,a', PLAIN, 'does not end with a newline'),
    ('l.json', objects(lists=True) + objects(), PLAIN, 'row 4: device_id must be a list here too'),
    ('l.json', '{"round": 0, "device_id": ["a", 1]}\n', PLAIN, 'all text or all whole numbers'),
    ('l.csv', delimited(), layout_lib.Layout(hexadecimal=True), 'only Parquet has device ids'),
    ('round=x/l.csv', 'device_id\na\n', PLAIN, "but its folder says 'x'"),
    ('round=x/l.parquet', parquet({'device_id': ['a']}), PLAIN, "but its folder says 'x'"),
    ('round=x/l.json', '{"device_id": "a"}\n', PLAIN, "but its folder says 'x'"),
  ],
)
def test_refusals_are_one_line(tmp_path, name, content, layout, message):
  path = written(tmp_path / name, content)
  with pytest.raises(refusals.LogError, match=message) as error:
    rows(path, layout)
  assert len(str(error.value)) <= 300 and '\n' not in str(error.value)


def test_a_cut_gzip_file_is_refused(tmp_path):
  path = written(tmp_path / 'l.csv.gz', delimited())
  path.write_bytes(path.read_bytes()[:-9])
  with pytest.raises(refusals.LogError, match='cannot be read'):
    rows(path)


@pytest.mark.parametrize(
  'columns, first, message',
  [
    ('round', 0, 'must be like round=step'),
    ('round=', 0, 'must be like'),
    ('step=round', 0, 'must be like'),
    ('round=a,round=b', 0, 'must be like'),
    ('round=a,device_id=a', 0, 'names one column twice'),
    (None, -1, 'first_round=-1 must be at least 0'),
  ],
)
def test_malformed_layouts_are_refused(columns, first, message):
  with pytest.raises(ValueError, match=message):
    layout_lib.parse(columns, first)


def test_replay_takes_the_flags(tmp_path, capsys):
  log = written(tmp_path / 'l.csv.gz', delimited(';', ('step', 'user_id'), first=1))
  given = ['replay', f'--log={log}', '--strategy=identity', '--noise_multiplier=2', '--delta=1e-6']
  main.main([*given, f'--columns={STEPS}', '--first_round=1', '--json'])
  found = json.loads(capsys.readouterr().out)
  assert (found['num_rounds'], found['min_sep'], found['num_devices']) == (4, 3, 3)
  with pytest.raises(SystemExit) as ended:
    main.main([*given, '--columns=step'])
  assert ended.value.code == 2
