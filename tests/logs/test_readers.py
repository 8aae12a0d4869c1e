"""Files that others wrote: refused in one line, and never what takes others down."""

import os
import signal
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.families import identity
from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.logs import limits, reader, refusals, schema
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import writer as writer_lib
from fl_dpftrl.replaying import replay, runs

HEAD = b'round,device_id\n'
OBJECT = b'{"round": 0, "device_id": "a"}\n'
DEEP = b'[' * 30_000 + b']' * 30_000


def rows(path, **kwargs):
  log = log_lib.read_log(path, **kwargs)
  return [row for table in log.tables() for row in table.to_pylist()]


def refusal(path, **kwargs):
  """The one line that a log is refused with."""
  with pytest.raises(refusals.LogError) as raised:
    rows(path, **kwargs)
  line = str(raised.value)
  assert len(line) <= 300 and line.isprintable()
  assert line.startswith(f'{path}')
  return line


def _short(value):
  """A name for a parameter: the longest would not fit into the environment."""
  return value if isinstance(value, str) else value[:20].hex()


def written(folder, name, content):
  path = folder / name
  path.write_bytes(content)
  return path


def test_a_quotation_mark_swallows_no_rows(tmp_path):
  """A device in all of 20 rounds would be one in a single round."""
  honest = [f'{t},{d}\n' for t in range(20) for d in ('a', f'x{t}')]
  path = written(tmp_path, 'l.csv', HEAD + ''.join(honest).encode())
  run = runs.Run.of(log_lib.read_log(path), tree.TreeOnline(), noise_multiplier=4.0)
  statement = replay.replay(run, deltas=1e-6)
  assert statement.max_participations == 20
  # Ids that begin with a mark that is not escaped: each hides a row of 'a'.
  hidden = ''.join(honest).replace(',x', ',"x')
  path = written(tmp_path, 'm.csv', HEAD + hidden.encode())
  assert 'm.csv, row 2: a quotation mark has no other' in refusal(path)


@pytest.mark.parametrize(
  'content, message',
  [
    (b'0,"a\n1,b\n2,c\n', 'row 1: a quotation mark'),
    (b'0,a\n1,"b\nc"\n', 'row 2: a quotation mark'),
    (b'0,"a\n",1\n', 'Expected 2 columns'),
    (b'0,a\r1,b\n', 'carriage return'),
    (b'0,a\n\r1,b\n', 'carriage return'),
    (b'0,a\n1,\xff\n', r"row 2: device_id is not UTF-8, b'\xff'"),
    (b'0,a\n\xef\xbb\xbf0,b\n', 'row 2: '),
    (b'\xff,a\n', 'row 1: round must be'),
    (b'99999999999999999999,a\n', 'row 1: round must be a whole number'),
    (b'999999999999,a\n', 'row 1: round must be below 10000000'),
    (b'0,' + b'a' * 70_000 + b'\n', 'line 2: is longer than 65536'),
    (b'0,a\n' * 3 + b'"' * 10**7 + b'\n', 'line 5: is longer than 65536'),
  ],
  ids=_short,
)
def test_refused_csv(tmp_path, content, message):
  assert message in refusal(written(tmp_path, 'l.csv', HEAD + content))


@pytest.mark.parametrize(
  'content',
  [
    HEAD + b'\n0,a\n\n\n1,b\n\n',
    HEAD.replace(b'\n', b'\r\n') + b'0,a\r\n\r\n1,"b"\r\n',
    b'\xef\xbb\xbf' + HEAD + b'0,a\n1,b\r\n',
    b'x,round,device_id\n"y, ""z""",0,a\n,1,b\n',
  ],
)
def test_lines_of_csv_that_are_no_rows_or_end_otherwise(tmp_path, content):
  path = written(tmp_path, 'l.csv', content)
  assert [tuple(row.values()) for row in rows(path)] == [(0, 'a'), (1, 'b')]


def test_many_columns(tmp_path):
  names = ','.join(f'c{i}' for i in range(9000))
  path = written(tmp_path, 'l.csv', f'{names}\n'.encode())
  assert 'more than 1024 columns' in refusal(path)


