"""A ledger: rounds that were begun survive, whatever happens to the rest."""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import os
import pathlib
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pyarrow.parquet as pq
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.logs import (
  databases,
  keys,
  ledger_format,
  ledgers,
  log_tables,
  participation_log,
  refusals,
)
from fl_dpftrl.participation.accounting import arithmetics
from fl_dpftrl.support.files import mark
from tests import forks, made
from tests.logs import files

COHORTS = (['a', 'bb'], [], ['ccc', 'é'], ['a'])
CLAIM = dpftrl.Claim(strategy='identity', noise_multiplier=1.0)
ROWS = [(t, device) for t, cohort in enumerate(COHORTS) for device in cohort]


def opened(path):
  return ledgers.LogWriter(path, CLAIM)


def write(path, cohorts=COHORTS):
  log = opened(path)
  for t, cohort in enumerate(cohorts):
    log.append(t, cohort, 100 + t)
  return log


def program(text: str, path: pathlib.Path) -> subprocess.CompletedProcess:
  """Runs a program that has a ledger `log` at a path."""
  lines = ('import os, sys', 'import fl_dpftrl as dpftrl', f'log = dpftrl.LogWriter({str(path)!r})')
  return subprocess.run([*forks.PYTHON, '-c', '\n'.join((*lines, text))], check=False, timeout=60)


def test_readers_take_the_ledger_until_the_log_is_closed(tmp_path, path):
  log = write(path)
  assert not path.exists()
  for given in (path, tmp_path, str(tmp_path / '*.parquet')):
    assert files.rows(given) == ROWS
  before = participation_log.read_log(path)
  log.append(4, ['later'], 200)
  assert [r['round'] for t in before.tables() for r in t.to_pylist()] == [0, 0, 2, 2, 3]
  log.close()
  metadata = participation_log.read_log(path).metadata
  assert metadata == {
    **CLAIM.to_metadata(),
    keys.VERSION_KEY: '2',
    keys.NUM_ROUNDS_KEY: '5',
    keys.CHAIN_KEY: log.digest,
    keys.RUN_KEY: log.run,
  }
  assert sorted(os.listdir(tmp_path)) == ['log.ledger', 'log.mark', 'log.parquet']
  for given in (path, tmp_path, str(tmp_path / '*.parquet')):
    assert files.rows(given) == [*ROWS, (4, 'later')]
  with pytest.raises(ValueError, match='was closed'):
    log.append(5, ['a'], 200)


def test_a_closed_log_is_continued_from_its_ledger(path):
  write(path).close()
  content = path.read_bytes()
  with opened(path) as log:
    assert [log.cohort(t).tolist() for t in range(log.num_rounds)] == list(map(sorted, COHORTS))
    assert [log.timestamp(t) for t in range(4)] == [100, 100, 102, 103]
  assert path.read_bytes() == content
  with opened(path) as log:
    log.append(4, ['z'], 500)
    assert not path.exists()
  assert files.rows(path) == [*ROWS, (4, 'z')]
  path.write_bytes(content)  # An old one is put back.
  with pytest.raises(
    refusals.LogError, match='another log than log.ledger.*put the newest of both back'
  ):
    opened(path)
  ledger_format.path_of(path).unlink()
  with pytest.raises(refusals.LogError, match='its log.ledger is gone'):
    opened(path)


def test_one_process_at_a_time(path):
  first = write(path, [['a']])
  for _ in range(2):
    with pytest.raises(ValueError, match='in use by another process, or by this one'):
      opened(path)
    assert participation_log.read_log(path).num_rounds == 1  # Readers take no lock away.
  first.close()
  with opened(path) as third:
    assert third.cohort(0).tolist() == ['a']


