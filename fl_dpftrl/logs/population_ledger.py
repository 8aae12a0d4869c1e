"""The ledger of a population: what its runs reserved of its budgets, in one order.

It is a database of SQLite in the folder of the population, which several processes of one machine
may write, one after another. A record says what happened: the population began, a run was opened,
rounds were reserved, units got a class, withdrew, or a run ended. Records are never changed. Each
has the chained digest

    H_p = SHA-256(H_{p−1} ‖ p ‖ kind ‖ NUL ‖ content), H_{−1} = SHA-256('fl_dpftrl.population'),

with p, its position, as 8 bytes, little-endian. A mark of its own, durable after each record, says
how many there must be. A ledger with fewer records than its mark is of an earlier moment.
"""

import contextlib
import hashlib
import io
import json
import os
import pathlib
import secrets
import sqlite3
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

from fl_dpftrl.logs import databases, refusals
from fl_dpftrl.support.files import durable, json_files, mark

NAME, MARK, LOCK = 'population.ledger', 'population.mark', 'population.lock'
"""Files in the folder of a population."""

STRATEGIES = 'strategies'
"""Folder in it of the strategy files of its runs, by their digests."""

BEGAN, OPENED, RESERVED, ENDED = 'population', 'run', 'rounds', 'ended'
CLASSES, WITHDRAWN, ERASED = 'classes', 'withdrawn', 'erased'
"""Kinds of records."""

START = hashlib.sha256(b'fl_dpftrl.population').digest()
"""H_{−1}."""

_TABLE = (
  'CREATE TABLE records (position INTEGER PRIMARY KEY, kind TEXT NOT NULL, content TEXT NOT NULL,'
  ' chain BLOB NOT NULL)'
)
_INSERT = 'INSERT INTO records VALUES (?, ?, ?, ?)'
_HELD_UP = 10 * 10**9  # nanoseconds for which a process may be held up as it writes the mark


class LedgerRecord(NamedTuple):
  """A record of a ledger: its position, its kind and what it says."""

  position: int
  kind: str
  content: json_files.Object


class PopulationLedger:
  """A ledger of a population that this process reads and appends to.

  Every use is within a block of `exclusive`, which keeps other processes out. Records that others
  appended meanwhile are read first.

  Attributes:
    path: the ledger.
    num_records: records that were read so far.
  """

  def __init__(self, folder: pathlib.Path):
    """Takes the folder of a ledger that `begin` made; opens nothing yet."""
    self.path, self._marked = folder / NAME, folder / MARK
    self.num_records, self._head = 0, START
    self._lock = durable.ThreadLock(self.path)
    self._held: io.FileIO | None = None

  @contextlib.contextmanager
  def exclusive(self) -> Iterator[bool]:
    """Keeps other threads and processes from the ledger within the block.

    Yields whether the block is within another one, as that of a signal handler may be.
    """
    with self._lock:
      if self._held is not None and not self._held.closed:
        yield True
        return
      with durable.locked(self.path.with_name(LOCK), wait=True) as self._held:
        yield False

  def read_again(self) -> None:
    """Lets `records` begin with the first record."""
    self.num_records, self._head = 0, START

  def records(self) -> Iterator[LedgerRecord]:
    """Yields the records that were not read yet; within `exclusive`.

    Raises:
      LogError: for a ledger that is damaged, of another population or of an earlier moment.
    """
    self._mark()  # Which refuses a copy, before anything is read.
    with databases.opened(self.path) as database:
      record, query = mark.read(self._marked), 'SELECT chain FROM records WHERE position = ?'
      last_chain = database.execute(query, (self.num_records - 1,)).fetchone()
      if self.num_records and last_chain != (self._head,):
        raise refusals.LogError(f'{self.path}: has other records than before; put its own back')
      for entry, head in _checked(self.path, database, record, self.num_records, self._head):
        yield entry
        self.num_records, self._head = entry.position + 1, head
      check_mark(self.path, self.num_records, record)
    self._mark()

  def append(self, kind: str, content: json_files.Object) -> None:
    """Appends a record durably; within `exclusive`, after all records were read.

    Raises:
      OSError: if it cannot be written; the next `records` says whether it was.
    """
    text = json.dumps(content, separators=(',', ':'))
    head = next_head(self._head, self.num_records, kind, text)
    with databases.opened(self.path) as database:
      database.execute('BEGIN IMMEDIATE')
      database.execute(_INSERT, (self.num_records, kind, text, head))
      database.execute('COMMIT')
    self.num_records, self._head = self.num_records + 1, head
    self._mark()

  def trust(self) -> None:
    """Takes the ledger where it is, though it was moved; within `exclusive`."""
    with contextlib.closing(mark.MarkFile(self._marked)) as marked:
      marked.trust()

  def _mark(self) -> None:
    with contextlib.closing(mark.MarkFile(self._marked)) as marked:
      if marked.is_suspect or marked.late > _HELD_UP:
        raise mark.LostStateError(
          f'{self.path.parent} is a copy, or was put back from a backup: budgets may have been'
          ' spent since. If it was only moved, and nobody used it since, give moved=True'
        )
      if marked.num_rounds < self.num_records:
        marked.trust(num_rounds=self.num_records, head=self._head)  # Even if it was held up.