@pytest.mark.parametrize(
  'content, message',
  [
    (b'null\n' + OBJECT, 'row 1: must be a JSON object'),
    (OBJECT + b'null\n', 'row 2: must be a JSON object'),
    (DEEP + b'\n', 'row 1: must be a JSON object'),
    (OBJECT.replace(b'"a"', DEEP), 'row 1: must be a JSON object'),
    (OBJECT[:-1] + OBJECT, 'row 1: must be a JSON object'),
    (
      OBJECT[:-1] + OBJECT + b'{"round":1,"device_id":"b","x":\n' + OBJECT + b'}\n',
      'must be a JSON object',
    ),
    (OBJECT.replace(b'0', b'9' * 5000), 'row 1: must be a JSON object'),
    (OBJECT.replace(b'0', b'1e999'), 'round must be a whole number, got inf'),
    (OBJECT.replace(b'0', b'9' * 12), 'round must be below 10000000'),
    (OBJECT.replace(b'"a"', b'9' * 23), 'whole numbers of 64 bits, got 999'),
    (OBJECT.replace(b'"a"', b'true'), 'whole numbers of 64 bits, got True'),
    (OBJECT.replace(b'"a"', b'"a", "round": 2'), 'must be a JSON object'),
    (OBJECT.replace(b'a', b'\xff'), 'is not UTF-8'),
    (OBJECT.replace(b'a', b'\\ud800'), 'row 1'),
    (b' ' * 70_000 + OBJECT, 'line 1: is longer than 65536'),
  ],
  ids=_short,
)
def test_refused_json_lines(tmp_path, content, message):
  line = refusal(written(tmp_path, 'l.jsonl', content))
  assert message in line


def test_json_lines_with_blanks_and_more_keys(tmp_path):
  second = OBJECT.replace(b'a"', b'b", "x": ')
  for content in (
    b'\xef\xbb\xbf' + OBJECT + b'\n   \r\n  ' + second.replace(b': }', b': [7]}'),
    OBJECT + second.replace(b': }', b': ' + DEEP + b'}'),
  ):
    found = rows(written(tmp_path, 'l.jsonl', content))
    assert [row['device_id'] for row in found] == ['a', 'b']


@pytest.mark.slow
def test_parquet_that_claims_too_much(tmp_path):
  zeros = np.zeros(3_000_000, np.int64)
  path = tmp_path / 'l.parquet'
  in_one_page = {'max_rows_per_page': zeros.size}
  try:
    pq.write_table(pa.table({'round': zeros, 'device_id': zeros}), path, **in_one_page)
  except TypeError:  # Older releases have no such limit.
    pq.write_table(pa.table({'round': zeros, 'device_id': zeros}), path)
  assert 'claims 3000000 rows' in refusal(path)
  ids = pa.DictionaryArray.from_arrays(
    pa.array(np.zeros(1000, np.int32)), pa.array(['x' * 50_000_000])
  )
  table = pa.table({'round': np.zeros(1000, np.int64), 'device_id': ids})
  pq.write_table(table, path, compression='zstd')
  assert 'GiB of memory' in refusal(path)


@pytest.mark.slow
def test_an_honest_log_that_compresses_well_is_read(tmp_path):
  """Everybody in every round, in the same order."""
  path = tmp_path / 'l.parquet'
  schema.write_log(
    path,
    rounds=np.repeat(np.arange(4000), 500),
    device_ids=np.tile(np.arange(500), 4000),
    num_rounds=4000,
  )
  log = log_lib.read_log(path)
  assert sum(table.num_rows for table in log.tables()) == 2_000_000
  assert limits.max_rows(path.stat().st_size) / 2 > 2_000_000


@pytest.mark.parametrize(
  'metadata, message',
  [
    ({'num_rounds': '9' * 5000}, 'num_rounds must be a whole number from 1'),
    ({'num_rounds': '10000001'}, 'num_rounds must be a whole number from 1'),
    ({'num_rounds': '٣'}, 'num_rounds must be a whole number from 1'),
    ({'x': b'\xff'}, 'metadata are not UTF-8'),
    ({'x': 'y' * (1 << 21)}, 'bytes of metadata'),
    ({'fl_dpftrl.log_version': 'x' * 10**6}, 'log_version is'),
  ],
)
def test_refused_metadata(tmp_path, metadata, message):
  path = tmp_path / 'l.parquet'
  table = pa.table({'round': [0], 'device_id': ['a']})
  pq.write_table(table.replace_schema_metadata(metadata), path)
  assert message in refusal(path)


def test_refused_num_rounds_of_the_caller(tmp_path):
  path = written(tmp_path, 'l.csv', HEAD + b'0,a\n')
  with pytest.raises(refusals.LogError, match='at most 10000000, got 1000000'):
    log_lib.read_log(path, num_rounds=10**9)


