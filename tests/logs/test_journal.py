"""A log that is being written: durable rounds survive, whatever happens to the rest."""

import errno
import hashlib
import os
import struct

import numpy as np
import pyarrow as pa
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.bundles import writing
from fl_dpftrl.logs import digests, journal, keys, refusals, schema
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import writer as writer_lib

COHORTS = (['a', 'bb'], [], ['ccc', 'é'], ['a'])


def write(path, cohorts=COHORTS, first=0):
  """Writes rounds; returns the sizes of the journal after each of them."""
  sizes = []
  log = writer_lib.LogWriter(path, metadata={'run': 'x'})
  for t, cohort in enumerate(cohorts, first):
    log.append(t, cohort, 100 + t)
    sizes.append(journal.path_of(path).stat().st_size)
  return sizes


def cohorts(path):
  log = writer_lib.LogWriter(path, metadata={'run': 'x'})
  return [log.cohort(t).tolist() for t in range(log.num_rounds)]


def rows(path):
  log = log_lib.read_log(path)
  return [tuple(row.values()) for table in log.tables() for row in table.to_pylist()]


@pytest.mark.slow
def test_cut_at_any_byte_no_durable_round_is_lost(tmp_path):
  path = tmp_path / 'log.parquet'
  sizes = write(path)
  file = journal.path_of(path)
  whole = file.read_bytes()
  # The metadata and round 0 appear together, by a renamed file.
  for length in range(sizes[0], len(whole) + 1):
    file.write_bytes(whole[:length])
    durable = sum(size <= length for size in sizes)
    log = writer_lib.LogWriter(path, metadata={'run': 'x'})
    assert [log.cohort(t).tolist() for t in range(log.num_rounds)] == list(COHORTS[:durable])
    torn = length not in sizes
    assert (log.dropped is not None) == torn
    if torn:
      assert f'its last {length - sizes[durable - 1]} bytes' in log.dropped
    log.append(durable, ['z'], 500)
    del log
    assert cohorts(path) == [*COHORTS[:durable], ['z']]
  for length in range(20):
    file.write_bytes(whole[:length])
    with pytest.raises(refusals.LogError, match='no journal'):
      writer_lib.LogWriter(path, metadata={'run': 'x'})


def test_garbage_or_zeros_after_the_last_round_are_dropped(tmp_path):
  path = tmp_path / 'log.parquet'
  write(path)
  file = journal.path_of(path)
  whole = file.read_bytes()
  for tail in (b'\0' * 500, os.urandom(99), whole[:40], whole[-60:-1]):
    file.write_bytes(whole + tail)
    assert cohorts(path) == list(COHORTS)
    log = log_lib.read_log(path)
    assert any(f'its last {len(tail)} bytes' in line for line in log.warnings)
    assert log.num_rounds == 4


