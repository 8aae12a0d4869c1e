"""The ledger of a run: which devices were in each round that was begun, durable before it is.

It is a database of SQLite beside the log that it becomes: `run/participation.ledger` for
`run/participation.parquet`. It has the claim of the run, and a row for each round: a UTC second,
the device ids in order, one a line, and the chained digest

    H_t = SHA-256(H_{t−1} ‖ t ‖ kind ‖ ids), H_{−1} = SHA-256('fl_dpftrl.rounds'),

with t as 8 bytes, little-endian, and kind `I` for whole numbers and `T` for text or no ids. Digest
t fixes the cohorts of all rounds up to t.

A round that is in the ledger was begun: its row of noise is used up, whatever happened to it.

While a writer has it open, its user_version is 1 and its newest rounds are in the write-ahead log
beside it: without that file it lacks rounds, and is refused.
"""

import contextlib
import ctypes
import errno
import hashlib
import json
import operator
import os
import pathlib
import sqlite3
import weakref
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl.files import durable
from fl_dpftrl.logs import claim as claim_lib
from fl_dpftrl.logs import ids as ids_lib
from fl_dpftrl.logs import keys, refusals, schema

NAME = 'participation.parquet'
"""Name of the log in the folder of a run."""

SUFFIX = '.ledger'
"""Ends the name of a ledger, in place of the .parquet of its log."""

START = hashlib.sha256(b'fl_dpftrl.rounds').digest()
"""H_{−1}."""

_TABLES = (
  'CREATE TABLE claim (metadata TEXT NOT NULL, sha256 TEXT NOT NULL)',
  'CREATE TABLE rounds (round INTEGER PRIMARY KEY, second INTEGER NOT NULL,'
  ' num_devices INTEGER NOT NULL, kind TEXT NOT NULL, ids TEXT NOT NULL, chain BLOB NOT NULL)',
)
NUMBERS, TEXT = 'I', 'T'
"""Kinds of ids."""

SIDES = tuple(SUFFIX + end for end in ('-wal', '-journal'))
"""Ends of the names of SQLite's files beside a ledger, which belong to it."""

_LEAST_BYTES = 512  # of a database


