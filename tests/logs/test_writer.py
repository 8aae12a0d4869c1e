"""A log that grows: durable rounds survive, whatever happens to the rest."""

import contextlib
import errno
import os
import signal
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import digests, journal, keys, refusals, schema
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.logs import writer as writer_lib
from tests.logs import files

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


@pytest.mark.slow
def test_cut_at_any_byte_no_durable_round_is_lost(tmp_path):
  path = tmp_path / 'log.parquet'
  sizes = write(path)
  file = journal.path_of(path)
  whole = file.read_bytes()
  # The metadata and round 0 appear together, by a renamed file.
  for length in sorted({*sizes, *range(sizes[0], len(whole), 3)}):
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


def test_a_journal_of_rounds_that_do_not_follow_is_refused(tmp_path):
  cohort = journal.of_cohort(1, 100, pa.array(['a']), bytes(32))
  frames = [(journal.METADATA, journal.of_metadata({})), (journal.COHORT, cohort)]
  with pytest.raises(refusals.LogError, match='round 1 follows on 0 rounds'):
    journal.JournalFile.begin(journal.path_of(tmp_path / 'log.parquet'), frames)


def test_readers_take_the_journal_until_the_log_is_closed(tmp_path):
  path = tmp_path / 'log.parquet'
  log = writer_lib.LogWriter(path, metadata={'run': 'x'})
  for t, cohort in enumerate(COHORTS):
    log.append(t, cohort, 100 + t)
  log.mark_released(3)
  found = [(t, device) for t, cohort in enumerate(COHORTS) for device in cohort]
  assert not path.exists()
  for given in (path, tmp_path, tmp_path / '*.parquet'):
    assert files.rows(given) == found
  opened = log_lib.read_log(path)
  metadata = opened.metadata
  log.close()
  assert [row for t in opened.tables() for row in t.to_pylist()]  # What was opened is still read.
  assert os.listdir(tmp_path) == ['log.parquet']
  for given in (path, tmp_path, tmp_path / '*.parquet'):
    assert files.rows(given) == found
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
  rows = files.written_rows(log)
  assert rows['device_ids'] == [*ids, ids[0]]
  assert rows['timestamps'] == [1] * len(ids) + [2]
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


def test_threads_write_one_frame_at_a_time(tmp_path):
  path, ended = tmp_path / 'log.parquet', threading.Event()
  log = writer_lib.LogWriter(path)
  log.append(0, ['a'], 0)

  def mark():
    while not ended.is_set():
      log.mark_released(log.num_rounds)

  thread = threading.Thread(target=mark)
  thread.start()
  for t in range(1, 40):
    log.append(t, ['a', f'd{t}'], t)
  ended.set()
  thread.join()
  again = writer_lib.LogWriter(path)
  assert [again.cohort(t).tolist() for t in range(1, 40)] == [['a', f'd{t}'] for t in range(1, 40)]


def test_a_fork_neither_appends_nor_closes(tmp_path):
  path = tmp_path / 'log.parquet'
  log = writer_lib.LogWriter(path)
  log.append(0, ['a'], 0)
  for call in (lambda: log.append(1, ['b'], 1), log.close):
    child = os.fork()
    if not child:
      try:
        call()
      except ValueError as error:
        os._exit(7 if 'opened by another process' in str(error) else 1)
      os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
  log.append(1, ['c'], 1)
  log.close()
  assert log_lib.read_log(path).num_rounds == 2


def test_a_fork_does_not_wait_for_a_lock_that_a_thread_held(tmp_path):
  """Of a log, a guard and an aggregator with its rows and round."""
  schema = dpftrl.MinSep(num_rounds=4, min_sep=1)
  log = writer_lib.LogWriter(tmp_path / 'log.parquet')
  guard = dpftrl.Guard('identity', 1.0, schema, 1e-6, log=tmp_path / 'guarded.parquet')
  numbers = dict(noise_multiplier=1.0, clip_norm=1.0, report_goal=1)
  with dpftrl.PrivateAggregator(
    'identity', template=np.zeros(2), folder=tmp_path / 'run', schema=schema, **numbers
  ) as aggregator:
    with aggregator.round(['a']) as round_:
      round_.add(np.zeros(2))
      calls = {
        log: lambda: log.append(0, ['a'], 1),
        guard: lambda: guard.admit(['a']),
        aggregator: lambda: aggregator.round(['b']).begin(),
        round_: lambda: round_.add(np.zeros(2)),
        aggregator._record: aggregator.privacy_loss,
      }
      for locked, call in calls.items():
        with held_by_a_thread(locked._lock):
          child = os.fork()
          if not child:
            signal.alarm(60)
            try:
              call()
            except ValueError as error:
              os._exit(7 if 'opened by another process' in str(error) else 1)
            os._exit(0)
          assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7, locked
  log.close()


