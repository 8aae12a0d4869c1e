import pathlib
import types

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.families import identity
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import refusals, schema
from fl_dpftrl.replaying import replay, runs


def replayed(paths, **kwargs):
  log = log_lib.read_log(paths, **kwargs)
  run = runs.Run.of(log, identity.Identity(), noise_multiplier=1.0)
  statement = replay.replay(run, deltas=1e-6).to_json()
  witness = statement.pop('witness')
  return types.SimpleNamespace(**statement, seen=witness and tuple(witness.values()))


ROWS = [(0, 'a'), (0, 'b'), (1, 'c'), (3, 'a')]


def parquet(path, rows=ROWS, metadata=None, **columns):
  table = pa.table({'round': [r for r, _ in rows], 'device_id': [d for _, d in rows], **columns})
  pq.write_table(table.replace_schema_metadata(metadata), path)
  return path


def text(path, content):
  path.write_text(content)
  return path


CSV = 'round,device_id\n0,a\n0,b\n1,c\n3,a\n'
JSON = (
  '{"round": 0, "device_id": "a"}\n{"round": 0, "device_id": "b"}\n'
  '{"round": 1, "device_id": "c", "timestamp": "2026-01-01T00:00:00Z"}\n'
  '{"round": 3, "device_id": "a"}\n'
)


@pytest.mark.parametrize(
  'make',
  [
    lambda d: parquet(d / 'l.parquet'),
    lambda d: text(d / 'l.csv', CSV),
    lambda d: text(d / 'l.csv', CSV.replace('\n', '\r\n')),
    lambda d: text(d / 'l.csv', 'device_id,x,round\na,,0\n"b",1,0\nc,,1\na,,3\n'),
    lambda d: text(d / 'l.jsonl', JSON),
    lambda d: text(d / 'l.ndjson', JSON.rstrip()),
  ],
)
def test_every_format_says_the_same(tmp_path, make):
  log = replayed(make(tmp_path))
  assert log.num_participations == 4
  assert log.num_devices == 3
  assert (log.num_rounds, log.min_sep, log.max_participations) == (4, 3, 2)
  assert log.seen == ('a', 0, 3)
  assert any('does not say how many rounds' in w for w in log.warnings)


def test_ids_that_look_like_something_else_stay_text(tmp_path):
  content = 'round,device_id\n0,1\n1,01\n2,1e0\n3,NA\n4,2020-01-01\n5,null\n'
  assert replayed(text(tmp_path / 'l.csv', content)).num_devices == 6
  lines = ''.join(
    f'{{"round": {i}, "device_id": "{d}"}}\n'
    for i, d in enumerate(['2020-01-01', '2020-01-01T00:00:00', '1'])
  )
  assert replayed(text(tmp_path / 'l.jsonl', lines)).num_devices == 3


def test_numbers_as_ids(tmp_path):
  lines = '{"round": 0, "device_id": 5}\n{"round": 2, "device_id": 5}\n'
  log = replayed(text(tmp_path / 'l.jsonl', lines))
  assert log.seen == (5, 0, 2)
  narrow = pa.table(
    {'round': pa.array([0, 2], pa.uint16()), 'device_id': pa.array([5, 5], pa.int32())}
  )
  pq.write_table(narrow, tmp_path / 'n.parquet')
  assert replayed(tmp_path / 'n.parquet').seen == (5, 0, 2)


def test_text_as_a_dictionary(tmp_path):
  ids = pa.array(['a', 'b', 'a']).dictionary_encode()
  pq.write_table(pa.table({'round': [0, 1, 2], 'device_id': ids}), tmp_path / 'l.parquet')
  assert replayed(tmp_path / 'l.parquet').seen == ('a', 0, 2)


def test_a_log_is_its_shards(tmp_path):
  schema.write_log(tmp_path / '1.parquet', rounds=[0, 1], device_ids=['a', 'b'], num_rounds=9)
  schema.write_log(tmp_path / '2.parquet', rounds=[3, 8], device_ids=['a', 'a'], num_rounds=9)
  (tmp_path / '.hidden.parquet').write_text('x')
  (tmp_path / '_SUCCESS').write_text('')
  for paths in (
    tmp_path,
    [tmp_path],
    [tmp_path / '2.parquet', tmp_path / '1.parquet'],
    str(tmp_path / '*.parquet'),
    str(tmp_path / '**' / '[12].parquet'),
    [tmp_path, tmp_path / '1.parquet', str(tmp_path / '?.parquet')],
  ):
    log = replayed(paths)
    assert log.num_participations == 4
    assert (log.num_rounds, log.min_sep, log.max_participations) == (9, 3, 3)
    assert sorted(f['name'] for f in log.log) == ['1.parquet', '2.parquet']
    assert len({f['sha256'] for f in log.log}) == 2


