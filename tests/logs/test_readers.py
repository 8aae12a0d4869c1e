"""Files that others wrote: refused in one line, and never what takes others down."""

import builtins
import errno
import io
import json
import os
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.logs import (
  layouts,
  ledgers,
  limits,
  lines,
  log_tables,
  participation_log,
  readers,
  refusals,
)
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.prove.replaying import opened_runs, replays
from tests import made
from tests.commands import lines as programs
from tests.logs import files

CSV = {
  b'0,"a\n1,b\n2,c\n': 'row 1: a quotation mark has no other',
  b'0,a\n1,"b\nc"\n': 'row 2: a quotation mark',
  b'0,"a\n",1\n': 'Expected 2 columns',
  b'0,a\n1,b,c\n': 'Expected 2 columns',
  b'0,a\r1,b\n': 'carriage return',
  b'0,a\n\r1,b\n': 'carriage return',
  b'0,a\n1,\xff\n': r"row 2: device_id is not UTF-8, b'\xff'",
  b'0,a\n\xef\xbb\xbf0,b\n': 'row 2: ',
  b'\xff,a\n': 'row 1: round must be',
  b'0,a\n1.5,b\n': "row 2: round must be a whole number, got '1.5'",
  b'0,a\n,b\n': "row 2: round must be a whole number, got ''",
  b'99999999999999999999,a\n': 'row 1: round must be a whole number',
  b'999999999999,a\n': 'row 1: round must be below 10000000',
  b'0,a\n1, a\n': "row 2: device_id has spaces around it, ' a'",
  b'0,a\n1,b': 'does not end with a newline',
  b'0,' + b'a' * 70_000 + b'\n': 'line 2: is longer than 65536',
  b'0,a\n' * 3 + b'"' * 10**7 + b'\n': 'line 5: is longer than 65536',
}
TABLE = {'round': [0, 0, 1, 3], 'device_id': list('abca')}
OWN = {'fl_dpftrl.log_version': '2', 'num_rounds': '5'}
HUGE = [0, 2**63]
PARQUET = [
  ({**TABLE, 'round': [0, 1, 2, -2]}, OWN, 'row 4: round must be at least 0, got -2'),
  ({**TABLE, 'round': [0, None, 1, 3]}, OWN, 'row 2: has no round'),
  ({**TABLE, 'device_id': ['a', None, 'c', 'a']}, OWN, 'row 2: has no device_id'),
  ({**TABLE, 'device_id': ['a', '', 'c', 'a']}, OWN, 'row 2: device_id is empty'),
  ({**TABLE, 'round': [0, 0, 1, 5]}, OWN, 'row 4: round 5 is beyond the 5 rounds'),
  ({**TABLE, 'round': [1, 2, 3, 5]}, OWN, 'count from 0; if they begin at 1, give first_round=1'),
  ({**TABLE, 'round': [0.0] * 4}, OWN, 'round must be whole numbers, is double'),
  ({**TABLE, 'device_id': [1.5] * 4}, OWN, 'device_id must be text or whole numbers, is double'),
  ({'round': pa.array(HUGE, pa.uint64()), 'device_id': [3, 4]}, {}, f'{2**63} not in range'),
  ({'round': [0, 1], 'device_id': pa.array(HUGE, pa.uint64())}, {}, f'{2**63} not in range'),
  (TABLE, OWN | {'fl_dpftrl.log_version': '1'}, "fl_dpftrl.log_version is '1', known is 2"),
  (TABLE, {'fl_dpftrl.log_version': 'x' * 10**6}, 'log_version is'),
  *(
    (TABLE, {'num_rounds': text}, 'num_rounds must be a whole number from 1 to 10000000, got')
    for text in ('x', '0', '9' * 5000, '10000001', '٣')
  ),
  (TABLE, {'x': b'\xff'}, 'metadata are not UTF-8'),
  (TABLE, {'x': 'y' * (1 << 21)}, 'bytes of metadata'),
]
OTHERS = [
  ('l.csv', '', {}, 'begins with no line of names'),
  ('l.csv', ','.join(f'c{i}' for i in range(9000)) + '\n', {}, 'more than 1024 columns'),
  ('l.csv', 'round,device\n0,a\n', {}, "no column 'device_id'; its columns are 'round', 'device'"),
  ('l.csv', 'step,device_id\n0,a\n', {}, 'say which it is: --columns=round='),
  ('l.csv', 'round,device_id,round\n0,a,1\n', {}, "more than one column 'round'"),
  ('l.csv', 'round,device_id\n0,a\n', {'first_round': 1}, 'round 0 is before first_round=1'),
  *(
    (name, 'round,device_id\n0,a\n', {}, 'must end in .parquet or .csv; docs/write-the-log.md says')
    for name in ('l.txt', 'l.tsv', 'l.csv.gz', 'l.jsonl', 'l.ndjson', 'l.json', 'l.jsonl.gz')
  ),
  ('round=x/l.csv', 'device_id\na\n', {}, "round must be a whole number, but its folder says 'x'"),
  ('round=x/l.parquet', {'device_id': ['a']}, {}, "but its folder says 'x'"),
]