@contextlib.contextmanager
def held_by_a_thread(lock):
  held, done = threading.Event(), threading.Event()

  def hold():
    with lock:
      held.set()
      done.wait()

  thread = threading.Thread(target=hold)
  thread.start()
  held.wait()
  yield
  done.set()
  thread.join()


@pytest.mark.parametrize('closed, linked', [(False, True), (True, True), (False, False)])
def test_two_writers_of_a_new_log_are_one_too_many(tmp_path, monkeypatch, closed, linked):
  """Also where a file system has no second name for a file."""

  def refuse(*paths):
    raise PermissionError(errno.EPERM, 'Operation not permitted', *map(str, paths))

  if not linked:
    monkeypatch.setattr(os, 'link', refuse)
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


def test_gives_back_what_it_was_given(tmp_path):
  path = tmp_path / 'log.parquet'
  writer_lib.LogWriter(path).append(0, [], 50)  # Its ids may be of any type later.
  writer = writer_lib.LogWriter(path)
  writer.append(1, [6, 5], 100)
  writer.append(2, [], 200)
  writer.append(3, np.array([2**40, 6]), 300)
  for log in (writer, writer_lib.LogWriter(path)):
    assert log.num_rounds == 4
    assert [log.cohort(t).tolist() for t in range(4)] == [[], [6, 5], [], [2**40, 6]]
    assert [log.timestamp(t) for t in range(-1, 4)] == [None, None, 100, 100, 300]


@pytest.mark.parametrize(
  'round_index, device_ids, timestamp, words',
  [
    (0, ['c'], 1, 'next round of the log is 1, got 0'),
    (2, ['c'], 1, 'next round of the log is 1, got 2'),
    (1, ['c', 'c'], 1, 'twice in round 1'),
    (1, [3], 1, 'one type'),
    (1, 'phone-1', 1, 'device_ids must be one list, got str'),
    (1, ['a'], 1_763_000_000_000, 'timestamp must be UTC seconds, got 1763000000000'),
    (1, ['a'], 1.5, 'timestamp must be a list of whole numbers'),
  ],
)
def test_bad_rounds_are_refused(tmp_path, round_index, device_ids, timestamp, words):
  log = writer_lib.LogWriter(tmp_path / 'log.parquet')
  log.append(0, ['a', 'b'], 100)
  before = journal.path_of(log.path).read_bytes()
  with pytest.raises(ValueError, match=words):
    log.append(round_index, device_ids, timestamp)
  assert log.num_rounds == 1 and journal.path_of(log.path).read_bytes() == before


@pytest.mark.parametrize(
  'name, metadata, words',
  [
    ('log', None, 'must end in .parquet'),
    ('nowhere/log.parquet', None, 'nowhere does not exist; make it first'),
    ('log.parquet', {'x': 2.0}, "metadata must hold texts under texts, got 2.0 under 'x'"),
    ('log.parquet', {keys.CHAIN_KEY: 'x'}, 'rounds_sha256.*which the log sets'),
  ],
)
def test_bad_arguments_are_refused_at_once(tmp_path, name, metadata, words):
  with pytest.raises(ValueError, match=words):
    writer_lib.LogWriter(tmp_path / name, metadata=metadata)
  assert not list(tmp_path.iterdir())


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
    again = writer_lib.LogWriter(writer.path)
    assert (writer.num_rounds, again.num_rounds, again.dropped) == (1, 1, None)
  writer.append(1, ['c'], 200)
  with monkeypatch.context() as patch:
    patch.setattr(os, 'replace', fail)
    with pytest.raises(OSError, match='disk full'):
      writer.close()
  assert os.listdir(tmp_path) == ['log.parquet.journal']
  assert writer_lib.LogWriter(writer.path).num_rounds == 2


def test_file_and_folder_are_synced_in_order(tmp_path, monkeypatch):
  events = []

  def noted(name, say):
    function = getattr(os, name)

    def call(*args):
      events.append(say(*args))
      function(*args)

    monkeypatch.setattr(os, name, call)

  kind = lambda descriptor: 'folder' if os.path.isdir(f'/proc/self/fd/{descriptor}') else 'file'
  noted('fsync', lambda descriptor: f'sync {kind(descriptor)}')
  noted('replace', lambda source, target: 'replace')
  noted('link', lambda source, target: 'name')
  writer = writer_lib.LogWriter(tmp_path / 'log.parquet')
  writer.append(0, ['a'], 100)
  writer.append(1, ['a'], 100)
  assert events == ['sync file', 'name', 'sync folder', 'sync file']
  events.clear()
  writer.close()
  assert events == ['sync file', 'replace', 'sync folder', 'sync folder']