def begin(folder: pathlib.Path, content: json_files.Object) -> None:
  """Makes the ledger of a population in its folder, whole or not at all.

  Args:
    content: of its first record.
  """
  text = json.dumps({**content, 'identity': secrets.token_hex(16)})
  with databases.making(folder / NAME) as database:
    database.execute(_TABLE)
    database.execute(_INSERT, (0, BEGAN, text, next_head(START, 0, BEGAN, text)))


def next_head(previous: bytes, position: int, kind: str, text: str) -> bytes:
  """Returns the chained digest with one more record."""
  content = f'{kind}\0{text}'.encode()
  return hashlib.sha256(previous + position.to_bytes(8, 'little') + content).digest()


def read(folder: pathlib.Path, *, is_copy: bool = False) -> list[LedgerRecord]:
  """Returns all records of a ledger, also while processes write it; writes nothing beside it.

  Args:
    is_copy: whether it is a copy without a mark, such as that of evidence.

  Raises:
    LogError: as `PopulationLedger.records`.
  """
  path, record = folder / NAME, None if is_copy else mark.read(folder / MARK)
  with copied(folder) as copy, databases.opened(copy) as database:
    entries = [entry for entry, _ in _checked(path, database, record)]
  if not is_copy and (record or not mark.read(folder / MARK)):  # Else it was made meanwhile.
    check_mark(path, len(entries), record, live=True)
  return entries


@contextlib.contextmanager
def copied(folder: pathlib.Path) -> Iterator[pathlib.Path]:
  """Yields a private copy of the ledger of a folder, of one moment."""
  path = folder / NAME
  if not path.exists():
    raise refusals.LogError(f'{path}: is gone; put it back')
  with tempfile.TemporaryDirectory() as temporary:
    copy = pathlib.Path(temporary, NAME)
    databases.copy(str(path), str(copy), databases.JOURNAL, _state)
    with databases.opened(copy):  # Which undoes what a journal says.
      pass
    yield copy


def check_mark(
  path: pathlib.Path, num_records: int, record: mark.Record | None, *, live: bool = False
) -> None:
  """Raises an error for a ledger that lacks records, or has more than one write more.

  Args:
    live: whether others may have written since the mark was read.
  """
  if record is None and num_records > 1:
    raise mark.LostStateError(f'{path}: {MARK}, which says how many records it has, is gone')
  if record and num_records < record.num_rounds:
    raise refusals.LogError(
      f'{path}: has {num_records} records, and {MARK} says that there were {record.num_rounds}: it'
      ' is of an earlier moment; put the newest back'
    )
  if record and num_records > record.num_rounds + 1 and not live:
    raise refusals.LogError(f'{path}: {MARK} is older than it; put the newest of both back')


def _state(path: str) -> tuple[object, ...]:
  states = list[object]()
  for name in (path, path + databases.JOURNAL):
    with contextlib.suppress(FileNotFoundError):
      state = os.stat(name)
      states.append((name, state.st_ino, state.st_size, state.st_mtime_ns))
  return tuple(states)


def _checked(
  path: pathlib.Path,
  database: sqlite3.Connection,
  record: mark.Record | None,
  first: int = 0,
  head: bytes = START,
) -> Iterator[tuple[LedgerRecord, bytes]]:
  """Yields records from one on, each with the digest that ends with it.

  LogError for one that is damaged, and for others than the record of a mark says.
  """
  query = 'SELECT position, kind, content, chain FROM records WHERE position >= ? ORDER BY position'
  for due, row in enumerate(database.execute(query, (first,)), first):
    position, kind, text, chain = row
    is_whole = tuple(map(type, row)) == (int, str, str, bytes) and position == due
    if not is_whole or (head := next_head(head, position, kind, text)) != chain:
      raise refusals.LogError(f'{path}: record {due} is damaged; put a copy back')
    if record and record.num_rounds == position + 1 and record.head != head:
      raise refusals.LogError(f'{path}: has other records than {MARK} says; put its own back')
    yield LedgerRecord(position, kind, json.loads(text)), head