def test_a_flipped_bit_before_the_last_frame_is_refused(tmp_path):
  path = tmp_path / 'log.parquet'
  sizes = write(path)
  file = journal.path_of(path)
  whole = file.read_bytes()
  for place in range(sizes[-2]):
    changed = bytearray(whole)
    changed[place] ^= 1 << place % 8
    file.write_bytes(changed)
    with pytest.raises(refusals.LogError, match='is damaged at byte|no journal'):
      writer_lib.LogWriter(path, metadata={'run': 'x'})
  changed = bytearray(whole)
  changed[sizes[0] // 2] ^= 1
  file.write_bytes(changed)
  with pytest.raises(refusals.LogError, match='is damaged at byte|no journal'):
    log_lib.read_log(path)


def test_readers_take_the_journal_until_the_log_is_closed(tmp_path):
  path = tmp_path / 'log.parquet'
  log = writer_lib.LogWriter(path, metadata={'run': 'x'})
  for t, cohort in enumerate(COHORTS):
    log.append(t, cohort, 100 + t)
  log.mark_released(3)
  found = [(t, device) for t, cohort in enumerate(COHORTS) for device in cohort]
  assert not path.exists()
  for given in (path, tmp_path, tmp_path / '*.parquet'):
    assert rows(given) == found
  opened = log_lib.read_log(path)
  metadata = opened.metadata
  log.close()
  assert [row for t in opened.tables() for row in t.to_pylist()]  # What was opened is still read.
  assert os.listdir(tmp_path) == ['log.parquet']
  for given in (path, tmp_path, tmp_path / '*.parquet'):
    assert rows(given) == found
  assert log_lib.read_log(path).metadata == metadata
  assert log.cohort(2).tolist() == COHORTS[2]
  with pytest.raises(ValueError, match='was closed'):
    log.append(4, ['a'], 200)


@pytest.mark.parametrize('ids', [[7, 2**62, -1], ['x', 'y']])
def test_a_parquet_file_is_continued(tmp_path, ids):
  path = tmp_path / 'log.parquet'
  with writer_lib.LogWriter(path) as log:
    log.append(0, ids, 1)
    log.mark_released(1)
  del log
  log = writer_lib.LogWriter(path)
  before = path.read_bytes()
  assert log.num_rounds == 1 and not journal.path_of(path).exists()
  log.append(1, ids[:1], 2)
  assert not path.exists()
  assert log.rows().device_ids.tolist() == [*ids, ids[0]]
  assert log.rows().timestamps.tolist() == [1] * len(ids) + [2]
  del log
  path.write_bytes(before)  # As if it had not been removed before a crash.
  with pytest.raises(refusals.LogError, match='open the log with LogWriter'):
    log_lib.read_log(path)
  log = writer_lib.LogWriter(path)
  assert (log.num_rounds, log.released(), log.timestamp(1)) == (2, 1, 2)
  log.close()
  assert log_lib.read_log(path).num_rounds == 2


def test_a_journal_older_than_its_log_is_refused(tmp_path):
  path = tmp_path / 'log.parquet'
  write(path)
  schema.write_log(path, rounds=[0], device_ids=['a'], num_rounds=9)
  with pytest.raises(refusals.LogError, match='has more rounds'):
    writer_lib.LogWriter(path, metadata={'run': 'x'})


def test_one_writer_at_a_time(tmp_path):
  path = tmp_path / 'log.parquet'
  first = writer_lib.LogWriter(path)
  first.append(0, ['a'], 1)
  second = writer_lib.LogWriter(path)
  with pytest.raises(ValueError, match='held by another writer'):
    second.append(1, ['b'], 1)
  first.append(1, ['a'], 1)
  del first
  with pytest.raises(ValueError, match='changed by another writer'):
    second.append(1, ['b'], 1)
  third = writer_lib.LogWriter(path)
  third.append(2, ['c'], 1)
  assert third.num_rounds == 3


@pytest.mark.parametrize('closed', [False, True])
def test_two_writers_of_a_new_log_are_one_too_many(tmp_path, closed):
  path = tmp_path / 'log.parquet'
  first, second = writer_lib.LogWriter(path), writer_lib.LogWriter(path)
  first.append(0, ['a'], 1)
  if closed:
    first.close()
  for _ in range(2):
    with pytest.raises(ValueError, match='by another writer.*open the log again'):
      second.append(0, ['b'], 1)
  second.close()
  first.close()
  with writer_lib.LogWriter(path) as third:
    assert third.cohort(0).tolist() == ['a']
    third.append(1, ['b'], 1)
  assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_finished_log_that_another_writer_went_on_with_is_not_taken_back(tmp_path):
  path = tmp_path / 'log.parquet'
  with writer_lib.LogWriter(path) as log:
    log.append(0, ['a'], 1)
  late = writer_lib.LogWriter(path)
  with writer_lib.LogWriter(path) as log:
    log.append(1, ['b'], 1)
  with pytest.raises(ValueError, match='changed by another writer'):
    late.append(1, ['c'], 1)
  assert log_lib.read_log(path).num_rounds == 2


def test_one_writer_where_files_have_no_second_name(tmp_path, monkeypatch):
  def refuse(*paths):
    raise PermissionError(errno.EPERM, 'Operation not permitted', *map(str, paths))

  monkeypatch.setattr(os, 'link', refuse)
  path = tmp_path / 'log.parquet'
  first, second = writer_lib.LogWriter(path), writer_lib.LogWriter(path)
  first.append(0, ['a'], 1)
  with pytest.raises(ValueError, match='begun by another writer'):
    second.append(0, ['b'], 1)
  assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
  'device_ids, timestamp, words',
  [
    ('phone-1', 1, "device_ids must be a list of ids, got 'phone-1'"),
    (['a'], 1_763_000_000_000, 'timestamp must be UTC seconds, got 1763000000000'),
    (['a'], 1.5, 'timestamp must be a list of whole numbers'),
  ],
)
def test_bad_rounds_are_refused(tmp_path, device_ids, timestamp, words):
  log = writer_lib.LogWriter(tmp_path / 'log.parquet')
  with pytest.raises(ValueError, match=words):
    log.append(0, device_ids, timestamp)
  assert not list(tmp_path.iterdir())


