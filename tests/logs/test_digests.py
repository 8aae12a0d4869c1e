"""Damaged logs of ours are refused, or say the same as before."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fl_dpftrl.logs import digests, refusals
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import writer as writer_lib


def write(path):
  writer = writer_lib.LogWriter(path, metadata={'fl_dpftrl.noise_multiplier': '8'})
  for t in range(4):
    ids = np.random.default_rng(t).choice(20, 5, replace=False)
    writer.append(t, [f'device-{i}' for i in ids], 1767225600 + 60 * t)
  writer.close()


def read(path):
  shard = log_lib.open_shard(path)
  rows = [row for t in shard.tables(shard.num_rounds) for row in t.to_pylist()]
  return rows, dict(shard.metadata), shard.num_rounds, shard.id_type


@pytest.mark.slow
def test_flipped_bits_are_refused_or_harmless(tmp_path):
  path = tmp_path / 'log.parquet'
  write(path)
  good, content = read(path), path.read_bytes()
  places = np.random.default_rng(0).choice(8 * len(content), 1000, replace=False)
  refused = 0
  for place in places.tolist():
    changed = bytearray(content)
    changed[place // 8] ^= 1 << place % 8
    path.write_bytes(changed)
    try:
      assert read(path) == good, place
    except refusals.LogError as e:
      assert str(path) in str(e)
      refused += 1
  assert refused > 300


def change_rows(table, metadata):
  return table.slice(1), metadata


def change_metadata(table, metadata):
  return table, {**metadata, b'num_rounds': b'5'}


def lose_a_digest(table, metadata):
  del metadata[digests.ROWS_KEY.encode()]
  return table, metadata


def lose_the_other(table, metadata):
  del metadata[digests.METADATA_KEY.encode()]
  return table, metadata


def lose_all_metadata(table, unused_metadata):
  return table, None


@pytest.mark.parametrize(
  'change, message',
  [
    (lose_all_metadata, 'its metadata are not those of'),
    (change_rows, 'its rows are not those of fl_dpftrl.rows_sha256'),
    (change_metadata, 'its metadata are not those of'),
    (lose_a_digest, 'its metadata are not those of'),
    (lose_the_other, 'its metadata are not those of'),
  ],
)
def test_what_was_changed_is_refused(tmp_path, change, message):
  path = tmp_path / 'log.parquet'
  write(path)
  table = pq.read_table(path)
  table, metadata = change(table, dict(table.schema.metadata))
  pq.write_table(table.replace_schema_metadata(metadata), path)
  with pytest.raises(refusals.LogError, match=message):
    read(path)


def test_times_are_checked_where_they_are_read(tmp_path):
  path = tmp_path / 'log.parquet'
  write(path)
  table = pq.read_table(path)
  times = pa.array([0] * table.num_rows, table.schema.field('timestamp').type)
  pq.write_table(table.set_column(2, 'timestamp', times), path)
  assert read(path)
  with pytest.raises(refusals.LogError, match='timestamps_sha256'):
    list(log_lib.open_shard(path, timestamps=True).tables())


def test_digests_do_not_depend_on_how_rows_come(tmp_path):
  table = pa.table(
    {'round': np.arange(50), 'device_id': pa.array([f'dévice {i % 7}' for i in range(50)])}
  )

  def stated(parts):
    rows = digests.Rows(timestamps=False)
    for part in parts:
      rows.update(part)
    return rows.stated(pa.string())

  whole = stated([table])
  assert whole == stated([table.slice(i, 1) for i in range(50)])
  assert whole == stated([table.slice(0, 7), table.slice(7)])
  assert whole != stated([table.slice(1)])
  large = table.set_column(1, 'device_id', table.column(1).cast(pa.large_string()))
  assert whole == stated([large])
  # Cut between other letters, the bytes are the same.
  ids = [pa.array(pair) for pair in (['ab', 'c'], ['a', 'bc'])]
  first, second = (pa.table({'round': [0, 1], 'device_id': i}) for i in ids)
  assert stated([first]) != stated([second])
