"""The ledger of a run: which devices were in each round that was begun, durable before it is.

It lies beside the log that it becomes: `run/participation.ledger` for `run/participation.parquet`.
A round that is in the ledger was begun: its row of noise is used up, whatever happened to it.

While a writer has it open, its newest rounds are in SQLite's write-ahead log beside it. How many
rounds there must be, their digest and the run's random identity stand in a mark of its own,
`run/participation.mark`, durable after each commit. A ledger with fewer rounds than the mark, with
other ones, or of another run is refused; rounds of one commit more are a crash between both.
"""

import contextlib
import ctypes
import dataclasses
import io
import operator
import os
import pathlib
import secrets
import sqlite3
import weakref
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import (
  claim_json,
  databases,
  id_columns,
  id_spellings,
  ledger_format,
  log_tables,
  refusals,
)
from fl_dpftrl.support.files import durable, mark

_writers: 'weakref.WeakSet[LogWriter]' = weakref.WeakSet()


def _forget_in_a_fork() -> None:
  """Keeps a fork from closing databases at its end, which would take the write-ahead log away."""
  for writer in _writers:
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(writer._database))


if hasattr(os, 'register_at_fork'):  # Elsewhere, no process forks.
  os.register_at_fork(after_in_child=_forget_in_a_fork)