@made.cases(
  'name, content, metadata, layout, message',
  *(('l.csv', files.HEAD + content, {}, {}, message) for content, message in CSV.items()),
  *(('l.parquet', content, metadata, {}, message) for content, metadata, message in PARQUET),
  *((name, content, {}, layout, message) for name, content, layout, message in OTHERS),
  ids=lambda value: repr(value)[:30],
)
def test_refused_in_one_line(tmp_path, name, content, metadata, layout, message):
  path = files.written(tmp_path / name, content, **metadata)
  assert message in files.refusal(path, layout=layouts.PLAIN._replace(**layout))


@pytest.mark.parametrize('block', [1, 2, 5, 11, 40])
def test_lines_are_whole_however_a_file_is_cut(monkeypatch, block):
  monkeypatch.setattr(lines, '_BLOCK', block)
  plain, odd = b'0,a\n1,bb\n\n2,c\n', b'0,a\n\xef\xbb\xbf1,b\n'
  read = lambda content: lines.CsvReader(
    'l', io.BytesIO(files.HEAD + content), layouts.PLAIN
  ).tables()
  found = pa.concat_tables(read(plain))
  assert found.to_pydict() == {'round': [0, 1, 2], 'device_id': ['a', 'bb', 'c']}
  with pytest.raises(refusals.LogError, match='l, row 2: '):
    list(read(odd))


@pytest.mark.slow
def test_parquet_that_claims_too_much(tmp_path):
  zeros = np.zeros(3_000_000, np.int64)
  path = tmp_path / 'l.parquet'
  in_one_page = {'max_rows_per_page': zeros.size}
  try:
    pq.write_table(pa.table({'round': zeros, 'device_id': zeros}), path, **in_one_page)
  except TypeError:  # Older releases have no such limit.
    pq.write_table(pa.table({'round': zeros, 'device_id': zeros}), path)
  assert 'claims 3000000 rows' in files.refusal(path)
  ids = pa.DictionaryArray.from_arrays(
    pa.array(np.zeros(1000, np.int32)), pa.array(['x' * 50_000_000])
  )
  table = pa.table({'round': np.zeros(1000, np.int64), 'device_id': ids})
  pq.write_table(table, path, compression='zstd')
  assert 'from row 1 on: a device_id is longer than 1024 bytes' in files.refusal(path)


@pytest.mark.slow
def test_an_honest_log_that_compresses_well_is_read(tmp_path):
  """Everybody in every round, in the same order."""
  path = tmp_path / 'l.parquet'
  log_tables.write_log(
    path,
    rounds=np.repeat(np.arange(2400), 500),
    device_ids=np.tile(np.arange(500), 2400),
    num_rounds=2400,
  )
  log = participation_log.read_log(path)
  assert sum(table.num_rows for table in log.tables()) == 1_200_000
  assert limits.max_rows(path.stat().st_size) / 2 > 1_200_000


