"""Ledgers read as logs, also while another process writes them.

SQLite reads a private copy of ledger and write-ahead log, so that a reader takes no lock and writes
nothing beside them.
"""

import contextlib
import os
import sqlite3
import tempfile
import weakref
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import databases, ledger_format, ledgers, refusals
from fl_dpftrl.support.files import mark

_BATCH_ROWS = 1 << 18
_WAL_HEADER = 32  # bytes, which change when SQLite begins its write-ahead log anew


class Reader:
  """A ledger that is read as a log, also while another process writes it."""

  def __init__(self, path: str, num_rounds: int | None = None):
    """Opens a copy of a ledger, of whose rounds the first num_rounds are read; all if None."""
    self._num_rounds = num_rounds
    try:
      self._database, record = _image(path)
      weakref.finalize(self, self._database.close)
      state = ledger_format.read(path, self._database, record)
    except (sqlite3.Error, UnicodeDecodeError) as error:  # The second of SQLite's own messages.
      raise refusals.LogError(f'{path}: is no ledger, or damaged: {error}') from error
    if not state.num_rounds:
      raise refusals.LogError(f'{path}: has no round yet')
    self.metadata, self.names = state.metadata(), ['round', 'device_id']
    id_type = {
      (): pa.null(),
      (ledger_format.NUMBERS,): pa.int64(),
      (ledger_format.TEXT,): pa.large_string(),
    }[tuple(state.kinds)]
    self.schema = pa.schema([('round', pa.int64()), ('device_id', id_type)])

  def tables(self) -> Iterator[pa.Table]:
    """Yields its rows in order."""
    query = 'SELECT round, kind, ids FROM rounds WHERE num_devices'
    if self._num_rounds is not None:
      query += f' AND round < {self._num_rounds:d}'
    batch, rows = list[pa.Table](), 0
    for t, kind, text in self._database.execute(query):
      ids = ledger_format.ids_of(kind, text)
      batch.append(pa.table({'round': np.full(len(ids), t, np.int64), 'device_id': ids}))
      rows += len(ids)
      if rows >= _BATCH_ROWS:
        yield pa.concat_tables(batch)
        batch, rows = [], 0
    if batch:
      yield pa.concat_tables(batch)


def _image(path: str) -> tuple[sqlite3.Connection, mark.Record | None]:
  """Returns a copy of a ledger, and what its mark said before."""
  if writer := ledgers.writer_of(path):
    return writer.image()
  real = os.path.realpath(path)  # Beside which SQLite has its own files.
  if os.path.exists(real + databases.JOURNAL):
    raise refusals.LogError(
      f'{path}: has a {databases.JOURNAL} file of another program beside it; open the run first'
    )
  # SQLite keeps the files open without their names, so the folder goes before a row is read: only
  # a process that is killed while it copies leaves what its owner alone can read.
  with tempfile.TemporaryDirectory(prefix='fl_dpftrl-ledger-') as folder:
    copy, marked = os.path.join(folder, 'copy'), ledger_format.mark_of(real)
    record = mark.read(marked)
    databases.copy(real, copy, databases.WAL, _state)
    if record is None and (record := mark.read(marked)) is not None:  # It was made meanwhile.
      databases.copy(real, copy, databases.WAL, _state)
    database = sqlite3.connect(copy, check_same_thread=False)
    database.execute('PRAGMA locking_mode=exclusive')  # It looks for no name again.
    database.execute('SELECT count(*) FROM sqlite_master').fetchone()  # Opens the log.
  return database, record


def _state(path: str) -> tuple[object, ...]:
  """Returns what differs after a write into the ledger: no reader sees a log's further pages."""
  state, header = os.stat(path), b''
  with contextlib.suppress(FileNotFoundError), open(path + databases.WAL, 'rb') as file:
    header = file.read(_WAL_HEADER)
  return state.st_ino, state.st_size, state.st_mtime_ns, header