V1 = {'fl_dpftrl.log_version': '1', 'num_rounds': '5'}
BAD = {
  'twice': (
    lambda d: parquet(d / 'l.parquet', [*ROWS, (1, 'c')]),
    "l.parquet, row 5: device 'c' is twice in round 1",
  ),
  'negative': (
    lambda d: parquet(d / 'l.parquet', [*ROWS, (-2, 'c')]),
    'l.parquet, row 5: round must be at least 0, got -2',
  ),
  'no round': (
    lambda d: parquet(d / 'l.parquet', [(0, 'a'), (None, 'c')]),
    'l.parquet, row 2: has no round',
  ),
  'no device': (
    lambda d: parquet(d / 'l.parquet', [(0, 'a'), (0, None)]),
    'l.parquet, row 2: has no device_id',
  ),
  'empty device': (
    lambda d: parquet(d / 'l.parquet', [(0, 'a'), (0, '')]),
    'l.parquet, row 2: device_id is empty',
  ),
  'beyond': (
    lambda d: parquet(d / 'l.parquet', [*ROWS, (5, 'c')], V1),
    'l.parquet, row 5: round 5 is beyond the 5 rounds',
  ),
  'empty': (lambda d: parquet(d / 'l.parquet', []), 'round must be whole'),
  'empty of type': (
    lambda d: (
      schema.write_log(d / 'l.parquet', rounds=[], device_ids=[], num_rounds=3) or d / 'l.parquet'
    ),
    'l.parquet: the log is empty',
  ),
  'empty csv': (lambda d: text(d / 'l.csv', ''), 'l.csv: '),
  'csv of a header': (lambda d: text(d / 'l.csv', 'round,device_id\n'), 'the log is empty'),
  'version': (
    lambda d: parquet(d / 'l.parquet', metadata={**V1, 'fl_dpftrl.log_version': '2'}),
    "fl_dpftrl.log_version is '2', known is 1",
  ),
  'num_rounds': (
    lambda d: parquet(d / 'l.parquet', metadata={**V1, 'num_rounds': 'x'}),
    "num_rounds must be a whole number from 1 to 10000000, got 'x'",
  ),
  'floats': (
    lambda d: parquet(d / 'l.parquet', [(0.0, 'a')]),
    'round must be whole numbers, is double',
  ),
  'float ids': (
    lambda d: parquet(d / 'l.parquet', [(0, 1.5)]),
    'device_id must be text or whole numbers, is double',
  ),
  'columns': (
    lambda d: text(d / 'l.csv', 'round,device\n0,a\n'),
    "has no column 'device_id'; its columns are 'round', 'device'",
  ),
  'two columns': (
    lambda d: text(d / 'l.csv', 'round,device_id,round\n0,a,1\n'),
    "more than one column 'round'",
  ),
  'csv round': (
    lambda d: text(d / 'l.csv', CSV + '1.5,z\n'),
    "l.csv, row 5: round must be a whole number, got '1.5'",
  ),
  'csv no round': (
    lambda d: text(d / 'l.csv', CSV + ',z\n'),
    "l.csv, row 5: round must be a whole number, got ''",
  ),
  'csv spaces': (
    lambda d: text(d / 'l.csv', CSV + '1, a\n'),
    "l.csv, row 5: device_id has spaces around it, ' a'",
  ),
  'csv cut': (lambda d: text(d / 'l.csv', CSV[:-1]), 'does not end with a newline'),
  'csv ragged': (lambda d: text(d / 'l.csv', CSV + '1,b,c\n'), 'l.csv: '),
  'json types': (
    lambda d: text(d / 'l.jsonl', JSON + '{"round": 9, "device_id": 7}\n'),
    'row 5: device_id must be all text or all whole numbers of 64 bits, got 7',
  ),
  'json types back': (
    lambda d: text(d / 'l.jsonl', '{"round": 0, "device_id": 7}\n{"round": 1, "device_id": "7"}\n'),
    "row 2: device_id must be all text or all whole numbers of 64 bits, got '7'",
  ),
  'json cut': (
    lambda d: text(d / 'l.jsonl', JSON + '{"round": 9, "devi'),
    'l.jsonl, row 5: must be a JSON object with round and device_id',
  ),
  'json round': (
    lambda d: text(d / 'l.jsonl', JSON + '{"round": 0.5, "device_id": "a"}'),
    'l.jsonl, row 5: round must be a whole number, got 0.5',
  ),
  'json null': (
    lambda d: text(d / 'l.jsonl', JSON + '{"round": null, "device_id": "a"}'),
    'l.jsonl, row 5: has no round',
  ),
  'suffix': (lambda d: text(d / 'l.txt', CSV), 'l.txt: ends in none of'),
  'missing': (lambda d: d / 'none.parquet', 'none.parquet: no such file'),
  'no match': (lambda d: d / '*.parquet', 'no such file, folder or match'),
  'empty folder': (lambda d: d, 'no such file, folder or match'),
  'not a log in the folder': (
    lambda d: parquet(d / 'l.parquet') and text(d / 'notes.txt', 'x') and d,
    "holds 'notes.txt'",
  ),
  'folder in the folder': (
    lambda d: (parquet(d / 'l.parquet') and (d / 'more').mkdir()) or d,
    "holds 'more'",
  ),
}