def test_what_is_no_file_is_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / 'l.csv')
  with pytest.raises(refusals.LogError, match='no regular file'):
    readers.Source(os.fspath(tmp_path / 'l.csv'))


@pytest.mark.parametrize('change', ['replaced', 'grown', 'rewritten with its old time'])
def test_a_file_that_is_changed_is_refused(tmp_path, change):
  path = files.written(tmp_path / 'l.csv', files.HEAD + b'0,a\n')
  log = participation_log.read_log(path, num_rounds=9)
  assert [t.to_pylist() for t in log.tables()] == [[{'round': 0, 'device_id': 'a'}]]
  state, content = path.stat(), path.read_bytes()
  if change == 'replaced':
    os.replace(files.written(tmp_path / 'new', content), path)
  else:
    path.write_bytes(content + b'1,b\n' if change == 'grown' else content.replace(b'0,a', b'0,c'))
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
  for read in (lambda: list(log.tables()), log.files):
    with pytest.raises(refusals.LogError, match='was changed while it was read'):
      read()


@pytest.mark.parametrize('kept', [0.2, 0.9, 0.999])
def test_refuses_a_truncated_file(tmp_path, kept):
  table = {'round': range(999), 'device_id': [f'd{i % 7}' for i in range(999)]}
  path = files.written(tmp_path / 'l.parquet', table)
  whole = path.read_bytes()
  path.write_bytes(whole[: int(kept * len(whole))])
  assert 'cannot be read' in files.refusal(path)


@pytest.mark.slow
def test_a_log_is_replayed_while_it_is_written(tmp_path):
  """Metadata, rows and digest are of one file, which a new one may replace."""
  path = tmp_path / 'l.parquet'
  writer = ledgers.LogWriter(path)
  writer.append(0, ['a'], 0)
  done = threading.Event()

  def write():
    while not done.is_set():
      writer.append(writer.num_rounds, ['a', f'd{writer.num_rounds}'], 0)
      time.sleep(0.002)  # Else this thread is all that runs.

  thread = threading.Thread(target=write)
  thread.start()
  try:
    seen = []
    for _ in range(5):
      log = participation_log.read_log(path)
      run = opened_runs.RecordedRun.of(log, identity.Identity(), noise_multiplier=1.0)
      statement = replays.replay(run, delta=1e-6)
      assert statement.max_participations == log.num_rounds
      assert statement.num_participations == 2 * log.num_rounds - 1
      seen.append(log.num_rounds)
  finally:
    done.set()
    thread.join()
  assert len(set(seen)) > 1


@pytest.mark.parametrize('suffix', ['parquet', 'csv'])
def test_logs_and_counts_are_read_where_there_is_no_proc(tmp_path, monkeypatch, suffix):
  real = builtins.open

  def opened(path, *given, **options):
    if str(path).startswith('/proc'):
      raise FileNotFoundError(errno.ENOENT, 'No such file or directory', path)
    return real(path, *given, **options)

  monkeypatch.setattr(builtins, 'open', opened)
  monkeypatch.delattr(os, 'sched_getaffinity')
  contents = {
    'parquet': {'round': [0, 1, 4], 'device_id': list('aba')},
    'csv': 'round,device_id\n0,a\n1,b\n4,a\n',
  }
  path = files.written(tmp_path / f'log.{suffix}', contents[suffix])
  asked = ['replay', '--strategy=identity', '--noise_multiplier=3', '--delta=1e-6']
  asked += ['--num_rounds=5']
  first = programs.run([*asked, f'--log={path}', f'--write_counts={tmp_path}/c.csv', '--json'])
  again = programs.run([*asked, f'--from_counts={tmp_path}/c.csv', '--json'])
  assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
  assert json.loads(first.stdout)['worst_case'] == json.loads(again.stdout)['worst_case']
