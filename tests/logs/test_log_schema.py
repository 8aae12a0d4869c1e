import hashlib
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.logs import journal, refusals, schema
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import writer as writer_lib

LOG = dict(
  rounds=[0, 0, 1, 3],
  device_ids=['a', 'b', 'c', 'a'],
  num_rounds=5,
  timestamps=[1767225600, 1767225600, 1767227400, 1767231000],
)


def test_the_file_is_the_formats(tmp_path):
  path = tmp_path / 'log.parquet'
  schema.write_log(path, **LOG, metadata={'run': 'first'})
  table = pq.read_table(path)
  assert table.schema.names == ['round', 'device_id', 'timestamp']
  assert table.schema.types == [pa.int64(), pa.string(), pa.timestamp('us', tz='UTC')]
  assert table.column('round').to_pylist() == LOG['rounds']
  assert table.column('device_id').to_pylist() == LOG['device_ids']
  times = table.column('timestamp').to_pylist()
  assert times[2].isoformat() == '2026-01-01T00:30:00+00:00'
  metadata = pq.read_metadata(path).metadata
  assert metadata[b'fl_dpftrl.log_version'] == b'1'
  assert metadata[b'num_rounds'] == b'5'
  assert metadata[b'run'] == b'first'
  assert os.listdir(tmp_path) == ['log.parquet']


def test_timestamps_are_optional_and_ids_may_be_numbers(tmp_path):
  path = tmp_path / 'log.parquet'
  schema.write_log(path, rounds=[0, 1], device_ids=np.array([7, 2**62]), num_rounds=2)
  table = pq.read_table(path)
  assert table.schema.names == ['round', 'device_id']
  assert table.column('device_id').to_pylist() == [7, 2**62]
  assert table.schema.field('device_id').type == pa.int64()


def test_equal_logs_have_equal_bytes_however_they_were_written(tmp_path):
  ids = np.array([f'device-{i}' for i in range(500)])
  written = []
  for name in ('one', 'two'):
    path = tmp_path / f'{name}.parquet'
    writer = writer_lib.LogWriter(path)
    for t in range(20):
      if name == 'two' and t == 11:
        writer.close()
        writer = writer_lib.LogWriter(path)
      cohort = ids[np.random.default_rng(t).choice(500, 40, replace=False)]
      writer.append(t, cohort, 1767225600 + 60 * t)
    writer.close()
    written.append(hashlib.sha256(path.read_bytes()).hexdigest())
  rows = writer.rows()
  whole = tmp_path / 'three.parquet'
  schema.write_log(
    whole, rounds=rows.rounds, device_ids=rows.device_ids, timestamps=rows.timestamps, num_rounds=20
  )
  written.append(hashlib.sha256(whole.read_bytes()).hexdigest())
  assert len(set(written)) == 1


@pytest.mark.parametrize(
  'change, message',
  [
    (dict(rounds=[0, 0, 1, 5]), 'got 0 to 5'),
    (dict(rounds=[-1, 0, 1, 3]), 'got -1 to 3'),
    (dict(rounds=[0, 0, 1]), 'one length'),
    (dict(rounds=[0.0, 0.0, 1.0, 3.0]), 'rounds must be a list of whole'),
    (dict(device_ids=['a', 'a', 'c', 'a']), 'twice'),
    (dict(device_ids=['a', 1, 'c', 'a']), 'device_ids'),
    (dict(device_ids=['a', None, 'c', 'a']), 'device_ids'),
    (dict(device_ids=['a', '', 'c', 'a']), 'empty'),
    (dict(device_ids=[1.0, 2.0, 3.0, 4.0]), 'device_ids'),
    (dict(timestamps=[0.5, 1, 2, 3]), 'timestamps'),
    (dict(metadata={'num_rounds': '9'}), 'num_rounds'),
  ],
)
def test_refuses_and_writes_nothing(tmp_path, change, message):
  with pytest.raises(ValueError, match=message):
    schema.write_log(tmp_path / 'log.parquet', **{**LOG, **change})
  assert not os.listdir(tmp_path)


def test_refuses_another_suffix(tmp_path):
  with pytest.raises(ValueError, match='.parquet'):
    schema.write_log(tmp_path / 'log.csv', **LOG)
  with pytest.raises(ValueError, match='.parquet'):
    writer_lib.LogWriter(tmp_path / 'log')


def test_writer_gives_back_what_it_was_given(tmp_path):
  path = tmp_path / 'log.parquet'
  writer = writer_lib.LogWriter(path)
  assert writer.num_rounds == 0
  assert not path.exists()
  writer.append(0, ['b', 'a'], 100)
  writer.append(1, [], 200)
  writer.append(2, np.array(['c', 'b']), 300)
  for log in (writer, writer_lib.LogWriter(path)):
    assert log.num_rounds == 3
    assert [log.cohort(t).tolist() for t in range(3)] == [['b', 'a'], [], ['c', 'b']]
    assert [column.tolist() for column in log.rows()] == [
      [0, 0, 2, 2],
      ['b', 'a', 'c', 'b'],
      [100, 100, 300, 300],
    ]
    assert log.rows(before=2).rounds.tolist() == [0, 0]
    assert log.rows(before=0).device_ids.size == 0
  assert log_lib.read_log(path).num_rounds == 3