@pytest.mark.parametrize('case', BAD)
def test_refuses_in_one_line(tmp_path, case):
  make, message = BAD[case]
  with pytest.raises(refusals.LogError) as raised:
    replayed(make(tmp_path))
  line = str(raised.value)
  assert message in line
  assert line.startswith(str(tmp_path))
  assert '\n' not in line


@pytest.mark.parametrize('kept', [0.2, 0.5, 0.9, 0.999])
def test_refuses_a_truncated_file(tmp_path, kept):
  path = parquet(tmp_path / 'l.parquet', [(i, f'd{i % 7}') for i in range(999)])
  whole = path.read_bytes()
  path.write_bytes(whole[: int(kept * len(whole))])
  with pytest.raises(refusals.LogError, match='l.parquet: cannot be read'):
    replayed(path)


@pytest.mark.parametrize(
  'metadata, message',
  [
    ({**V1, 'num_rounds': '6'}, "num_rounds is '6', but '5' in"),
    ({'fl_dpftrl.log_version': '1'}, "num_rounds is None, but '5' in"),
    ({**V1, 'fl_dpftrl.run': 'x'}, "fl_dpftrl.run is 'x', but None in"),
  ],
)
def test_refuses_shards_that_disagree(tmp_path, metadata, message):
  first = parquet(tmp_path / '1.parquet', metadata=V1)
  second = parquet(tmp_path / '2.parquet', [(4, 'z')], metadata)
  with pytest.raises(refusals.LogError, match='2.parquet') as raised:
    replayed([first, second])
  assert message in str(raised.value)


def test_shards_may_differ_in_what_others_wrote(tmp_path):
  first = parquet(tmp_path / '1.parquet', metadata={**V1, 'host': 'x'})
  second = parquet(tmp_path / '2.parquet', [(4, 'z')], {**V1, 'host': 'y'})
  assert replayed([first, second]).num_rounds == 5


def test_refuses_shards_of_text_and_of_numbers(tmp_path):
  first = parquet(tmp_path / '1.parquet')
  second = parquet(tmp_path / '2.parquet', [(5, 7)])
  with pytest.raises(refusals.LogError, match='2.parquet: device_id is whole numbers, but text'):
    replayed([first, second])


def test_names_the_shard_and_row_of_a_device_twice(tmp_path):
  first = parquet(tmp_path / '1.parquet')
  second = parquet(tmp_path / '2.parquet', [(9, 'x'), (3, 'a')])
  with pytest.raises(refusals.LogError) as raised:
    replayed([first, second])
  assert str(raised.value) == f"{second}, row 2: device 'a' is twice in round 3"


def test_num_rounds_is_what_the_file_says_or_is_told(tmp_path):
  stated = parquet(tmp_path / 'stated.parquet', metadata=V1)
  silent = parquet(tmp_path / 'silent.parquet')
  assert replayed(stated).num_rounds == 5
  assert replayed(stated, num_rounds=5).num_rounds == 5
  assert replayed(silent, num_rounds=7).num_rounds == 7
  guessed = replayed(silent)
  assert guessed.num_rounds == 4
  assert 'last round plus one, 4' in guessed.warnings[0]
  assert not [w for w in replayed(stated).warnings if 'plus one' in w]
  with pytest.raises(refusals.LogError, match='num_rounds is 5, not 6'):
    replayed(stated, num_rounds=6)
  with pytest.raises(refusals.LogError, match='row 4: round 3 is beyond the 3'):
    replayed(silent, num_rounds=3)
  with pytest.raises(refusals.LogError, match='at least 1'):
    replayed(silent, num_rounds=0)


def test_digest_is_of_the_files_bytes(tmp_path):
  path = text(tmp_path / 'l.csv', 'round,device_id\n0,a\n')
  assert replayed(pathlib.Path(path)).log[0]['sha256'] == (
    '9b4acb27ea8ea322f8d2b1206b7e0097eda517d56a0f58113de932c7236093da'
  )