def path_of(log: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of the ledger of a log."""
  return pathlib.Path(log).with_suffix(SUFFIX)


def chained(before: bytes, t: int, device_ids: pa.Array) -> bytes:
  """Returns H_t from H_{t−1} and the device ids of round t, string or int64, in any order."""
  return _chained(before, t, *_stored(device_ids.take(pc.sort_indices(device_ids))))


def _chained(before: bytes, t: int, kind: str, text: str) -> bytes:
  return hashlib.sha256(before + t.to_bytes(8, 'little') + (kind + text).encode()).digest()


def _stored(ordered: pa.Array) -> tuple[str, str]:
  """Returns the kind of ids and their text; no id holds the end of a line."""
  numbers = pa.types.is_integer(ordered.type) and len(ordered)
  whole = pa.ListArray.from_arrays([0, len(ordered)], ordered.cast(pa.string()))
  return (NUMBERS if numbers else TEXT), pc.binary_join(whole, '\n')[0].as_py()


def ids_of(kind: str, text: str) -> pa.Array:
  """Returns the device ids of a row."""
  if kind == NUMBERS:
    return pa.array(np.array(text.split('\n'), np.int64))
  return pa.array(text.split('\n') if text else [], pa.string())


_writers: 'weakref.WeakSet[LogWriter]' = weakref.WeakSet()


def _forget_in_a_fork() -> None:
  """Keeps a fork from closing databases at its end, which would take the write-ahead log away."""
  for writer in _writers:
    _never_close(writer._database)


def _never_close(database: sqlite3.Connection | None) -> None:
  ctypes.pythonapi.Py_IncRef(ctypes.py_object(database))


os.register_at_fork(after_in_child=_forget_in_a_fork)


class LogWriter:
  """A log that grows by rounds, each durable before it begins.

  `close` writes one Parquet file from it. The ledger stays, and a run goes on with it: the file is
  removed then, until the next `close`. Threads may share a ledger; a process that was forked from
  this one may not. One process at a time has it open.

  Attributes:
    path: the Parquet file.
    num_rounds: rounds begun so far.
  """

  def __init__(self, path: str | os.PathLike[str], claim: claim_lib.Claim | None = None):
    """Opens the ledger of a log, or begins it with the first round.

    Args:
      path: the log, ending in .parquet; its folder must exist.
      claim: that of the run, if the log is to state it; a ledger that is there must have the same.

    Raises:
      LogError: for a ledger of another run, one that is damaged or gone, and one that is older
        than its log.
      ValueError: if another process has it open.
    """
    self.path = schema.parquet_path(path)
    self._given = {} if claim is None else claim.to_metadata()
    self._file, self._lock = path_of(self.path), durable.ThreadLock(self.path)
    self._held = contextlib.ExitStack()
    self._database: sqlite3.Connection | None = None
    self.num_rounds, self._chain, self._kinds = 0, START, set[str]()
    self._closed = False
    if self._file.exists():
      try:
        self._open()
      except BaseException:
        self._release()
        raise
    elif self.path.exists():
      raise refusals.LogError(f'{self.path}: cannot be continued, as its {self._file.name} is gone')

  def __enter__(self) -> 'LogWriter':
    return self

  def __exit__(self, *unused) -> None:
    self.close()

  @property
  def digest(self) -> str:
    """Chained digest of the rounds so far, SHA-256 in hexadecimal: note it elsewhere."""
    return self._chain.hex()

  def append(self, round_index: int, device_ids: ids_lib.Ids, timestamp: int) -> None:
    """Begins a round: its cohort is durably on disk when this returns.

    Args:
      round_index: the next round, which is num_rounds.
      device_ids: shape [cohort size], of one type through the whole log; may be empty.
      timestamp: UTC second of the round.

    Raises:
      ValueError: for another round, another type of id, or a device twice, and if another process
        has the ledger open.
      OSError: if it cannot be written; the ledger is then as before.
    """
    self.reserve(round_index, [device_ids], timestamp)

  @durable.one_at_a_time
  def reserve(self, first: int, cohorts: Sequence[ids_lib.Ids], timestamp: int) -> None:
    """Begins rounds whose cohorts are known before, at the cost of one: all are used up.

    Args:
      first: the next round, which is num_rounds.
      cohorts: device ids of each round.
      timestamp: UTC second of the rounds.
    """
    if operator.index(first) != self.num_rounds:
      raise ValueError(f'the next round of the log is {self.num_rounds}, got {first}')
    if self._closed:
      raise ValueError(f'{self.path} was closed; open the log again to append to it')
    schema.file_metadata(first + len(cohorts), None)  # Refuses a round too many.
    schema.utc_seconds('timestamp', [timestamp])
    rows, chain, kinds = [], self._chain, set(self._kinds)
    for t, device_ids in enumerate(cohorts, first):
      given = ids_lib.column(device_ids)
      ordered = given.take(pc.sort_indices(given))
      if pc.any(pc.equal(ordered[1:], ordered[:-1])).as_py():
        raise ValueError(f'device_ids holds a device twice in round {t}')
      kind, text = _stored(ordered)
      kinds |= {kind} if len(ordered) else set()
      if len(kinds) > 1:
        raise ValueError(f'device_ids must be of one type through a log; round {t} has another')
      chain = _chained(chain, t, kind, text)
      rows.append((t, timestamp, len(ordered), kind, text, chain))
    if self._database is None:
      self._open()
      if self.num_rounds != first:
        raise ValueError(f'{self._file} was begun by another writer; open the log again')
    if self.path.exists():  # What it was before.
      self.path.unlink()
      durable.sync_folder(self.path.parent)
    with self._transaction() as database:
      database.executemany('INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)', rows)
    self.num_rounds, self._chain, self._kinds = first + len(rows), chain, kinds

  @durable.one_at_a_time
  def column(self, round_index: int) -> pa.Array:
    """Returns the device ids of a round, in order."""
    ((kind, text),) = self._rows('SELECT kind, ids FROM rounds WHERE round = ?', round_index)
    return ids_of(kind, text)

  def cohort(self, round_index: int) -> np.ndarray:
    """Returns the device ids of a round, in order, as text or int64."""
    return ids_lib.as_numpy(self.column(round_index))

  @durable.one_at_a_time
  def timestamp(self, round_index: int) -> int | None:
    """Returns the UTC second of the last round with devices up to a round, if any."""
    query = 'SELECT max(round), second FROM rounds WHERE round <= ? AND num_devices'
    ((_, second),) = self._rows(query, round_index)
    return second

  @durable.one_at_a_time
  def close(self) -> None:
    """Writes one Parquet file, durably, and lets another process open the ledger.

    The same rounds give the same bytes with the same release of pyarrow.

    Raises:
      OSError: if it cannot be written; the ledger can be opened again.
    """
    try:
      if self._database is not None and self.num_rounds and not self.path.exists():
        self._write()
    finally:
      self._release()

  def _release(self) -> None:
    self._closed = True
    if self._database is not None:
      _close(os.getpid(), self._database)
      self._database = None
    self._held.close()

  def _write(self) -> None:
    metadata = schema.file_metadata(self.num_rounds, self._given)
    metadata[keys.CHAIN_KEY] = self.digest
    columns = schema.with_timestamps(pa.int64() if NUMBERS in self._kinds else pa.string())
    with schema.appending(self.path, columns, metadata) as append:
      for t, second, kind, text in self._rows('SELECT round, second, kind, ids FROM rounds'):
        if text:
          append(schema.round_table(t, ids_of(kind, text), second))

  def _open(self) -> None:
    """Locks the ledger, begins it if it is new, and takes over its rounds."""
    self._held.enter_context(durable.exclusive(self._file))
    if 0 < self._file.stat().st_size < _LEAST_BYTES:  # SQLite would begin it anew.
      raise refusals.LogError(f'{self._file}: is no ledger, or damaged: it is cut short')
    with _in_one_line(self._file):
      check_whole(self._file, self._file)
      self._database = database = connected(self._file)
      _writers.add(self)
      # A database is part of a cycle, and would be closed late.
      weakref.finalize(self, _close, os.getpid(), database).atexit = False
      if not database.execute('SELECT count(*) FROM sqlite_master').fetchone()[0]:
        claim = json.dumps(self._given, sort_keys=True)
        with self._transaction():
          for table in _TABLES:
            database.execute(table)
          database.execute('INSERT INTO claim VALUES (?, ?)', (claim, _sha256(claim)))
        durable.sync_folder(self._file.parent)
      stored = claim_of(self._file, database)
      if stored != self._given:
        raise claim_lib.of_another_run(self._file, stored, self._given)
      for t, kind, _, chain in checked(self._file, database):
        self.num_rounds, self._chain = t + 1, chain
        self._kinds |= {kind}
    if self.path.exists():
      stated = pq.read_metadata(self.path).metadata or {}
      if stated.get(keys.CHAIN_KEY.encode()) != self.digest.encode():
        raise refusals.LogError(
          f'{self.path} has other rounds than {self._file}: put the newest of both back'
        )
    with _in_one_line(self._file):
      database.execute('PRAGMA user_version=1')
      database.execute('PRAGMA wal_checkpoint(TRUNCATE)')  # Into the ledger's own file.

  @contextlib.contextmanager
  def _transaction(self) -> Iterator[sqlite3.Connection]:
    """Does all of the block durably, or nothing of it."""
    if self._database is None:
      raise ValueError(f'{self.path} was closed; open the log again')
    with _in_one_line(self._file):
      try:
        self._database.execute('BEGIN IMMEDIATE')
        yield self._database
        self._database.execute('COMMIT')
      except BaseException:
        with contextlib.suppress(sqlite3.Error):
          self._database.execute('ROLLBACK')
        raise

  def _rows(self, query: str, *values: int) -> Iterator[tuple]:
    if self._database is None:
      raise ValueError(f'{self.path} was closed; open the log again')
    with _in_one_line(self._file):
      yield from self._database.execute(query, values)


def _close(process: int, database: sqlite3.Connection) -> None:
  if os.getpid() != process:
    return
  try:
    with contextlib.suppress(sqlite3.ProgrammingError):  # It is closed.
      database.rollback()
      if database.execute('PRAGMA user_version').fetchone() != (0,):
        database.execute('PRAGMA user_version=0')
      database.close()
  except sqlite3.Error:  # It would look like one that lacks its write-ahead log.
    _never_close(database)


def check_whole(path: str | os.PathLike[str], file: pathlib.Path) -> None:
  """Raises LogError for a ledger of an open run without its write-ahead log."""
  with file.open('rb') as content:
    header = content.read(64)
  is_open, has_log = header[60:64] == b'\0\0\0\1', header[18:20] == b'\2\2'
  if is_open and has_log and not os.path.exists(f'{file}-wal'):
    raise refusals.LogError(
      f'{os.fspath(path)}: was copied or moved while its run was open, without'
      f' {os.path.basename(path)}-wal, which has its newest rounds: put both there'
    )


def connected(path: pathlib.Path) -> sqlite3.Connection:
  """Opens a database in whole; a write-ahead log then needs no shared memory."""
  database = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.0)
  for setting in (
    'locking_mode=exclusive',
    'trusted_schema=off',
    'journal_mode=wal',  # Stays `delete` where there is none.
    'synchronous=full',
  ):
    database.execute(f'PRAGMA {setting}')
  return database


def claim_of(path: str | os.PathLike[str], database: sqlite3.Connection) -> dict[str, str]:
  """Returns the claim of a ledger, as metadata."""
  claims = database.execute('SELECT metadata, sha256 FROM claim').fetchall()
  if len(claims) != 1 or _sha256(claims[0][0]) != claims[0][1]:
    raise refusals.LogError(f'{os.fspath(path)}: its claim is damaged; put a copy back')
  return json.loads(claims[0][0])


def checked(
  path: str | os.PathLike[str], database: sqlite3.Connection
) -> Iterator[tuple[int, str, int, bytes]]:
  """Yields (t, kind, number of devices, H_t) of each round; LogError where one is damaged."""
  before = START
  rows = database.execute('SELECT round, num_devices, kind, ids, chain FROM rounds ORDER BY round')
  for due, (t, count, kind, text, chain) in enumerate(rows):
    devices = text.count('\n') + 1 if text else 0
    if (t, count) != (due, devices) or _chained(before, t, kind, text) != chain:
      raise refusals.LogError(f'{os.fspath(path)}: round {due} is damaged; put a copy back')
    before = chain
    yield t, kind, count, chain


def _sha256(text: str) -> str:
  return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _in_one_line(path: pathlib.Path) -> Iterator[None]:
  """Raises SQLite's errors as those of the file: OSError, or LogError for a damaged one."""
  try:
    yield
  except sqlite3.OperationalError as error:
    number = errno.ENOSPC if 'full' in str(error) else errno.EIO
    raise OSError(number, str(error), str(path)) from error
  except sqlite3.DatabaseError as error:
    raise refusals.LogError(f'{path}: is no ledger, or damaged: {error}') from error
