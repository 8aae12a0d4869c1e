"""Ledgers that are read beside their writer: nothing is written there, and no copy stays."""

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile

import pytest

from fl_dpftrl.logs import databases, ledger_format, ledger_reader, ledgers, refusals
from tests import forks

COHORTS = [['a', 'bb'], [], ['ccc'], ['a']]


@pytest.fixture
def log(tmp_path):
  """A log in a folder of its own, copied while it was written, so that no process has it open."""
  folder = tmp_path / 'run'
  (tmp_path / 'open').mkdir()
  writer = ledgers.LogWriter(tmp_path / 'open' / 'log.parquet')
  for t, cohort in enumerate(COHORTS):
    writer.append(t, cohort, 100)
  shutil.copytree(tmp_path / 'open', folder)
  writer.release()
  return folder / 'log.ledger'


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  """The folder in which readers have their own files."""
  folder = tmp_path / 'temporary'
  folder.mkdir()
  monkeypatch.setattr(tempfile, 'tempdir', str(folder))
  return folder


def state(folder):
  """Names, inodes, contents and times of all files of a folder, and its own time."""
  files = {f.name: (f.stat(), f.read_bytes()) for f in folder.iterdir()}
  states = {n: (s.st_ino, s.st_mtime_ns, content) for n, (s, content) in files.items()}
  return states, folder.stat().st_mtime_ns


def rows_of(reader):
  return [tuple(row.values()) for table in reader.tables() for row in table.to_pylist()]


def test_the_copy_of_a_reader_is_closed_with_it(log):
  reader = ledger_reader.Reader(str(log))
  database = reader._database
  del reader
  gc.collect()
  with pytest.raises(sqlite3.ProgrammingError, match='closed'):
    database.execute('SELECT 1')


ROWS = [(t, device) for t, cohort in enumerate(COHORTS) for device in cohort]


@pytest.mark.parametrize('through_link', [False, True])
def test_a_reader_writes_nothing_beside_a_ledger_and_leaves_no_copy(
  tmp_path, temporary, log, through_link
):
  assert (log.parent / 'log.ledger-wal').stat().st_size
  before, path = state(log.parent), log
  if through_link:
    path = tmp_path / 'link.ledger'
    path.symlink_to(log)
  for mode in (0o700, 0o500):
    log.parent.chmod(mode)
    reader = ledger_reader.Reader(str(path))
    assert not os.listdir(temporary)  # Also while it is read.
    assert rows_of(reader) == ROWS
    del reader
  log.parent.chmod(0o700)
  assert state(log.parent) == before


def test_the_copy_is_private_and_gone_when_reading_it_fails(temporary, log, monkeypatch):
  modes, copy = [], databases.copy

  def observed(path, target, *others):
    copy(path, target, *others)
    modes.append(os.stat(os.path.dirname(target)).st_mode & 0o777)
    raise KeyboardInterrupt

  monkeypatch.setattr(databases, 'copy', observed)
  with pytest.raises(KeyboardInterrupt):
    ledger_reader.Reader(str(log))
  assert modes == [0o700] and not os.listdir(temporary)


def test_a_ledger_that_grows_while_it_is_copied_is_copied_again(log, monkeypatch):
  """Copies of ledger and write-ahead log of two moments are not put together."""
  copyfile, writers = shutil.copyfile, []

  def growing(source, target):
    copyfile(source, target)
    if not writers:
      writers.append(ledgers.LogWriter(log.with_suffix('.parquet')))  # Takes the log over.
      writers[0].append(4, ['late'], 100)
      writers[0].release()

  monkeypatch.setattr(shutil, 'copyfile', growing)
  assert rows_of(ledger_reader.Reader(str(log))) == [*ROWS, (4, 'late')]


def test_a_ledger_that_is_written_all_the_time_is_refused_in_one_line(log, monkeypatch):
  copyfile = shutil.copyfile

  def touching(source, target):
    copyfile(source, target)
    os.utime(log, ns=(0, os.stat(log).st_mtime_ns + 1))

  monkeypatch.setattr(shutil, 'copyfile', touching)
  monkeypatch.setattr(databases.time, 'sleep', lambda _: None)
  with pytest.raises(refusals.LogError, match='is written all the time; replay it again'):
    ledger_reader.Reader(str(log))


@pytest.mark.parametrize('keep', [0, 31, 32, 2000, -1, -5000])
def test_a_write_ahead_log_that_is_cut_ends_with_a_whole_commit(log, keep):
  """Without a mark that says more, as where a machine lost what was not yet durable."""
  side = log.with_name('log.ledger-wal')
  side.write_bytes(side.read_bytes()[:keep])
  with pytest.raises(refusals.LogError, match='put the newest back'):
    ledger_reader.Reader(str(log))
  database, _ = ledger_reader._image(str(log))
  rounds = [t for (t,) in database.execute('SELECT round FROM rounds')]
  assert rounds == list(range(len(rounds))) and len(rounds) < len(COHORTS)


# What is said of a ledger that is being begun.
EARLY = ('No such file', 'journal file of another program', 'no such table', 'no round yet')


@pytest.mark.slow
def test_readers_see_whole_commits_of_a_writer_in_another_process(tmp_path):
  path = tmp_path / 'run' / 'log.parquet'
  path.parent.mkdir()
  text = f"""
import time
from fl_dpftrl.logs import ledgers
log = ledgers.LogWriter({str(path)!r})
log._database.execute('PRAGMA wal_autocheckpoint=3')  # As after many rounds.
t = 0
while True:
  log.reserve(t, [[f'd{{i}}-{{"x" * 900}}' for i in range(9)] for _ in range(3)], 1)
  t += 3
  time.sleep(0.02)  # Else a reader may find no moment for a copy, for minutes.
"""
  writer = subprocess.Popen([*forks.PYTHON, '-c', text])
  try:
    last, seen = 0, set()
    while len(seen) < 8:
      assert writer.poll() is None
      try:
        reader = ledger_reader.Reader(str(ledger_format.path_of(path)))
      except (refusals.LogError, FileNotFoundError) as error:
        early = not last and any(words in str(error) for words in EARLY)
        if not early and 'all the time' not in str(error):
          raise
        continue
      n = int(reader.metadata['num_rounds'])
      assert n % 3 == 0 and n >= last  # Whole commits, and none that was there is missing.
      assert [t for t, _ in rows_of(reader)] == [t for t in range(n) for _ in range(9)]
      seen.add(n)
      last = n
    assert set(os.listdir(path.parent)) == {'log.ledger', 'log.ledger-wal', 'log.mark'}
  finally:
    writer.send_signal(signal.SIGKILL)
    writer.wait()
  reader = ledger_reader.Reader(str(ledger_format.path_of(path)))  # Of a writer that was killed.
  assert int(reader.metadata['num_rounds']) >= last