class LogWriter(contextlib.AbstractContextManager['LogWriter']):
  """A log that grows by rounds, each durable before it begins.

  `close` writes one Parquet file from it. The ledger stays, and a run goes on with it: the file is
  removed then, until the next `close`. A process that ends without it has lost nothing. Threads may
  share a ledger; a forked process may not. One process at a time has it open.

  Attributes:
    path: the Parquet file.
    mark: the mark beside the ledger.
  """

  @durable.letting_go
  def __init__(self, path: str | os.PathLike[str], claim: Any = None):
    """Opens the ledger of a log, or begins it.

    Args:
      path: the log, ending in .parquet; its folder must exist.
      claim: `Claim` of the run, if the log is to state it; a ledger with rounds must have the same.

    Raises:
      LogError: for a ledger of another run, one that is damaged, gone or older than its mark, and
        one that has other rounds than its log.
      LostStateError: for a mark that is damaged or gone.
      ValueError: if another process has it open.
    """
    self.path = log_tables.parquet_path(path)
    self._claim = {} if claim is None else claim.to_metadata()
    self._file, self.lock = ledger_format.path_of(self.path), durable.ThreadLock(self.path)
    self._process, self._held = os.getpid(), cast(io.FileIO | None, None)  # The mark, locked.
    self.mark: mark.MarkFile = cast(Any, None)  # Until it is open.
    self._database: sqlite3.Connection | None = None
    self._last = ledger_format.State(self._claim, b'')
    # State with a write that an error or an interrupt may have ended before or after its commit.
    self._pending: ledger_format.State | None = None
    self._is_due = False  # Whether `close` has still to write the file.
    self._spellings, self._num_spelt = id_spellings.RecordedSpellings(), 0
    try:
      self._open()
    except BaseException:
      self.release()
      raise

  def __repr__(self) -> str:
    return f'LogWriter({self.num_rounds} rounds, {self.path})'

  def __exit__(self, *unused) -> None:
    try:
      self.close()
    finally:
      self.release()  # If an interrupt kept `close` from it.

  @property
  def num_rounds(self) -> int:
    """Rounds begun so far."""
    return self._state.num_rounds

  @property
  def units(self) -> tuple[tuple[int, str], ...]:
    """Citations of the table of units, each with the first round that has it."""
    return self._state.units

  @property
  def is_sealed(self) -> bool:
    """True if no round may follow; see `ledger_format.seal`."""
    return self._state.is_sealed

  @property
  def digest(self) -> str:
    """Chained digest of the rounds so far, SHA-256 in hexadecimal: note it elsewhere."""
    return self._state.head.hex()

  @property
  def run(self) -> str:
    """Random identity of the run, in hexadecimal."""
    return self._last.run.hex()

  @property
  def _state(self) -> ledger_format.State:
    """State of the ledger, which says whether the last write was made."""
    if self._pending is not None:
      with self.lock:
        pending, database = self._pending, self._database
        if pending is not None and database is not None and not database.in_transaction:
          query = 'SELECT 1 FROM rounds WHERE round = ?'
          self._last = pending if self._rows(query, pending.num_rounds - 1) else self._last
          self._pending = None
    return self._last

  @property
  @durable.one_at_a_time
  def spellings(self) -> id_spellings.RecordedSpellings:
    """How the ids of the rounds so far are spelt."""
    if self._state.kinds == {ledger_format.NUMBERS}:
      self._num_spelt = self.num_rounds
    for t in range(self._num_spelt, self.num_rounds):
      self._spellings.add(self.column(t))
      self._num_spelt = t + 1
    return self._spellings

  def append(self, round_index: int, device_ids: id_columns.Ids, timestamp: int) -> None:
    """Begins a round: its cohort is durably on disk when this returns.

    Args:
      round_index: the next round, which is num_rounds.
      device_ids: shape [cohort size], of one type through the whole log; may be empty.
      timestamp: UTC second of the round.

    Raises:
      ValueError: for another round, another type of id, a device twice, or an id that is another
        spelling of one in the log.
      OSError: if it cannot be written; num_rounds says whether it was begun.
    """
    self.reserve(round_index, [device_ids], timestamp)

  def reserve(self, first: int, cohorts: Sequence[id_columns.Ids], timestamp: int) -> None:
    """Begins rounds whose cohorts are known before, at the cost of one: all are used up.

    Arguments are those of `append`, with the device ids of each round.
    """
    self.begin(first, [id_columns.column(device_ids) for device_ids in cohorts], timestamp)

  @durable.one_at_a_time
  def begin(self, first: int, columns: Sequence[pa.Array], timestamp: int, units: str = '') -> None:
    """Does what `reserve` does for columns of `ids.column`, which are not checked again.

    Args:
      units: citation of the table of units; '' for a run without one.
    """
    rows, next_state = self._checked(first, columns, timestamp, units)
    self._mark_rounds()  # If that failed for the rounds before.
    if self.path.exists():  # What it was before.
      self.path.unlink()
      durable.sync_folder(self.path.parent)

    def insert(database: sqlite3.Connection) -> None:
      self._pending = next_state
      database.executemany('INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?, ?)', rows)

    self._commit(insert)
    self._mark_rounds()

  @durable.one_at_a_time
  def check(self, first: int, columns: Sequence[pa.Array], timestamp: int, units: str = '') -> None:
    """Raises the ValueError that `begin` would, and begins nothing."""
    self._checked(first, columns, timestamp, units)

  def _checked(
    self, first: int, columns: Sequence[pa.Array], timestamp: int, units: str
  ) -> tuple[list[tuple], ledger_format.State]:
    """Returns rows of the next rounds and the state with them; ValueError for what will not do."""
    self._opened()
    state = self._state
    if operator.index(first) != state.num_rounds:
      raise ValueError(f'the next round of the log is {state.num_rounds}, got {first}')
    if state.is_sealed:
      raise ValueError(f'{self.path} is sealed: {ledger_format.SEALED}')
    log_tables.file_metadata(first + len(columns), None)  # Refuses a round too many.
    if type(timestamp) is not int or abs(timestamp) > log_tables.MOST_SECONDS:
      log_tables.utc_seconds('timestamp', [timestamp])
    rows, next_state = ledger_format.next_rounds(state, columns, timestamp, units)
    texts = [column for column in columns if len(column)]
    if texts and ledger_format.TEXT in next_state.kinds:
      if self.spellings.collisions(pa.concat_arrays(texts)).any():
        raise ValueError(f'device_ids: one {id_spellings.COLLIDES}; write each in one spelling')
    return rows, next_state

  def _mark_rounds(self) -> None:
    """Says in the mark, durably, which rounds were begun."""
    if (state := self._state).num_rounds > self.mark.num_rounds:
      self.mark.write(num_rounds=state.num_rounds, head=state.head)

  @durable.one_at_a_time
  def column(self, round_index: int) -> pa.Array:
    """Returns the device ids of a round, in order."""
    ((kind, text),) = self._rows('SELECT kind, ids FROM rounds WHERE round = ?', round_index)
    return ledger_format.ids_of(kind, text)

  def cohort(self, round_index: int) -> np.ndarray:
    """Returns the device ids of a round, in order, as text or int64."""
    return id_columns.as_numpy(self.column(round_index))

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
      OSError: if it cannot be written; the ledger can be opened again, and `close` tries again.
    """
    try:
      if self._database is None and self._is_due:
        self._open()
      if self._database is not None:
        self._is_due = True  # Until the file is there.
        self._rollback()
        self._mark_rounds()
        if self.num_rounds and not self.path.exists():
          self._write()
        self._is_due = False
    finally:
      self.release()

  def release(self) -> None:
    """Lets another process open the ledger, without writing the file."""
    try:
      try:
        _close(self._process, self._database)
      finally:  # An interrupt may have ended that early, or come once it is closed.
        database, self._database = self._database, None
        _close(self._process, database)
      if self.mark is not None:
        self.mark.drop()
    finally:
      if self._held is not None:
        self._held.close()

  def _write(self) -> None:
    state = self._state
    columns = log_tables.with_timestamps(
      pa.int64() if ledger_format.NUMBERS in state.kinds else pa.string()
    )
    query = 'SELECT round, second, kind, ids FROM rounds WHERE round = ? AND num_devices'
    rounds = (
      (t, second, ledger_format.ids_of(kind, text))
      for due in range(state.num_rounds)
      for t, second, kind, text in self._rows(query, due)
    )
    log_tables.write_rounds(self.path, columns, state.metadata(), rounds)

  def _open(self) -> None:
    """Locks the mark, begins the ledger if it is new, and takes over its rounds."""
    marked = ledger_format.mark_of(self.path)
    try:
      self._held = durable.locked(marked)
    except ValueError:
      raise ValueError(
        f'{self.path} is in use by another process, or by this one, which has to close() what uses'
        ' it first'
      ) from None
    durable.remove_leftovers(self._file.parent)  # Of a log that was being closed.
    self.mark = mark.MarkFile(marked)
    if not self._file.exists():
      others = self.path, pathlib.Path(f'{self._file}{databases.WAL}')
      if self.mark.record or any(other.exists() for other in others):
        raise refusals.LogError(
          f'{self.path}: cannot be continued, as its {self._file.name} is gone; put it back'
        )
      self._begin()
    with databases.in_one_line(self._file):
      self._database = ledger_format.connected(self._file)
      _writers.add(self)
      # A database is part of a cycle, and would be closed late.
      weakref.finalize(self, _close, self._process, self._database)
      state = ledger_format.read(self._file, self._database, self.mark.record)
    if state.claim != self._claim:
      if state.num_rounds:
        raise claim_json.another_run(self._file, state.claim, self._claim)
      self._commit(lambda database: ledger_format.write_claim(database, self._claim, state.run))
    self._last, self._pending = dataclasses.replace(state, claim=self._claim), None
    if state.num_rounds > self.mark.num_rounds != state.last_commit:
      raise refusals.LogError(
        f'{marked}: is older than {self._file.name}, by more than one write; put the newest of both'
        ' back'
      )
    if self.path.exists():
      ledger_format.check_same(
        self.path, log_tables.stored_metadata(self.path), self._file, self._last.metadata()
      )
    with databases.in_one_line(self._file):
      self._database.execute('PRAGMA wal_checkpoint(TRUNCATE)')  # Into the ledger's own file.
    if self.mark.record is None:
      self.mark.write(num_rounds=0, head=ledger_format.START, run=state.run)
    self._mark_rounds()

  def _begin(self) -> None:
    """Makes the ledger, which is whole or not there."""
    with databases.making(self._file) as database:
      for table in ledger_format.TABLES:
        database.execute(table)
      ledger_format.write_claim(database, self._claim, secrets.token_bytes(16))

  def image(self) -> tuple[sqlite3.Connection, mark.Record | None]:
    """Returns a copy of the ledger in memory, and what the mark says."""
    with self.lock:
      copy = sqlite3.connect(':memory:', check_same_thread=False)
      self._opened().backup(copy)
      return copy, self.mark.record

  def _opened(self) -> sqlite3.Connection:
    if self._database is None:
      raise ValueError(f'{self.path} was closed; open the log again')
    return self._database

  def _commit(self, change: Callable[[sqlite3.Connection], object]) -> None:
    """Makes all of a change durably, or nothing of it."""
    database = self._opened()
    self._rollback()
    with databases.in_one_line(self._file):
      try:
        database.execute('BEGIN IMMEDIATE')
        change(database)
        database.execute('COMMIT')
      except BaseException:
        self._rollback()
        raise

  def _rollback(self) -> None:
    """Undoes what no commit has ended, such as a write whose own end was interrupted."""
    database = self._opened()
    if database.in_transaction:
      with contextlib.suppress(sqlite3.Error):
        database.rollback()

  def _rows(self, query: str, *values: int) -> list[tuple]:
    with databases.in_one_line(self._file):
      return self._opened().execute(query, values).fetchall()  # Half read, it would keep the lock.


def _close(process: int, database: sqlite3.Connection | None) -> None:
  if database is not None and os.getpid() == process:
    try:
      database.rollback()
    except sqlite3.Error:  # Also if it is closed; the next open finds all.
      pass
    finally:
      database.close()


def writer_of(path: str | os.PathLike[str]) -> LogWriter | None:
  """Returns the writer that has a ledger open in this process.

  Another descriptor of the file, once closed, would take the locks of the writer's away.
  """
  for writer in tuple(_writers):
    with contextlib.suppress(OSError):
      if writer._database is not None and os.path.samefile(path, writer._file):
        return writer
  return None