def test_readers_leave_the_locks_of_a_writer_in_their_process(path, monkeypatch):
  """Also where locks go with the first descriptor that is closed, as on network file systems."""
  monkeypatch.setattr(fcntl, 'flock', fcntl.lockf)
  log = write(path)
  assert files.rows(path) == files.rows(ledger_format.path_of(path)) == ROWS
  other = f"""
import fcntl, sqlite3, sys
import fl_dpftrl as dpftrl
fcntl.flock = fcntl.lockf
try:
  dpftrl.LogWriter({str(path)!r})
except ValueError as error:
  assert 'in use' in str(error)
try:
  file = {str(ledger_format.path_of(path))!r}
  sqlite3.connect(file, timeout=0).execute('SELECT * FROM rounds').fetchall()
except sqlite3.OperationalError as error:
  sys.exit(7 if 'locked' in str(error) else str(error))"""
  assert subprocess.run([sys.executable, '-c', other], check=False).returncode == 7
  log.append(4, ['z'], 1)
  log.close()
  assert files.rows(path) == [*ROWS, (4, 'z')]


def test_an_interrupt_once_the_database_is_closed_leaves_a_log_that_closes(tmp_path, monkeypatch):
  path, close = tmp_path / 'participation.parquet', ledgers._close

  def interrupted(*arguments):
    close(*arguments)
    raise KeyboardInterrupt

  log = ledgers.LogWriter(path)
  log.append(0, ['a'], 5)
  with monkeypatch.context() as patch:
    patch.setattr(ledgers, '_close', interrupted)
    with pytest.raises(KeyboardInterrupt):
      log.close()
  log.close()
  assert path.exists()
  with ledgers.LogWriter(path) as log:
    assert log.num_rounds == 1


def test_an_interrupt_that_somebody_keeps_leaves_a_log_that_closes(path, monkeypatch):
  log, ids_of, left = write(path), ledger_format.ids_of, [True, False]

  def interrupted(kind, text):
    if not left.pop():
      return ids_of(kind, text)
    raise KeyboardInterrupt

  with monkeypatch.context() as patch:
    patch.setattr(ledger_format, 'ids_of', interrupted)
    with pytest.raises(KeyboardInterrupt) as kept:  # With all variables of its functions.
      log.close()
  log.close()
  assert files.rows(path) == ROWS and kept.value is not None and left == []


def test_a_ledger_that_was_damaged_opens_once_a_copy_is_back(tmp_path, path):
  write(path).close()
  own, copy = ledger_format.path_of(path), tmp_path / 'copy'
  shutil.copy(own, copy)
  with contextlib.closing(sqlite3.connect(own)) as database, database:
    database.execute("UPDATE rounds SET ids = 'zz' WHERE round = 0")
  with pytest.raises(refusals.LogError, match='round 0 is damaged') as kept:
    opened(path)
  shutil.copyfile(copy, own)
  with opened(path) as log:
    assert log.num_rounds == len(COHORTS) and kept.value is not None


def test_a_fork_neither_appends_nor_closes(path):
  log = write(path)
  for call in (lambda: log.append(4, ['b'], 1), log.close):
    child = os.fork()
    if not child:
      try:
        call()
      except ValueError as error:
        os._exit(7 if 'opened by another process' in str(error) else 1)
      os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize('end', ['sys.exit()', 'log.__exit__()', 'log.release()'])
def test_the_end_of_a_fork_takes_nothing_away(path, end):
  text = f"""
log.append(0, ['a'], 1)
child = os.fork()
if not child:
  {end}
  sys.exit()
os.waitpid(child, 0)
log.append(1, ['b'], 1)
os.kill(os.getpid(), 9)"""
  assert program(text, path).returncode == -signal.SIGKILL
  assert files.rows(path) == [(0, 'a'), (1, 'b')]


@pytest.mark.parametrize('cohorts', [[['b', 'a'], [], ['ü', 'c', 'aa']], [[], [7, -1, 2**62], [3]]])
def test_digests_are_chained_as_documented(tmp_path, cohorts):
  path, chain = tmp_path / 'log.parquet', hashlib.sha256(b'fl_dpftrl.run').digest()
  log, digests = opened(path), []
  assert log.digest == chain.hex()
  for t, cohort in enumerate(cohorts):
    log.append(t, cohort, 100 + t)
    kind = 'I' if cohort and isinstance(cohort[0], int) else 'T'
    text = kind + '\n'.join(map(str, sorted(cohort)))
    chain = hashlib.sha256(chain + t.to_bytes(8, 'little') + text.encode()).digest()
    digests.append(log.digest)
    assert log.digest == chain.hex()
  log.close()
  assert opened(path).digest == chain.hex()


