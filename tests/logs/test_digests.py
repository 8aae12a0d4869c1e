"""Digests: damaged logs of ours are refused, or say the same; those of rounds are chained."""

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import writing
from fl_dpftrl.logs import digests, keys, refusals, schema
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
  places = np.random.default_rng(0).choice(8 * len(content), 400, replace=False)
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
  assert refused > 120


def without(table, key):
  kept = {name: value for name, value in table.schema.metadata.items() if name != key.encode()}
  return table.replace_schema_metadata(kept)


ROWS, METADATA = 'its rows are not those of fl_dpftrl.rows_sha256', 'its metadata are not those of'


@pytest.mark.parametrize(
  'change, message',
  [
    (lambda table: table.slice(1), ROWS),
    (lambda table: table.set_column(0, 'round', pa.array([0] * table.num_rows)), ROWS),
    (lambda table: without(table, 'num_rounds'), METADATA),
    (lambda table: without(table, digests.ROWS_KEY), METADATA),
    (lambda table: without(table, digests.METADATA_KEY), METADATA),
    (lambda table: table.replace_schema_metadata(None), METADATA),
  ],
)
def test_what_was_changed_is_refused(tmp_path, change, message):
  path = tmp_path / 'log.parquet'
  write(path)
  pq.write_table(change(pq.read_table(path)), path)
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


def of_cohort(t, cohort):
  """The digest of a round, from the bytes of its columns."""
  if cohort and isinstance(cohort[0], int):
    kind, lengths, ids = b'int64', b'', np.array(sorted(cohort), '<i8').tobytes()
  else:
    texts = sorted(device.encode() for device in cohort)
    kind, lengths = b'text', np.array([len(text) for text in texts], '<i4').tobytes()
    ids = b''.join(texts)
  whole = hashlib.sha256(kind + len(cohort).to_bytes(8, 'little'))
  for column in (np.full(len(cohort), t, '<i4').tobytes(), lengths, ids):
    whole.update(hashlib.sha256(column).digest())
  return whole.digest()


@pytest.mark.parametrize('batch_rows', [1 << 20, 2])
@pytest.mark.parametrize('cohorts', [[['b', 'a'], [], ['ü', 'c', 'aa']], [[], [7, -1, 2**62], [3]]])
def test_digests_are_chained_as_documented(tmp_path, monkeypatch, cohorts, batch_rows):
  """After each round, after a crash, in the file that a reader checks, and from its rows."""
  monkeypatch.setattr(writing.embedded, '_BATCH_ROWS', batch_rows)
  path, before = tmp_path / 'log.parquet', hashlib.sha256(b'fl_dpftrl.bundle.rounds.1').digest()
  log, given = writer_lib.LogWriter(path), []
  assert log.digest == before.hex()
  for t, cohort in enumerate(cohorts):
    log.append(t, cohort, 100 + t)
    before = hashlib.sha256(before + t.to_bytes(8, 'little') + of_cohort(t, cohort)).digest()
    assert log.digest == before.hex()
    given.append(log.digest)
    del log
    log = writer_lib.LogWriter(path)  # From the journal.
    assert log.digest == before.hex()
  assert log_lib.read_log(path).shards[0].metadata[keys.CHAIN_KEY] == before.hex()
  log.close()
  assert log_lib.read_log(path).shards[0].metadata[keys.CHAIN_KEY] == before.hex()
  assert writer_lib.LogWriter(path).digest == before.hex()
  shuffled = tmp_path / 'shuffled.parquet'
  rows = [(t, device) for t, cohort in enumerate(cohorts) for device in cohort]
  columns = dict(zip(('rounds', 'device_ids'), map(list, zip(*rows[::-1]))))
  schema.write_log(shuffled, **columns, num_rounds=3)
  for log_path in (path, shuffled):
    run = dpftrl.open_run(log_path, 'tree_online', noise_multiplier=1.0)
    assert list(writing.chained(run)) == given
