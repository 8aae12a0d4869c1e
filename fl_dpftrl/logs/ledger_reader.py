"""Ledgers read as logs, also while another process writes them.

SQLite puts copies of ledger and write-ahead log together: a reader writes nothing beside them, and
takes no lock.
"""

import contextlib
import os
import pathlib
import sqlite3
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fl_dpftrl.files import mark
from fl_dpftrl.logs import ledger_format, ledgers, refusals

_BATCH_ROWS = 1 << 18
_TRIES = 20
_HEADER_BYTES = 32  # of a write-ahead log, by SQLite's file format


class Reader:
  """A ledger that is read as a log, also while another process writes it."""

  def __init__(self, path: str, num_rounds: int | None = None):
    """Opens a copy of a ledger, of whose rounds the first num_rounds are read; all if None."""
    self._num_rounds = num_rounds
    try:
      self._database, record = _image(path)
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
  """Returns a copy of a ledger in memory, and what its mark said before."""
  if writer := ledgers.writer_of(path):
    return writer.image()
  real = os.path.realpath(path)  # Beside which SQLite has its own files.
  record = None
  with contextlib.suppress(FileNotFoundError):
    record = mark.read(ledger_format.mark_of(real))
  if os.path.exists(real + ledger_format.JOURNAL):
    raise refusals.LogError(
      f'{path}: has a {ledger_format.JOURNAL} file of another program beside it; open the run first'
    )
  content, log = _contents(path, real)
  image = sqlite3.connect(':memory:', check_same_thread=False)
  with tempfile.TemporaryDirectory() as folder:
    copy = pathlib.Path(folder, 'ledger')
    copy.write_bytes(content)
    pathlib.Path(f'{copy}{ledger_format.WAL}').write_bytes(log)
    with contextlib.closing(sqlite3.connect(copy)) as database:
      database.backup(image)
  return image, record


def _contents(path: str, real: str) -> tuple[bytes, bytes]:
  """Returns ledger and write-ahead log of a moment at which nobody wrote into the ledger."""
  for _ in range(_TRIES):
    initial_state, log = _state(real), b''
    with open(real, 'rb') as file:
      content = file.read()
    with contextlib.suppress(FileNotFoundError), open(real + ledger_format.WAL, 'rb') as file:
      log = file.read()
    if _state(real) == initial_state:
      return content, log
    time.sleep(0.05)
  raise refusals.LogError(f'{path}: is written all the time; replay it again')


def _state(path: str) -> tuple[object, ...]:
  state, header = os.stat(path), b''
  with contextlib.suppress(FileNotFoundError), open(path + ledger_format.WAL, 'rb') as file:
    header = file.read(_HEADER_BYTES)  # Changes when it is begun anew.
  return state.st_ino, state.st_size, state.st_mtime_ns, header