def test_a_log_of_another_run_or_writer_is_not_continued(tmp_path):
  path = tmp_path / 'log.parquet'
  for closed in (False, True):
    writer = writer_lib.LogWriter(path, metadata={'fl_dpftrl.run': 'a'})
    writer.append(writer.num_rounds, ['a'], 1)
    if closed:
      writer.close()
    del writer
    for metadata in ({'fl_dpftrl.run': 'b'}, None):
      with pytest.raises(refusals.LogError, match='its metadata are those of another run'):
        writer_lib.LogWriter(path, metadata=metadata)
  kinds = [{'fl_dpftrl.arithmetic': 'covered', 'fl_dpftrl.num_coordinates': '5'}]
  kinds.append({'fl_dpftrl.arithmetic': 'lattice'})
  for begun, now in (kinds, reversed(kinds)):
    writer_lib.LogWriter(tmp_path / f'{len(begun)}.parquet', metadata=begun).append(0, ['a'], 1)
    with pytest.raises(refusals.LogError, match="give memory='engine' or 'state' as before"):
      writer_lib.LogWriter(tmp_path / f'{len(begun)}.parquet', metadata=now)
  log = dict(rounds=[0, 0, 3], device_ids=['a', 'b', 'a'], num_rounds=5)
  for change, words in (
    ({}, 'timestamp'),
    (dict(timestamps=[1, 2, 3]), 'one timestamp'),
    (dict(rounds=[3, 0, 0], timestamps=[1, 1, 1]), 'must be sorted'),
  ):
    schema.write_log(path, **log | change)
    with pytest.raises(refusals.LogError, match=words):
      writer_lib.LogWriter(path)


def test_one_log_has_the_same_bytes_however_it_came_about(tmp_path, monkeypatch):
  """At once, closed and opened again, marked as released again, and as columns."""
  monkeypatch.setattr(schema, 'ROW_GROUP', 70)
  ids, written = [f'device-{i}' for i in range(500)], []
  for stops in ((), (11,), (3, 3, 19)):
    path = tmp_path / 'log.parquet'
    path.unlink(missing_ok=True)
    writer = writer_lib.LogWriter(path)
    for t in range(20):
      for _ in range(stops.count(t)):
        writer.close()
        writer = writer_lib.LogWriter(path)
        writer.mark_released(t)
      cohort = np.random.default_rng(t).choice(ids, 11 * (t % 3), replace=False)
      writer.append(t, cohort, 1767225600 + 60 * t)
    writer.mark_released(20)
    writer.close()
    written.append(path.read_bytes())
  assert len(set(written)) == 1
  path.unlink()
  with writer_lib.LogWriter(path) as unmarked:
    for t in range(20):
      unmarked.append(t, writer.cohort(t), 1767225600 + 60 * t)
  rows = files.written_rows(unmarked)
  whole = tmp_path / 'whole.parquet'
  schema.write_log(whole, **rows, num_rounds=20)
  assert whole.read_bytes() == path.read_bytes()
  assert pq.ParquetFile(whole).num_row_groups > 1
  assert files.rows(path) == list(zip(rows['rounds'], rows['device_ids']))


def test_a_release_mark_is_kept_with_the_log_and_through_later_rounds(tmp_path):
  path = tmp_path / 'log.parquet'
  log = writer_lib.LogWriter(path)
  assert log.released() is None
  with pytest.raises(ValueError, match='0 to 0, got 1'):
    log.mark_released(1)
  log.mark_released(0)
  assert not path.exists() and log.released() == 0
  log.append(0, ['a', 'b'], 1767225600)
  assert writer_lib.LogWriter(path).released() == 0
  log.mark_released(1)
  log.append(1, ['c'], 1767225700)
  again = writer_lib.LogWriter(path)
  assert (again.released(), again.num_rounds) == (1, 2)
  again.close()
  again = writer_lib.LogWriter(path)
  assert again.released() == 1
  again.mark_released(2)
  assert writer_lib.LogWriter(path).released() == 2


@pytest.mark.parametrize('text', ['2', '-1', 'x', '9' * 400])
def test_a_release_mark_that_cannot_be_is_refused(tmp_path, text):
  path = tmp_path / 'log.parquet'
  with writer_lib.LogWriter(path) as log:
    log.append(0, ['a'], 1767225600)
  table = pq.read_table(path)
  stored = {key.decode(): value.decode() for key, value in table.schema.metadata.items()}
  del stored[digests.METADATA_KEY]
  metadata = digests.sealed({**stored, keys.RELEASED_KEY: text}, {})
  pq.write_table(table.replace_schema_metadata(metadata), path)
  with pytest.raises(refusals.LogError, match='rounds_released'):
    writer_lib.LogWriter(path)