def test_bad_arguments_are_refused_at_once(tmp_path):
  with pytest.raises(ValueError, match='nowhere does not exist; make it first'):
    writer_lib.LogWriter(tmp_path / 'nowhere' / 'log.parquet')
  with pytest.raises(ValueError, match="metadata must hold texts under texts, got 2.0 under 'x'"):
    writer_lib.LogWriter(tmp_path / 'log.parquet', metadata={'x': 2.0})
  assert not list(tmp_path.iterdir())


def test_many_rows_are_one_file_in_row_groups(tmp_path, monkeypatch):
  monkeypatch.setattr(schema, 'ROW_GROUP', 7)
  with writer_lib.LogWriter(tmp_path / 'one.parquet') as log:
    for t in range(9):
      log.append(t, list(range(t)), 50 * t)
  found = log.rows()
  schema.write_log(
    tmp_path / 'two.parquet',
    rounds=found.rounds,
    device_ids=found.device_ids,
    timestamps=found.timestamps,
    num_rounds=9,
  )
  assert (tmp_path / 'one.parquet').read_bytes() == (tmp_path / 'two.parquet').read_bytes()
  assert rows(tmp_path / 'one.parquet') == [(t, i) for t in range(9) for i in range(t)]


@pytest.mark.parametrize('cohorts', [[['b', 'a'], [], ['ü', 'c', 'aa']], [[], [7, -1, 2**62], [3]]])
def test_digests_are_chained_as_rounds_are_written(tmp_path, cohorts):
  """By definition, after each round, after a crash, and in the file that a reader checks."""
  path, before = tmp_path / 'log.parquet', hashlib.sha256(b'fl_dpftrl.bundle.rounds.1').digest()
  log, given = writer_lib.LogWriter(path), []
  assert log.digest == before.hex()
  for t, cohort in enumerate(cohorts):
    log.append(t, cohort, 100 + t)
    rows = digests.Rows(timestamps=False)
    if cohort:
      ordered = sorted(cohort, key=lambda i: i.encode() if isinstance(i, str) else i)
      rows.update(pa.table({'round': np.full(len(cohort), t), 'device_id': ordered}))
    kind = pa.string() if not cohort or isinstance(cohort[0], str) else pa.int64()
    stated = bytes.fromhex(rows.stated(kind)[digests.ROWS_KEY])
    before = hashlib.sha256(before + t.to_bytes(8, 'little') + stated).digest()
    assert log.digest == before.hex()
    given.append(log.digest)
    del log
    log = writer_lib.LogWriter(path)  # From the journal.
    assert log.digest == before.hex()
  assert len(set(given)) == len(cohorts)
  assert log_lib.read_log(path).shards[0].metadata[keys.CHAIN_KEY] == before.hex()
  log.close()
  assert log_lib.read_log(path).shards[0].metadata[keys.CHAIN_KEY] == before.hex()
  assert list(writing.chained(dpftrl.open_run(path, 'tree_online', noise_multiplier=1.0))) == given
  assert writer_lib.LogWriter(path).digest == before.hex()


def test_a_journal_of_an_earlier_release_is_chained_from_its_cohorts(tmp_path, monkeypatch):
  path = tmp_path / 'log.parquet'
  with monkeypatch.context() as patched:
    patched.setattr(journal, 'of_cohort', old_cohort)
    before = writer_lib.LogWriter(path)
    before.append(0, ['a'], 1)
    before.append(1, ['b'], 2)
    del before
  log = writer_lib.LogWriter(path)
  log.append(2, ['a', 'b'], 3)
  new = writer_lib.LogWriter(tmp_path / 'new.parquet')
  for t, cohort in enumerate((['a'], ['b'], ['a', 'b'])):
    new.append(t, cohort, 1)
  assert log.digest == new.digest
  log.close()
  assert rows(path) == [(0, 'a'), (1, 'b'), (2, 'a'), (2, 'b')]


def old_cohort(round_index, timestamp, ids, digest):
  """A round as journals had it before their digests were chained by round."""
  del digest
  text = ''.join(ids.to_pylist()).encode()
  sizes = np.ones(len(ids), '<i4').tobytes()
  return struct.pack('<qqcI', round_index, timestamp, b't', len(ids)) + sizes + text
