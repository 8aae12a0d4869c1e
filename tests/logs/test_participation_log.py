"""The files of a log: looked up, compared with each other, and their number of rounds."""

import pyarrow as pa
import pytest

from fl_dpftrl.logs import layouts, ledgers, log_tables, participation_log, refusals
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.prove.replaying import counting, opened_runs, replays
from tests import made
from tests.logs import files

ROWS = {'round': [0, 0, 1, 3], 'device_id': list('abca')}
OWN = {'fl_dpftrl.log_version': '2', 'num_rounds': '5'}


def refused_by_replay(paths, message):
  run = opened_runs.RecordedRun.of(
    participation_log.read_log(paths), identity.Identity(), noise_multiplier=1.0
  )
  with pytest.raises(refusals.LogError, match=message) as raised:
    replays.replay(run, delta=1e-6)
  return str(raised.value)


def test_a_log_is_its_shards(tmp_path):
  first, second = tmp_path / '1.parquet', tmp_path / '2.parquet'
  log_tables.write_log(first, rounds=[0, 1], device_ids=['a', 'b'], num_rounds=9)
  log_tables.write_log(second, rounds=[3, 8], device_ids=['a', 'a'], num_rounds=9)
  (tmp_path / '.hidden.parquet').write_text('x')
  (tmp_path / '_SUCCESS').write_text('')
  for paths in (
    tmp_path,
    [second, first],
    str(tmp_path / '*.parquet'),
    str(tmp_path / '**' / '[12].parquet'),
    [tmp_path, first, str(tmp_path / '?.parquet')],
  ):
    log = participation_log.read_log(paths)
    assert log.num_rounds == 9
    assert sorted(files.rows(paths)) == [(0, 'a'), (1, 'b'), (3, 'a'), (8, 'a')]
    assert sorted(file['name'] for file in log.files()) == ['1.parquet', '2.parquet']
    assert len({file['sha256'] for file in log.files()}) == 2


@pytest.mark.parametrize('name', ['none.parquet', '*.parquet', ''])
def test_files_that_are_not_there(tmp_path, name):
  assert ('no such file, folder or' if name else 'holds no file') in files.refusal(tmp_path / name)


@pytest.mark.parametrize('name', ['notes.txt', 'l.jsonl', 'more/l.parquet'])
def test_a_folder_of_a_log_holds_nothing_else(tmp_path, name):
  files.written(tmp_path / 'l.parquet', ROWS)
  files.written(tmp_path / name, ROWS)
  line = files.refusal(tmp_path)
  assert f"holds '{name.partition('/')[0]}', which is no .parquet or .csv file" in line
  assert line.endswith('docs/write-the-log.md says how other formats become Parquet')


@pytest.mark.parametrize('name', ['l.csv', 'l.parquet'])
def test_columns_that_nothing_reads_are_named(tmp_path, name):
  rows = {'step': [0, 1], 'model': ['x', 'y'], 'device_id': ['a', 'b'], 'timestamp': [1, 2]}
  content = rows if name == 'l.parquet' else f'{",".join(rows)}\n0,x,a,1\n1,y,b,2\n'
  path = files.written(tmp_path / name, content)
  log = participation_log.read_log(path, layout=layouts.parse('round=step'))
  assert log.unused_columns == ('model', 'timestamp')


def test_a_log_of_this_package_has_no_column_that_nothing_reads(path):
  log_tables.write_log(path, rounds=[0], device_ids=['a'], num_rounds=1, timestamps=[5])
  assert participation_log.read_log(path).unused_columns == ()


@made.cases(
  'rows, metadata, message',
  (ROWS, {**OWN, 'num_rounds': '6'}, "num_rounds is '6', but '5' in"),
  (ROWS, {'fl_dpftrl.log_version': '2'}, "num_rounds is None, but '5' in"),
  (ROWS, {**OWN, 'fl_dpftrl.run': 'x'}, "fl_dpftrl.run is 'x', but None in"),
  ({'round': [4], 'device_id': [7]}, OWN, 'device_id is whole numbers, but text in'),
)
def test_refuses_shards_that_disagree(tmp_path, rows, metadata, message):
  first = files.written(tmp_path / '1.parquet', ROWS, **OWN)
  second = files.written(tmp_path / '2.parquet', rows, **metadata)
  with pytest.raises(refusals.LogError, match='2.parquet') as raised:
    participation_log.read_log([first, second])
  assert message in str(raised.value)


