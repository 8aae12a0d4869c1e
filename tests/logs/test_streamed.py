import numpy as np
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import schema

COHORTS = [np.array([3, 5]), np.array([], np.int64), np.array([2**40, 7])]


def write(path, cohorts=COHORTS, num_rounds=3, **kwargs):
  with schema.round_by_round(path, num_rounds=num_rounds, **kwargs) as append:
    for t, ids in enumerate(cohorts):
      append(t, ids, 1767225600 + t)


def test_what_was_written_is_read(tmp_path):
  path = tmp_path / 'log.parquet'
  write(path, metadata={'simulated': 'yes'})
  log = log_lib.read_log(path)
  assert log.num_rounds == 3
  assert log.metadata['simulated'] == 'yes'
  assert sum(t.num_rows for t in log.tables()) == 4
  table = pq.read_table(path)
  stated = {k: v for k, v in table.schema.metadata.items() if b'sha256' in k}
  assert len(stated) == 3
  copy = tmp_path / 'copy.parquet'  # As other tools make one.
  pq.write_table(table, copy, compression='gzip')
  assert pq.read_metadata(copy).metadata.items() >= stated.items()
  assert log_lib.read_log(copy).num_rounds == 3
  assert table.column('round').to_pylist() == [0, 0, 2, 2]
  assert table.column('device_id').to_pylist() == [3, 5, 2**40, 7]
  seconds = [t.timestamp() for t in table.column('timestamp').to_pylist()]
  assert seconds == [1767225600, 1767225600, 1767225602, 1767225602]


def test_many_row_groups_and_the_same_bytes_again(tmp_path, monkeypatch):
  monkeypatch.setattr(schema, 'ROW_GROUP', 10)
  cohorts = [np.arange(t, t + 4) for t in range(20)]
  for name in ('a', 'b'):
    write(tmp_path / f'{name}.parquet', cohorts, 20)
  first, second = (tmp_path / f'{name}.parquet' for name in ('a', 'b'))
  assert first.read_bytes() == second.read_bytes()
  assert pq.ParquetFile(first).num_row_groups == 8
  assert pq.read_table(first).column('device_id').to_pylist() == [
    d for cohort in cohorts for d in cohort
  ]


def test_nothing_is_left_of_what_was_broken_off(tmp_path):
  path = tmp_path / 'log.parquet'
  with pytest.raises(KeyError):
    with schema.round_by_round(path, num_rounds=3) as append:
      append(0, COHORTS[0], 0)
      raise KeyError
  with pytest.raises(ValueError, match='num_rounds is 4, but 3'):
    write(path, num_rounds=4)
  with pytest.raises(ValueError, match='next round of the log is 2 of 2, got 2'):
    write(path, num_rounds=2)
  with pytest.raises(ValueError, match='must end in .parquet'):
    write(tmp_path / 'log.csv')
  assert not list(tmp_path.iterdir())