def test_a_log_of_rounds_without_devices_goes_on(tmp_path):
  path = tmp_path / 'log.parquet'
  writer_lib.LogWriter(path).append(0, [], 100)
  writer = writer_lib.LogWriter(path)
  writer.append(1, [5, 6], 200)
  assert writer_lib.LogWriter(path).cohort(1).tolist() == [5, 6]


def test_writer_refuses(tmp_path):
  writer = writer_lib.LogWriter(tmp_path / 'log.parquet')
  writer.append(0, ['a', 'b'], 100)
  journal_path = journal.path_of(writer.path)
  before = journal_path.read_bytes()
  with pytest.raises(ValueError, match='next round of the log is 1, got 0'):
    writer.append(0, ['c'], 100)
  with pytest.raises(ValueError, match='next round of the log is 1, got 2'):
    writer.append(2, ['c'], 100)
  with pytest.raises(ValueError, match='twice in round 1'):
    writer.append(1, ['c', 'c'], 100)
  with pytest.raises(ValueError, match='one type'):
    writer.append(1, [3], 100)
  assert writer.num_rounds == 1
  assert journal_path.read_bytes() == before


def test_a_failed_write_leaves_the_log_as_it_was(tmp_path, monkeypatch):
  writer = writer_lib.LogWriter(tmp_path / 'log.parquet')
  writer.append(0, ['a', 'b'], 100)

  def fail(*unused_args):
    raise OSError(28, 'disk full')

  for name in ('pwrite', 'fsync'):
    with monkeypatch.context() as patch:
      patch.setattr(os, name, fail)
      with pytest.raises(OSError, match='disk full'):
        writer.append(1, ['c'], 200)
    assert writer.num_rounds == 1
    assert os.listdir(tmp_path) == ['log.parquet.journal']
    again = writer_lib.LogWriter(writer.path)
    assert (again.num_rounds, again.dropped) == (1, None)
  writer.append(1, ['c'], 200)
  with monkeypatch.context() as patch:
    patch.setattr(os, 'replace', fail)
    with pytest.raises(OSError, match='disk full'):
      writer.close()
  assert os.listdir(tmp_path) == ['log.parquet.journal']
  assert writer_lib.LogWriter(writer.path).num_rounds == 2


def test_file_and_folder_are_synced_in_order(tmp_path, monkeypatch):
  events = []
  fsync, replace, link = os.fsync, os.replace, os.link

  def note_sync(descriptor):
    kind = 'folder' if os.path.isdir(f'/proc/self/fd/{descriptor}') else 'file'
    events.append(f'sync {kind}')
    fsync(descriptor)

  def note_replace(source, target):
    events.append('replace')
    replace(source, target)

  def note_link(source, target):
    events.append('name')
    link(source, target)

  monkeypatch.setattr(os, 'fsync', note_sync)
  monkeypatch.setattr(os, 'replace', note_replace)
  monkeypatch.setattr(os, 'link', note_link)
  writer = writer_lib.LogWriter(tmp_path / 'log.parquet')
  writer.append(0, ['a'], 100)
  assert events == ['sync file', 'name', 'sync folder']
  events.clear()
  writer.append(1, ['a'], 100)
  assert events == ['sync file']
  events.clear()
  writer.close()
  assert events == ['sync file', 'replace', 'sync folder', 'sync folder']


def test_going_on_refuses_what_it_did_not_write(tmp_path):
  path = tmp_path / 'log.parquet'
  for closed in (False, True):
    writer = writer_lib.LogWriter(path, metadata={'fl_dpftrl.run': 'a'})
    writer.append(writer.num_rounds, ['a'], 1)
    if closed:
      writer.close()
    del writer
    for metadata in ({'fl_dpftrl.run': 'b'}, None):
      with pytest.raises(refusals.LogError, match='metadata'):
        writer_lib.LogWriter(path, metadata=metadata)
  schema.write_log(path, **{**LOG, 'timestamps': None})
  with pytest.raises(refusals.LogError, match='timestamp'):
    writer_lib.LogWriter(path)
  schema.write_log(path, **{**LOG, 'timestamps': [1, 2, 3, 4]})
  with pytest.raises(refusals.LogError, match='one timestamp'):
    writer_lib.LogWriter(path)
  schema.write_log(path, **{**LOG, 'rounds': [3, 0, 1, 0]})
  with pytest.raises(refusals.LogError, match='must be sorted'):
    writer_lib.LogWriter(path)
  schema.write_log(path, **LOG)
  path.write_bytes(path.read_bytes()[:-7])
  with pytest.raises(refusals.LogError, match='cannot be read'):
    writer_lib.LogWriter(path)
