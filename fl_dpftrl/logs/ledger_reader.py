"""Ledgers read as logs, also while another process writes them.

Ledger and write-ahead log are put together in memory: a reader writes nothing, and takes no lock.
"""

import contextlib
import os
import sqlite3
import struct
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from fl_dpftrl.logs import ledger_format, ledgers, refusals
from fl_dpftrl.support.files import mark

_BATCH_ROWS = 1 << 18
_TRIES = 20
# Of SQLite's file format: two bytes of a database say whether it has a write-ahead log, whose
# header has magic number, version, page size, number of checkpoints, two salts and two checksums;
# that of a frame has page, pages of the database if it ends a commit, the salts and two checksums.
_VERSIONS, _ROLLBACK = slice(18, 20), b'\1\1'
_HEADER, _FRAME = struct.Struct('>8I'), struct.Struct('>6I')
_MAGIC = {0x377F0682: '<', 0x377F0683: '>'}
_WORD = 0xFFFFFFFF


class Reader:
  """A ledger that is read as a log, also while another process writes it."""

  def __init__(self, path: str, num_rounds: int | None = None):
    """Opens a copy of a ledger, of whose rounds the first num_rounds are read; all if None."""
    self._num_rounds = num_rounds
    self._database, record = _image(path)
    try:
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
  database = sqlite3.connect(':memory:', check_same_thread=False)
  database.deserialize(_together(path, *_contents(path, real)))
  return database, record


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
    header = file.read(_HEADER.size)  # Changes when it is begun anew.
  return state.st_ino, state.st_size, state.st_mtime_ns, header


def _together(path: str, content: bytes, log: bytes) -> bytes:
  """Returns a database with the pages of the whole commits of its write-ahead log.

  Source: SQLite's file format, section 4.
  """
  pages = bytearray(content)
  if len(content) < _HEADER.size or not content.startswith(b'SQLite format 3\0'):
    raise refusals.LogError(f'{path}: is no ledger, or damaged: it does not begin as a database')
  pages[_VERSIONS] = _ROLLBACK
  if len(log) < _HEADER.size:
    return bytes(pages)
  magic, _, size, _, *salts, sum_0, sum_1 = _HEADER.unpack_from(log)
  order, sums = _MAGIC.get(magic), (0, 0)
  if order is None or (sums := _sums(order, log[:24], sums)) != (sum_0, sum_1):
    return bytes(pages)
  waiting: dict[int, int] = {}  # Places of the newest content of pages, by page.
  for start in range(_HEADER.size, len(log) - _FRAME.size - size + 1, _FRAME.size + size):
    page, num_pages, *frame_salts, sum_0, sum_1 = _FRAME.unpack_from(log, start)
    body = start + _FRAME.size
    sums = _sums(order, log[start : start + 8] + log[body : body + size], sums)
    if frame_salts != salts or sums != (sum_0, sum_1) or not page:
      break
    waiting[page] = body
    if num_pages:  # The end of a commit.
      pages.extend(bytes(max(0, num_pages * size - len(pages))))
      for number, place in waiting.items():
        pages[(number - 1) * size : number * size] = log[place : place + size]
      del pages[num_pages * size :]
      waiting.clear()
  pages[_VERSIONS] = _ROLLBACK
  return bytes(pages)


def _sums(order: str, content: bytes, sums: tuple[int, int]) -> tuple[int, int]:
  """Returns SQLite's checksums of more content."""
  first, second = sums
  for x, y in struct.iter_unpack(f'{order}2I', content):
    first = (first + x + second) & _WORD
    second = (second + y + first) & _WORD
  return first, second