def refused(path, words):
  """Asserts that neither a reader nor a writer takes a log, or the ledger."""
  for name in {path, ledger_format.path_of(path)}:
    if name.exists() or name == path:
      with pytest.raises(ValueError, match=words) as raised:
        participation_log.read_log(name)
      assert '\n' not in str(raised.value) and len(str(raised.value)) <= 300 + len(str(path))
  with pytest.raises(ValueError, match=words):
    opened(path)


def copied(path, folder, *suffixes):
  folder.mkdir(exist_ok=True)
  for suffix in suffixes:
    shutil.copy(path.with_suffix(suffix), folder)
  return folder / path.name


WHOLE = ('.ledger', '.ledger-wal', '.mark')


def test_a_copy_of_an_open_ledger_has_all_of_it_or_is_refused(tmp_path, path):
  log = write(path)
  whole = copied(path, tmp_path / 'whole', *WHOLE)
  refused(copied(path, tmp_path / 'half', '.ledger', '.mark'), 'has 0 rounds, .*that 4 were begun')
  refused(
    copied(path, tmp_path / 'bare', '.ledger', '.ledger-wal'), 'log.mark, which says how many'
  )
  refused(copied(path, tmp_path / 'gone', '.mark'), 'no such file|log.ledger is gone')
  assert files.rows(whole) == ROWS and opened(whole).num_rounds == 4
  log.close()
  half = copied(path, tmp_path / 'half', '.ledger')  # Now it has all.
  assert files.rows(half) == ROWS and opened(half).num_rounds == 4