def test_names_the_shard_and_row_of_a_device_twice(tmp_path):
  first = files.written(tmp_path / '1.parquet', ROWS)
  second = files.written(tmp_path / '2.parquet', {'round': [9, 3], 'device_id': ['x', 'a']})
  line = refused_by_replay([first, second], 'twice')
  assert line == f"{second}, row 2: device 'a' is twice in round 3"


def test_a_log_without_rows_is_refused(tmp_path):
  with pytest.raises(ValueError, match='rounds must not be empty: LogWriter writes rounds'):
    log_tables.write_log(tmp_path / 'l.parquet', rounds=[], device_ids=[], num_rounds=3)
  assert 'the log is empty' in files.refusal(files.written(tmp_path / 'l.csv', files.HEAD))


@pytest.mark.parametrize('ids', [[5, 7], ['5', '7']], ids=['numbers', 'text'])
def test_a_file_or_cohort_without_devices_decides_no_type(tmp_path, ids):
  nothing = {'round': [], 'device_id': []}
  types = {'null': pa.null(), 'text': pa.string(), 'number': pa.int64(), 'other': pa.float64()}
  for name, kind in types.items():
    empty = {key: pa.array([], kind) for key in nothing}
    files.written(tmp_path / f'0-{name}.parquet', empty)
    lists = {'round': [0], 'device_id': pa.array([[]], pa.list_(kind))}
    files.written(tmp_path / f'1-{name}.parquet', lists)
  files.written(tmp_path / '2.csv', files.HEAD)
  files.written(tmp_path / '3.parquet', {'round': [2, 3], 'device_id': ids})
  files.written(tmp_path / '4.parquet', {'round': [4, 5, 6], 'device_id': [[], ids, []]})
  log = participation_log.read_log(tmp_path)
  assert log.num_rounds == 7
  assert [row for table in log.tables() for row in zip(*table.to_pydict().values())] == [
    (2, ids[0]),
    (3, ids[1]),
    (5, ids[0]),
    (5, ids[1]),
  ]


def test_num_rounds_is_what_the_file_says_or_is_told(tmp_path):
  stated = files.written(tmp_path / 'stated.parquet', ROWS, **OWN)
  silent = files.written(tmp_path / 'silent.parquet', ROWS)
  for given, num_rounds, expected in ((stated, None, 5), (stated, 5, 5), (silent, 7, 7)):
    log = participation_log.read_log(given, num_rounds=num_rounds)
    assert (log.num_rounds, log.warnings, log.num_rounds_assumed) == (expected, (), False)
  guessed = participation_log.read_log(silent)
  assert (guessed.num_rounds, guessed.num_rounds_assumed) == (4, True)
  assert 'last round plus one, 4' in guessed.warnings[0]
  assert 'num_rounds is 5, not 6' in files.refusal(stated, num_rounds=6)
  assert 'row 4: round 3 is beyond the 3' in files.refusal(silent, num_rounds=3)
  for num_rounds, message in ((0, 'at least 1'), (10**9, 'at most 10000000, got 1000000')):
    with pytest.raises(refusals.LogError, match=message):
      participation_log.read_log(silent, num_rounds=num_rounds)


def test_shards_may_differ_in_what_others_wrote(tmp_path):
  paths = [
    files.written(tmp_path / f'{i}.parquet', {'round': [i], 'device_id': ['z']}, **OWN, host=f'{i}')
    for i in range(2)
  ]
  assert participation_log.read_log(paths).num_rounds == 5


def test_a_run_without_devices_beside_others(tmp_path):
  logs = []
  for number, cohorts in enumerate(([[], []], [[3], [4]])):
    with ledgers.LogWriter(tmp_path / f'{number}.parquet') as log:
      for t, cohort in enumerate(cohorts):
        log.append(t, cohort, 0)
    logs.append(participation_log.read_log(log.path))
  assert [str(log.id_type) for log in logs] == ['null', 'int64']
  opened = [
    opened_runs.RecordedRun.of(log, identity.Identity(), noise_multiplier=1.0) for log in logs
  ]
  assert counting.count(opened).num_devices == 2
  schema, metadata = log_tables.with_timestamps(pa.int64()), log_tables.file_metadata(1, None)
  log_tables.write_rounds(tmp_path / 'none.parquet', schema, metadata, [])
  assert files.rows(tmp_path / 'none.parquet') == []


def test_digest_is_of_the_files_bytes(tmp_path):
  path = files.written(tmp_path / 'l.csv', files.HEAD + b'0,a\n')
  assert participation_log.read_log(path).files()[0]['sha256'] == (
    '9b4acb27ea8ea322f8d2b1206b7e0097eda517d56a0f58113de932c7236093da'
  )
