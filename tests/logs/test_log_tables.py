"""Whole logs as files: their format, and what they refuse."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.logs import log_tables, participation_log
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.planning.simulation import attendances
from tests import made

LOG = dict(
  rounds=[0, 0, 1, 3],
  device_ids=['a', 'b', 'c', 'a'],
  num_rounds=5,
  timestamps=[1767225600, 1767225600, 1767227400, 1767231000],
)
COHORTS = [np.array([3, 5]), np.array([], np.int64), np.array([2**40, 7])]


def write_rounds(path, rounds=range(3)):
  schema = log_tables.with_timestamps(pa.int64())
  metadata = log_tables.file_metadata(3, {'simulated': 'yes'})
  cohorts = ((t, 1767225600 + t, pa.array(COHORTS[t])) for t in rounds)
  log_tables.write_rounds(path, schema, metadata, cohorts)


def test_the_file_is_the_formats(tmp_path, path):
  log_tables.write_log(path, **LOG, metadata={'run': 'first'})
  table = pq.read_table(path)
  assert table.schema.names == ['round', 'device_id', 'timestamp']
  assert table.schema.types == [pa.int64(), pa.string(), pa.timestamp('us', tz='UTC')]
  assert table.column('round').to_pylist() == LOG['rounds']
  assert table.column('device_id').to_pylist() == LOG['device_ids']
  times = table.column('timestamp').to_pylist()
  assert times[2].isoformat() == '2026-01-01T00:30:00+00:00'
  metadata = pq.read_metadata(path).metadata
  assert metadata[b'fl_dpftrl.log_version'] == b'2'
  assert metadata[b'num_rounds'] == b'5'
  assert metadata[b'run'] == b'first'
  assert os.listdir(tmp_path) == ['log.parquet']


def test_timestamps_are_optional_and_ids_may_be_numbers(path):
  log_tables.write_log(path, rounds=[0, 1], device_ids=np.array([7, 2**62]), num_rounds=2)
  table = pq.read_table(path)
  assert table.schema.names == ['round', 'device_id']
  assert table.column('device_id').to_pylist() == [7, 2**62]
  assert table.schema.field('device_id').type == pa.int64()


@made.cases(
  'change, message',
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
  (dict(timestamps=[10**12, 1, 2, 3]), 'timestamps must be UTC seconds, got 1000000000000'),
  (dict(metadata={'num_rounds': '9'}), 'num_rounds'),
  (dict(num_rounds=10_000_001), 'num_rounds must be at most 10000000'),
)
def test_refuses_and_writes_nothing(tmp_path, change, message):
  with pytest.raises(ValueError, match=message):
    log_tables.write_log(tmp_path / 'log.parquet', **{**LOG, **change})
  with pytest.raises(ValueError, match='must end in .parquet'):
    log_tables.write_log(tmp_path / 'log.csv', **LOG)
  assert not os.listdir(tmp_path)


def test_a_log_is_written_round_by_round(tmp_path, path):
  write_rounds(path)
  log = participation_log.read_log(path)
  assert (log.num_rounds, log.metadata['simulated']) == (3, 'yes')
  assert sum(t.num_rows for t in log.tables()) == 4
  table = pq.read_table(path)
  assert table.column('round').to_pylist() == [0, 0, 2, 2]
  assert table.column('device_id').to_pylist() == [3, 5, 2**40, 7]
  seconds = [t.timestamp() for t in table.column('timestamp').to_pylist()]
  assert seconds == [1767225600, 1767225600, 1767225602, 1767225602]
  stated = {k: v for k, v in table.schema.metadata.items() if b'sha256' in k}
  assert len(stated) == 1
  copy = tmp_path / 'copy.parquet'  # As other tools make one.
  pq.write_table(table, copy, compression='gzip')
  assert pq.read_metadata(copy).metadata.items() >= stated.items()
  assert participation_log.read_log(copy).num_rounds == 3


def test_nothing_is_left_of_what_was_broken_off(tmp_path, path):
  with pytest.raises(IndexError):
    write_rounds(path, range(4))
  with pytest.raises(ValueError, match='num_rounds is 4, but 1'):
    attendances.record([schemas.Cohort(0, COHORTS[0], 0, 0)], num_rounds=4, output=path)
  assert not list(tmp_path.iterdir())