@pytest.mark.parametrize('reserve', [1, 3])
def test_a_damaged_write_ahead_log_is_no_absence_of_rounds(tmp_path, path, reserve):
  log = opened(path)
  for t in range(0, 24, reserve):
    log.reserve(t, [[f'{t + i}', 'a'] for i in range(reserve)], 100)
  rows = files.rows(path)
  kept = copied(path, tmp_path / 'kept', *WHOLE)
  content = pathlib.Path(f'{ledger_format.path_of(kept)}-wal').read_bytes()
  rng = np.random.default_rng(3)
  changes = [b'', content[: len(content) // 2], *(content[:n] for n in (1, 31, 32, 4000))]
  changes += [content[:-1], content[: -4096 - 24]]
  for bit in rng.choice(8 * len(content), 60, replace=False).tolist():
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    changes.append(bytes(changed))
  refusals_seen = 0
  for change in changes:
    copy = copied(kept, tmp_path / 'copy', *WHOLE)
    pathlib.Path(f'{ledger_format.path_of(copy)}-wal').write_bytes(change)
    try:
      assert files.rows(copy) == rows
    except refusals.LogError as error:
      assert 'put the newest back' in str(error) or 'damaged' in str(error)
      refused(copy, 'put the newest back|damaged')
      refusals_seen += 1
    else:
      with opened(copy) as again:
        assert again.num_rounds == 24
    shutil.rmtree(copy.parent)
  assert refusals_seen > 40


def test_an_older_log_beside_a_newer_ledger_is_refused(tmp_path, path):
  write(path).close()
  old = path.read_bytes()
  with opened(path) as log:
    log.append(4, ['z'], 500)
    path.write_bytes(old)
    for name in (path, ledger_format.path_of(path), tmp_path):
      with pytest.raises(refusals.LogError, match='put the newest of both back'):
        participation_log.read_log(name)
  for _ in range(2):
    refused(path, 'put the newest of both back')
  ledger_format.path_of(path).unlink()  # The mark says the same.
  with pytest.raises(refusals.LogError, match='another log than log.mark beside it'):
    participation_log.read_log(path)
  ledger_format.mark_of(path).unlink()
  assert files.rows(path) == ROWS  # A log that was sent alone.


def test_a_log_whose_state_is_refused_is_not_sealed(path):
  write(path).close()

  def refuse(state):
    raise refusals.LogError(f'has {state.num_rounds} rounds')

  with pytest.raises(refusals.LogError, match='has 4 rounds'):
    ledger_format.seal(path, refuse)
  with opened(path) as log:
    log.append(4, ['z'], 500)
  ledger_format.seal(path, lambda state: None)
  with opened(path) as log, pytest.raises(ValueError, match='over for ever'):
    log.append(5, ['z'], 500)


def test_a_log_of_a_copy_that_went_on_is_refused_beside_the_ledger(tmp_path, path):
  """It has the same run and as many rounds, and other devices."""
  write(path).close()
  shutil.copytree(tmp_path, tmp_path / 'copy')
  for log_path, device in ((path, 'z'), (tmp_path / 'copy' / path.name, 'y')):
    with opened(log_path) as log:
      log.append(4, [device], 500)
  shutil.copy(log_path, path)
  shutil.rmtree(log_path.parent)
  refused(path, 'put the newest of both back')


def test_a_ledger_or_mark_of_another_run_is_refused(tmp_path, path):
  """Of the same claim, and also of the same cohorts."""
  write(path, COHORTS[:2]).close()
  path.unlink()
  others = tmp_path / 'others'
  others.mkdir()
  other = others / 'log.parquet'
  write(other).close()
  for suffix in ('.ledger', '.mark'):
    aside = path.with_suffix(suffix).read_bytes()
    shutil.copy(other.with_suffix(suffix), tmp_path)
    refused(path, 'is of another run than log.mark beside it')
    path.with_suffix(suffix).write_bytes(aside)
  shutil.copy(other, path)
  refused(path, 'another log than log.ledger')


def test_a_mark_that_is_gone_damaged_or_older_is_told(path):
  write(path, COHORTS[:1]).close()
  old = ledger_format.mark_of(path).read_bytes()
  with opened(path) as log:
    for t in range(1, 4):
      log.append(t, COHORTS[t], 100 + t)
  path.unlink()
  content = ledger_format.mark_of(path).read_bytes()
  for change, words in (
    (None, 'which says how many rounds it must have, is gone'),
    (b'', 'which says how many rounds it must have, is gone or empty'),
    (b'x', 'log.mark is damaged, and only it says'),
    (bytes(len(content)), 'log.mark is damaged, and only it says'),
  ):
    ledger_format.mark_of(path).unlink(missing_ok=True)
    if change is not None:
      ledger_format.mark_of(path).write_bytes(change)
    refused(path, words)
  ledger_format.mark_of(path).write_bytes(old)
  with pytest.raises(refusals.LogError, match='is older than log.ledger, by more than one write'):
    opened(path)
  ledger_format.mark_of(path).write_bytes(content)
  assert opened(path).num_rounds == 4


def test_a_path_that_is_there_is_no_pattern(tmp_path):
  """Neither a folder whose name reads as one, nor the log of a run in it that is gone."""
  for name in ('seed=1', 'seed=[1]'):
    (tmp_path / name).mkdir()
  write(tmp_path / 'seed=1' / 'log.parquet').close()
  own = tmp_path / 'seed=[1]' / 'log.parquet'
  for name in (own, str(own)):
    with pytest.raises(refusals.LogError, match='no such file'):
      participation_log.read_log(name)
  log = write(own, [['z']])
  for name in (own, str(own), str(own.with_name('*.parquet'))):
    assert files.rows(name) == [(0, 'z')]
  log.close()
  assert files.rows(str(own)) == [(0, 'z')]
  shutil.rmtree(own.parent)
  with pytest.raises(refusals.LogError, match='no such file'):
    participation_log.read_log(own)


ENDS = {
  'end': '',
  'exit': 'sys.exit(3)',
  'exception': '1 / 0',
  'memory': 'raise MemoryError',
  'interrupt': 'os.kill(os.getpid(), signal.SIGINT)',
  'termination': 'os.kill(os.getpid(), signal.SIGTERM)',
  'hangup': 'os.kill(os.getpid(), signal.SIGHUP)',
  'kill': 'os.kill(os.getpid(), signal.SIGKILL)',
  'at once': 'os._exit(1)',
  'thread': 'threading.Thread(target=log.append, args=(log.num_rounds, ["b"], 1)).start()',
  'forgotten': 'del log; gc.collect()',
  'cycle': 'cycle = [log]; cycle.append(cycle); del log, cycle',
}


FORKS = """
import gc, os, signal, sys, threading
import fl_dpftrl as dpftrl

dpftrl.LogWriter  # Imported before the forks, each of which ends as a process does.
for number, end in enumerate(%s):
  for _ in range(3):
    if not os.fork():
      log = dpftrl.LogWriter(f'{sys.argv[1]}/{number}.parquet')
      log.append(log.num_rounds, ['a'], 1)
      break
    os.wait()
  else:
    continue
  exec(end)
  break
"""


@pytest.mark.slow
def test_a_process_that_ends_in_any_way_can_go_on(tmp_path):
  subprocess.run([*forks.PYTHON, '-c', FORKS % list(ENDS.values()), tmp_path], timeout=60)
  for number, end in enumerate(ENDS):
    path = tmp_path / f'{number}.parquet'
    num_rounds = 6 if end == 'thread' else 3
    with ledgers.LogWriter(path) as log:
      assert log.num_rounds == num_rounds, end
    assert files.rows(path) == [
      (t, 'ab'[t % 2] if end == 'thread' else 'a') for t in range(num_rounds)
    ]


def test_a_ledger_that_could_not_be_closed_keeps_its_write_ahead_log(path):
  code = """
    import resource
    log.append(0, ['a'], 1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))  # As if the disk were full.
    try:
      log.close()
    except OSError:
      os._exit(7)
  """
  assert program(textwrap.dedent(code), path).returncode == 7
  assert ledgers.LogWriter(path).num_rounds == 1


def test_a_changed_round_or_claim_is_refused(tmp_path, path):
  for change in (
    "UPDATE rounds SET ids = 'zz' WHERE round = 2",
    "UPDATE rounds SET ids = x'6162' WHERE round = 2",
    "UPDATE rounds SET kind = 5, num_devices = 'x' WHERE round = 2",
    'UPDATE rounds SET chain = zeroblob(32) WHERE round = 0',
    'UPDATE rounds SET num_devices = 0 WHERE round = 3',
    'UPDATE rounds SET ids = zeroblob(3) WHERE round = 2',
    'UPDATE rounds SET ids = 7, kind = 8.5 WHERE round = 2',
    "UPDATE rounds SET chain = 'x' WHERE round = 1",
    'UPDATE rounds SET kind = zeroblob(1) WHERE round = 1',
    'UPDATE rounds SET second = zeroblob(1) WHERE round = 1',
    'UPDATE claim SET metadata = zeroblob(3)',
    'UPDATE claim SET sha256 = 3',
    'DELETE FROM rounds WHERE round = 1',
    """UPDATE claim SET metadata = '{}'""",
    'DELETE FROM claim',
  ):
    write(path).close()
    path.unlink()
    with sqlite3.connect(ledger_format.path_of(path)) as database:
      database.execute(change)
    database.close()
    refused(path, 'is damaged; put a copy back')
    for file in tmp_path.iterdir():
      file.unlink()


@pytest.mark.slow
def test_any_flipped_bit_is_refused_or_harmless(path):
  """Of a ledger, as the reader and the writer take it, and of the log that is written from it."""
  write(path).close()
  parquet, own = path.read_bytes(), ledger_format.path_of(path)
  database, refused = own.read_bytes(), 0
  path.unlink()
  rng = np.random.default_rng(0)
  for file, content in ((own, database), (path, parquet)):
    for bit in rng.choice(8 * len(content), 150, replace=False).tolist():
      changed = bytearray(content)
      changed[bit // 8] ^= 1 << bit % 8
      file.write_bytes(changed)
      try:
        log = participation_log.read_log(path)
        rows = [tuple(row.values()) for table in log.tables() for row in table.to_pylist()]
        assert (log.num_rounds, rows) == (4, ROWS), bit
        if log.metadata:
          assert CLAIM.to_metadata().items() <= log.metadata.items()
        else:  # As a log of another system, which states nothing.
          assert 'Burnt rounds after it would be missing' in ' '.join(log.warnings)
      except refusals.LogError as error:
        assert str(file) in str(error)
        refused += 1
    file.unlink()
  assert refused > 30


def test_a_database_that_keeps_no_journal_is_refused():
  with pytest.raises(OSError, match='no journal of mode wal can be kept there'):
    databases.connected(pathlib.Path(':memory:'), journal='wal')


def test_a_log_that_was_killed_as_it_closed_leaves_nothing_for_ever(tmp_path, path):
  text = """
import signal
log.append(0, ['a'], 1)
os.replace = lambda *paths: os.kill(os.getpid(), signal.SIGKILL)
log.close()"""
  assert program(text, path).returncode == -signal.SIGKILL
  assert list(tmp_path.glob('.writing-*')) and not path.exists()
  with ledgers.LogWriter(path):
    assert not list(tmp_path.glob('.writing-*'))
  assert files.rows(path) == [(0, 'a')]


@pytest.mark.parametrize('keep', [0, 5, 500])
def test_a_damaged_log_beside_its_ledger_is_refused_in_one_line(path, keep):
  write(path).close()
  path.write_bytes(path.read_bytes()[:keep])
  with pytest.raises(refusals.LogError) as raised:
    opened(path)
  assert str(raised.value).startswith(f'{path}: cannot be read, ')


@pytest.mark.parametrize('content', [b'', b'x', b'SQLite format 3\0' + bytes(500), bytes(5000)])
def test_what_is_no_ledger_is_refused_in_one_line(path, content):
  ledger_format.path_of(path).write_bytes(content)
  assert 'log.ledger' in files.refusal(ledger_format.path_of(path))
  if content:
    with pytest.raises(refusals.LogError, match='no ledger, or damaged'):
      opened(path)


def test_a_full_disk_leaves_the_ledger_as_it_was(path):
  log = write(path)
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, before[1]))
  try:
    with pytest.raises(OSError, match='log.ledger') as raised:
      log.append(4, [f'device-{i}' for i in range(20_000)], 1)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  assert raised.value.errno in (errno.EIO, errno.ENOSPC) and '\n' not in str(raised.value)
  assert log.num_rounds == 4 and files.rows(path) == ROWS
  log.append(4, ['z'], 1)
  assert files.rows(path) == [*ROWS, (4, 'z')]


@made.cases(
  'round_index, device_ids, timestamp, words',
  (0, ['c'], 1, 'next round of the log is 1, got 0'),
  (2, ['c'], 1, 'next round of the log is 1, got 2'),
  (1, ['c', 'c'], 1, 'twice in round 1'),
  (1, [3], 1, 'one type'),
  (1, 'phone-1', 1, 'device_ids must be one list, got str'),
  (1, ['a'], 1_763_000_000_000, 'timestamp must be UTC seconds, got 1763000000000'),
  (1, ['a'], 1.5, 'timestamp must be a list of whole numbers'),
)
def test_bad_rounds_are_refused(tmp_path, round_index, device_ids, timestamp, words):
  log = write(tmp_path / 'log.parquet', [['a', 'b']])
  with pytest.raises(ValueError, match=words):
    log.append(round_index, device_ids, timestamp)
  assert log.num_rounds == 1 and files.rows(log.path) == [(0, 'a'), (0, 'b')]


@made.cases(
  'name, words',
  ('log', 'must end in .parquet'),
  ('nowhere/log.parquet', 'nowhere does not exist; make it first'),
)
def test_bad_arguments_are_refused_at_once(tmp_path, name, words):
  with pytest.raises(ValueError, match=words):
    ledgers.LogWriter(tmp_path / name)
  assert not list(tmp_path.iterdir())


def test_a_ledger_of_another_run_is_not_continued(tmp_path, path):
  write(path).close()
  with pytest.raises(refusals.LogError, match='another run: it states a claim'):
    ledgers.LogWriter(path)
  numbers = (arithmetics.Arithmetic.covered(5), arithmetics.Arithmetic(kind='lattice'))
  kinds = [dataclasses.replace(CLAIM, arithmetic=each) for each in numbers]
  for place, (begun, now) in enumerate((kinds, kinds[::-1])):
    path = tmp_path / f'{place}.parquet'
    with ledgers.LogWriter(path, begun) as log:
      log.append(0, ['a'], 1)
    with pytest.raises(refusals.LogError, match="give memory='engine' or 'state' as before"):
      ledgers.LogWriter(path, now)


def test_one_log_has_the_same_bytes_however_it_came_about(tmp_path, monkeypatch):
  monkeypatch.setattr(log_tables, 'ROW_GROUP', 70)
  monkeypatch.setattr(ledgers.secrets, 'token_bytes', bytes)
  ids, written = [f'device-{i}' for i in range(500)], []
  for stops in ((), (11,), (3, 3, 19)):
    path = tmp_path / f'{len(stops)}' / 'log.parquet'
    path.parent.mkdir()
    log = ledgers.LogWriter(path)
    for t in range(20):
      for _ in range(stops.count(t)):
        log.close()
        log = ledgers.LogWriter(path)
      cohort = np.random.default_rng(t).choice(ids, 11 * (t % 3), replace=False)
      log.append(t, cohort, 1767225600 + 60 * t)
    log.close()
    written.append(path.read_bytes())
  assert len(set(written)) == 1
  assert pq.ParquetFile(path).num_row_groups > 1


def test_rounds_are_reserved_together(path):
  log = opened(path)
  log.reserve(0, [['b', 'a'], [], ['c']], 7)
  assert log.num_rounds == 3 and files.rows(path) == [(0, 'a'), (0, 'b'), (2, 'c')]
  with pytest.raises(ValueError, match='twice in round 4'):
    log.reserve(3, [['a'], ['b', 'b']], 7)
  assert log.num_rounds == 3 and participation_log.read_log(path).num_rounds == 3


def test_threads_append_one_round_at_a_time(tmp_path):
  log, turns = opened(tmp_path / 'log.parquet'), []

  def append(device):
    for _ in range(10):
      while True:
        try:
          log.append(log.num_rounds, [device], 1)
          break
        except ValueError:  # Another one was faster.
          pass
      turns.append(device)

  threads = [threading.Thread(target=append, args=(f'd{i}',)) for i in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert log.num_rounds == 40
  assert sorted(log.cohort(t).item() for t in range(40)) == sorted(turns)


@pytest.mark.parametrize('most', [0, 3000, 9000])
def test_a_first_start_without_room_names_the_file_and_leaves_nothing(tmp_path, path, most):
  before = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
  try:
    with pytest.raises(OSError, match=r'log\.ledger'):
      opened(path)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
  assert not os.listdir(tmp_path)
  write(path).close()
  assert files.rows(path) == ROWS


@pytest.mark.parametrize('number', [errno.ENOLCK, errno.ENOTSUP])
def test_where_no_file_can_be_locked_one_line_says_what_to_do(path, monkeypatch, number):
  def flock(*arguments):
    raise OSError(number, os.strerror(number))

  monkeypatch.setattr(fcntl, 'flock', flock)
  with pytest.raises(OSError, match=r'take a disk with locks.*log\.mark'):
    opened(path)


def test_a_clock_after_2262_is_refused_in_one_line(path, monkeypatch):
  with monkeypatch.context() as patched:
    patched.setattr(mark.time, 'time_ns', lambda: 2**63)
    with pytest.raises(ValueError, match='clock must be before the year 2262'):
      opened(path)
  write(path).close()


def test_a_start_that_is_refused_leaves_no_empty_mark(path):
  write(path).close()
  marked = ledger_format.mark_of(path)
  content = marked.read_bytes()
  marked.unlink()
  with pytest.raises(mark.LostStateError, match='gone or empty'):
    opened(path)
  assert not marked.exists()
  marked.write_bytes(content)
  assert participation_log.read_log(path).num_rounds == len(COHORTS)


@made.cases('rounds, num_bytes', (1, 1 << 24), (256, 1), (256, 40))
def test_a_log_has_the_same_bytes_however_many_rounds_are_written_at_once(
  rounds, num_bytes, tmp_path, monkeypatch
):
  cohorts = [[f'device {t} {i}' for i in range(t % 4)] for t in range(40)]
  expected = made.ledger(tmp_path / 'whole.parquet', cohorts)
  monkeypatch.setattr(log_tables, '_ROUNDS_AT_ONCE', rounds)
  monkeypatch.setattr(log_tables, '_BYTES_AT_ONCE', num_bytes)
  monkeypatch.setattr(log_tables, '_MOST_TABLES', 3)
  written = made.ledger(tmp_path / 'parts.parquet', cohorts)
  assert pq.read_table(written).equals(pq.read_table(expected))
  assert pq.ParquetFile(written).num_row_groups == 1
