"""Ledgers read as logs, also while another process writes them."""

import contextlib
import os
import pathlib
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import keys, ledger, refusals

_BATCH_ROWS = 1 << 18
_TRIES = 20


class Reader:
  """A ledger that is read as a log, also while another process writes it."""

  def __init__(self, path: str, num_rounds: int | None = None):
    """Opens a copy of a ledger, of whose rounds the first num_rounds are read; all if None."""
    self._path, self._num_rounds = path, num_rounds
    self._folder = tempfile.TemporaryDirectory(prefix='fl_dpftrl-ledger-')
    copy = pathlib.Path(self._folder.name) / 'ledger'
    _copy(path, copy)
    ledger.check_whole(path, copy)
    try:
      self._database = ledger.connected(copy)
      kinds, done, chain = set[str](), 0, ledger.START
      self.metadata = ledger.claim_of(path, self._database)
      for t, kind, count, chain in ledger.checked(path, self._database):
        done, kinds = t + 1, kinds | ({kind} if count else set())
    except sqlite3.Error as error:
      raise refusals.LogError(f'{path}: is no ledger, or damaged: {error}') from error
    if not done:
      raise refusals.LogError(f'{path}: has no round yet')
    self.metadata |= {
      keys.VERSION_KEY: str(keys.LOG_VERSION),
      keys.NUM_ROUNDS_KEY: str(done),
      keys.CHAIN_KEY: chain.hex(),
    }
    id_type = {(): pa.null(), (ledger.NUMBERS,): pa.int64(), (ledger.TEXT,): pa.large_string()}[
      tuple(kinds)
    ]
    self.schema = pa.schema([('round', pa.int64()), ('device_id', id_type)])

  def tables(self) -> Iterator[pa.Table]:
    """Yields its rows in order."""
    query = 'SELECT round, kind, ids FROM rounds WHERE num_devices'
    if self._num_rounds is not None:
      query += f' AND round < {self._num_rounds:d}'
    kept, rows = list[pa.Table](), 0
    for t, kind, text in self._database.execute(query):
      ids = ledger.ids_of(kind, text)
      kept.append(pa.table({'round': np.full(len(ids), t, np.int64), 'device_id': ids}))
      rows += len(ids)
      if rows >= _BATCH_ROWS:
        yield pa.concat_tables(kept)
        kept, rows = [], 0
    if kept:
      yield pa.concat_tables(kept)


def _copy(path: str, copy: pathlib.Path) -> None:
  """Copies a ledger at a moment at which nobody writes into its main file."""
  for _ in range(_TRIES):
    before = _state(path)
    for side in ('', '-wal', '-journal'):
      with contextlib.suppress(FileNotFoundError):
        shutil.copyfile(path + side, f'{copy}{side}')
    if _state(path) == before:
      return
    time.sleep(0.05)
  raise refusals.LogError(f'{path}: is written all the time; replay it again')


def _state(path: str) -> tuple[object, ...]:
  state = os.stat(path)
  try:
    with open(f'{path}-wal', 'rb') as file:
      log = file.read(32)  # Changes when it is begun anew.
  except FileNotFoundError:
    log = b''
  return state.st_ino, state.st_size, state.st_mtime_ns, log, os.path.exists(f'{path}-journal')