def test_a_number_that_int64_does_not_hold(tmp_path):
  path = tmp_path / 'l.parquet'
  for name in ('round', 'device_id'):
    columns = {'round': [0, 1], 'device_id': [3, 4]}
    columns[name] = pa.array([0, 2**63], pa.uint64())
    pq.write_table(pa.table(columns), path)
    assert 'Integer value 9223372036854775808 not in range' in refusal(path)


def test_what_is_no_file_is_not_waited_for(tmp_path):
  os.mkfifo(tmp_path / 'l.csv')
  with pytest.raises(refusals.LogError, match='no regular file'):
    log_lib.open_shard(tmp_path / 'l.csv')


@pytest.mark.slow
@pytest.mark.parametrize(
  'number, message',
  [
    (signal.SIGSEGV, 'crashed what read it .SIGSEGV.'),
    (signal.SIGXCPU, 'takes more than 20 s of computing'),
    (signal.SIGKILL, 'was killed'),
  ],
)
def test_a_reader_that_dies_gives_a_line(tmp_path, monkeypatch, number, message):
  path = written(tmp_path, 'l.csv', HEAD + b'0,a\n')
  files = reader.Reader()
  source = reader.Source(str(path))
  files.open(source)
  process = files._idle._process.pid
  # Stopped, so that it is there when it is asked, and dies before it answers.
  os.kill(process, signal.SIGSTOP)
  ask = reader.reader_program.send_request

  def ask_and_end(*args):
    ask(*args)
    os.kill(process, number)
    os.kill(process, signal.SIGCONT)

  with monkeypatch.context() as patch:
    patch.setattr(reader.reader_program, 'send_request', ask_and_end)
    with pytest.raises(refusals.LogError, match=f'l.csv: .*{message}'):
      files.open(source)
  # The next file is read by another.
  assert files.open(source).schema.names == ['round', 'device_id']


@pytest.mark.slow
def test_rows_that_are_left_and_files_at_once(tmp_path):
  """Each reading is of its own, whatever became of others."""
  path = written(tmp_path, 'l.csv', HEAD + b'0,a\n1,b\n')
  log = log_lib.read_log(path)
  first, second = log.tables(), log.tables()
  assert next(first).num_rows == next(second).num_rows == 2
  first.close()
  assert list(second) == []
  assert len(rows(path)) == 2


@pytest.mark.slow
def test_a_log_is_replayed_while_it_is_written(tmp_path):
  """Metadata, rows and digest are of one file, which a new one may replace."""
  path = tmp_path / 'l.parquet'
  writer = writer_lib.LogWriter(path)
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
      log = log_lib.read_log(path)
      run = runs.Run.of(log, identity.Identity(), noise_multiplier=1.0)
      statement = replay.replay(run, deltas=1e-6)
      assert statement.max_participations == log.num_rounds
      assert statement.counted.num_participations == 2 * log.num_rounds - 1
      seen.append(log.num_rounds)
  finally:
    done.set()
    thread.join()
  assert len(set(seen)) > 1


def test_what_is_held_is_the_first_file(tmp_path, monkeypatch):
  path = tmp_path / 'l.parquet'
  one = dict(rounds=[0], device_ids=['a'], num_rounds=1)
  schema.write_log(path, **one)
  log = log_lib.read_log(path)
  digest = log.files()[0].sha256
  schema.write_log(path, **{**one, 'device_ids': ['b']})
  assert [t.to_pylist() for t in log.tables()] == [[{'round': 0, 'device_id': 'a'}]]
  assert log.files()[0].sha256 == digest
  # More files than a process can hold are opened again, and known again.
  monkeypatch.setattr(log_lib, '_HELD', 0)
  log = log_lib.read_log(path)
  assert [len(t) for t in log.tables()] == [1]
  schema.write_log(path, **one)
  with pytest.raises(refusals.LogError, match='was changed while it was read'):
    list(log.tables())


def test_a_file_that_grows_is_refused(tmp_path):
  path = written(tmp_path, 'l.csv', HEAD + b'0,a\n')
  log = log_lib.read_log(path, num_rounds=9)
  with path.open('ab') as file:
    file.write(b'1,b\n')
  with pytest.raises(refusals.LogError, match='was changed while it was read'):
    list(log.tables())
