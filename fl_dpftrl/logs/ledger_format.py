"""The format of a ledger: its files, tables and digests, and the check of a whole one.

A ledger is a database of SQLite. It has the claim of the run and its random identity, and a row for
each round: a UTC second, the device ids in order, one a line, and the chained digest

    H_t = SHA-256(H_{t−1} ‖ t ‖ kind ‖ ids), H_{−1} = SHA-256('fl_dpftrl.run'),

with t as 8 bytes, little-endian, and kind `I` for whole numbers and `T` for text or no ids. Digest
t fixes the cohorts of all rounds up to t. In a run of units that own devices, the citation of their
table follows the kind and a tab, so that the digest fixes what the table was in each round.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import databases, keys, refusals
from fl_dpftrl.support.files import durable, mark

NAME = 'participation.parquet'
"""Name of the log in the folder of a run."""

SUFFIX = '.ledger'
"""Ends the name of a ledger, in place of the .parquet of its log."""

START = hashlib.sha256(b'fl_dpftrl.run').digest()
"""H_{−1}."""

MARK_SUFFIX = '.mark'
"""Ends the name of a mark, in place of the .parquet of its log."""

_SEALED = b'sealed'
SEALED = 'the run is over for ever, as its population was told'
"""Why no round may follow in a sealed log."""

TABLES = (
  # The digest says too whether further rounds may follow.
  'CREATE TABLE claim (metadata TEXT NOT NULL, run BLOB NOT NULL, sha256 TEXT NOT NULL)',
  # Rounds that were recorded together have the first of them.
  'CREATE TABLE rounds (round INTEGER PRIMARY KEY, first INTEGER NOT NULL, second INTEGER NOT NULL,'
  ' num_devices INTEGER NOT NULL, kind TEXT NOT NULL, ids TEXT NOT NULL, chain BLOB NOT NULL)',
)
NUMBERS, TEXT = 'I', 'T'
"""Kinds of ids."""

SIDES = (*(SUFFIX + end for end in (databases.WAL, databases.JOURNAL)), MARK_SUFFIX)
"""Ends of the names of files beside a ledger, which belong to it."""

_LEAST_BYTES = 512  # of a database


def path_of(log: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of the ledger of a log."""
  return pathlib.Path(log).with_suffix(SUFFIX)


def mark_of(log: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of the mark of a log or ledger."""
  return pathlib.Path(log).with_suffix(MARK_SUFFIX)


def next_head(previous: bytes, t: int, kind: str, text: str) -> bytes:
  return hashlib.sha256(previous + t.to_bytes(8, 'little') + (kind + text).encode()).digest()


def stored(ordered: Sequence[str] | Sequence[int]) -> tuple[str, str]:
  """Returns the kind of ids and their text; no id holds the end of a line."""
  is_number = bool(ordered) and isinstance(ordered[0], int)
  return (NUMBERS if is_number else TEXT), '\n'.join(map(str, ordered))


def cited(kind: str, citation: str) -> str:
  """Returns the kind of a round with the citation of a table of units, if there is one."""
  return f'{kind}\t{citation}' if citation else kind  # No id holds a tab.


def ids_of(kind: str, text: str) -> pa.Array:
  """Returns the device ids of a row."""
  if kind.startswith(NUMBERS):
    return pa.array(np.array(text.split('\n'), np.int64))
  return pa.array(text.split('\n') if text else [], pa.string())


def connected(path: pathlib.Path) -> sqlite3.Connection:
  """Opens a database in whole; a write-ahead log then needs no shared memory."""
  if path.stat().st_size < _LEAST_BYTES:  # SQLite would begin it anew.
    raise refusals.LogError(f'{path}: is no ledger, or damaged: it is cut short')
  return databases.connected(path, 'locking_mode=exclusive', 'synchronous=full', journal='wal')


@dataclasses.dataclass(frozen=True)
class State:
  """State of a ledger whose rounds were all checked.

  Attributes:
    claim: claim of the run, as metadata.
    run: random identity of the run, 16 bytes.
    num_rounds: rounds that were begun.
    head: their chained digest, 32 bytes.
    kinds: kinds of their ids.
    last_commit: first of the rounds that were recorded last; 0 without any.
    units: citations of the table of units, each with the first round that has it.
    is_sealed: whether no round may follow.
  """

  claim: dict[str, str]
  run: bytes
  num_rounds: int = 0
  head: bytes = START
  kinds: frozenset[str] = frozenset()
  last_commit: int = 0
  units: tuple[tuple[int, str], ...] = ()
  is_sealed: bool = False

  def metadata(self) -> dict[str, str]:
    """Returns what the metadata of a log of these rounds say."""
    return {
      **self.claim,
      keys.VERSION_KEY: str(keys.LOG_VERSION),
      keys.NUM_ROUNDS_KEY: str(self.num_rounds),
      keys.CHAIN_KEY: self.head.hex(),
      keys.RUN_KEY: self.run.hex(),
      **({keys.UNITS_KEY: json.dumps(self.units)} if self.units else {}),
    }


def next_rounds(
  state: State, columns: Sequence[pa.Array], second: int, units: str
) -> tuple[list[tuple], State]:
  """Returns the rows of rounds that follow a state, and the state with them.

  Args:
    columns: device ids of each round.
    second: UTC second of the rounds.
    units: citation of the table of units; '' for a run without one.

  Raises:
    ValueError: for a device twice in a round, and ids of several types.
  """
  rows, head, kinds, first = [], state.head, set(state.kinds), state.num_rounds
  for t, column in enumerate(columns, first):
    ordered = sorted(column.to_pylist())  # Text by its code points, as its bytes in UTF-8.
    if len(set(ordered)) < len(ordered):
      raise ValueError(f'device_ids holds a device twice in round {t}')
    kind, text = stored(ordered)
    kinds |= {kind} if len(ordered) else set()
    if len(kinds) > 1:
      raise ValueError(f'device_ids must be of one type through a log; round {t} has another')
    kind = cited(kind, units)
    head = next_head(head, t, kind, text)
    rows.append((t, first, second, len(ordered), kind, text, head))
  citations = state.units
  if units != (citations[-1][1] if citations else ''):
    citations = (*citations, (first, units))
  return rows, dataclasses.replace(
    state, num_rounds=first + len(rows), head=head, kinds=frozenset(kinds), units=citations
  )


def read(
  path: str | os.PathLike[str], database: sqlite3.Connection, record: mark.Record | None
) -> State:
  """Returns the state of a ledger.

  Args:
    path: names the ledger in messages.
    record: what its mark says; None without one.

  Raises:
    LogError: for a ledger that is damaged, and one that disagrees with the mark.
    LostStateError: for one with rounds, but without a mark.
    sqlite3.Error: for what is no database, or a damaged one.
  """
  path, marked = os.fspath(path), mark_of(path).name
  databases.check_version(path, database)
  claim, run, is_sealed = _claim_of(path, database)
  if record and record.run != run:
    raise refusals.LogError(f'{path}: is of another run than {marked} beside it; put its own back')
  t, first, head, kinds = -1, 0, START, set[str]()
  units: list[tuple[int, str]] = []
  query = 'SELECT round, first, second, num_devices, kind, ids, chain FROM rounds ORDER BY round'
  for due, row in enumerate(database.execute(query)):  # In no variable, as errors keep those.
    t, first, _, num_devices, kind, text, chain = row
    if tuple(map(type, row)) != (int, int, int, int, str, str, bytes) or (
      (t, num_devices) != (due, text.count('\n') + 1 if text else 0)
      or next_head(head, t, kind, text) != chain
    ):
      raise refusals.LogError(f'{path}: round {due} is damaged; put a copy back')
    kinds |= {kind[:1]} if text else set()
    citation = kind[2:]
    units += [(t, citation)] if citation != (units[-1][1] if units else '') else []
    if record and t + 1 == record.num_rounds and chain != record.head:
      raise refusals.LogError(f'{path}: has other rounds than {marked} says; put its own back')
    head = chain
  if record is None and t >= 0:
    raise mark.LostStateError(
      f'{path}: {marked}, which says how many rounds it must have, is gone or empty; put it beside'
    )
  if record and t + 1 < record.num_rounds:
    raise refusals.LogError(
      f'{path}: has {t + 1} rounds, and {marked} says that {record.num_rounds} were begun: put the'
      f' newest back, with its {os.path.basename(path)}{databases.WAL} if there is one'
    )
  return State(claim, run, t + 1, head, frozenset(kinds), first, tuple(units), is_sealed)


def check_same(
  log: str | os.PathLike[str],
  log_metadata: Mapping[str, str],
  path: str | os.PathLike[str],
  metadata: Mapping[str, str],
) -> None:
  """Raises LogError unless a Parquet log states run, rounds and digest of its ledger or mark."""
  for key in (keys.RUN_KEY, keys.NUM_ROUNDS_KEY, keys.CHAIN_KEY):
    if log_metadata.get(key) != metadata[key]:
      raise refusals.LogError(
        f'{log}: is another log than {os.path.basename(path)} beside it ({key}):'
        ' put the newest of both back, or move the one that is not of this run away'
      )


def write_claim(
  database: sqlite3.Connection, claim: Mapping[str, str], run: bytes, *, is_sealed: bool = False
) -> None:
  """Puts a claim, as metadata, and the identity of its run in place of any other."""
  text = json.dumps(claim, sort_keys=True)
  row = text, run, _claim_digest(text, run, is_sealed)
  database.execute('DELETE FROM claim')
  database.execute('INSERT INTO claim VALUES (?, ?, ?)', row)


def _claim_digest(text: str, run: bytes, is_sealed: bool) -> str:
  return hashlib.sha256(run + text.encode() + is_sealed * _SEALED).hexdigest()


def _claim_of(path: str, database: sqlite3.Connection) -> tuple[dict[str, str], bytes, bool]:
  """Returns the claim of a ledger, as metadata, its run's identity, and whether it is sealed."""
  rows = database.execute('SELECT metadata, run, sha256 FROM claim').fetchall()
  if len(rows) == 1 and tuple(map(type, rows[0])) == (str, bytes, str):
    text, run, digest = rows[0]
    for is_sealed in (False, True):
      if _claim_digest(text, run, is_sealed) == digest:
        return json.loads(text), run, is_sealed
  raise refusals.LogError(f'{path}: its claim is damaged; put a copy back')


class Chain:
  """Chained digest of the rounds of a log, from rows in the order of rounds and of ids in each.

  Attributes:
    in_order: whether the rows came in that order; there is no digest otherwise.
  """

  def __init__(self, units: Sequence[tuple[int, str]] = ()) -> None:
    """Starts before round 0; units: citations by the first round that has each."""
    self.in_order, self._units = True, list(units)[::-1]
    self._cited = ''
    self._last: tuple[int, object] = (-1, None)
    self._num_rounds = 0  # Of which the last may have further rows.
    self._head = hashlib.sha256()

  @classmethod
  def from_unordered(
    cls, tables: Iterable[pa.Table], units: Sequence[tuple[int, str]] = ()
  ) -> 'Chain':
    """Returns the digest of rows in any order, which are all in memory meanwhile."""
    chain = cls(units)
    rows = pa.concat_tables(tables).sort_by([('round', 'ascending'), ('device_id', 'ascending')])
    for batch in rows.to_batches(1 << 18):
      chain.add(pa.Table.from_batches([batch]))
    return chain

  def add(self, table: pa.Table) -> None:
    """Takes the next rows, at least one."""
    rounds = table.column('round').to_numpy()
    ids = table.column('device_id').combine_chunks()
    steps = np.diff(rounds, prepend=self._last[0])
    rises = pc.less(ids[:-1], ids[1:]).to_numpy(zero_copy_only=False)
    first = steps[0] != 0 or self._last[1] < ids[0].as_py()  # type: ignore[operator]
    if not ((steps > 0) | (steps == 0) & np.append(first, rises)).all():
      self.in_order = False
    if not self.in_order:
      return
    self._last = (int(rounds[-1]), ids[-1].as_py())
    starts = np.append(0, np.flatnonzero(steps[1:]) + 1)
    kind = NUMBERS if pa.types.is_integer(ids.type) else TEXT
    ends = np.append(starts, len(ids)).astype(np.int32)
    lists = pa.ListArray.from_arrays(ends, ids.cast(pa.large_string()))
    _, offsets, data = pc.binary_join(lists, pa.scalar('\n', pa.large_string())).buffers()
    text, start = memoryview(data), 0
    for t, end in zip(rounds[starts].tolist(), np.frombuffer(offsets, np.int64)[1:].tolist()):
      if t < self._num_rounds:
        self._head.update(b'\n')
      else:
        self._begin_up_to(t)
        self._begin(kind)
      self._head.update(text[start:end])
      start = end

  def digest(self, num_rounds: int) -> str:
    """Returns the digest of so many rounds, SHA-256 in hexadecimal; the last may have no rows."""
    self._begin_up_to(num_rounds)
    return self._head.hexdigest()

  def _begin_up_to(self, t: int) -> None:
    while self._num_rounds < t:
      self._begin(TEXT)

  def _begin(self, kind: str) -> None:
    head = self._head.digest() if self._num_rounds else START
    if self._units and self._units[-1][0] == self._num_rounds:
      self._cited = self._units.pop()[1]
    t = self._num_rounds.to_bytes(8, 'little')
    self._head = hashlib.sha256(head + t + cited(kind, self._cited).encode())
    self._num_rounds += 1


def seal(log: str | os.PathLike[str], check: Callable[[State], None]) -> None:
  """Lets no further round be recorded in a log, durably.

  Args:
    check: called with the state of its ledger before that; what it raises leaves all as it was.

  Raises:
    ValueError: if a process has it open.
    LogError: for a ledger that is damaged.
    OSError: if it cannot be written, or is not there.
  """
  file, marked = path_of(log), mark_of(log)
  with durable.locked(marked), databases.in_one_line(file):
    with contextlib.closing(connected(file)) as database:
      state = read(file, database, mark.read(marked))
      check(state)
      if not state.is_sealed:
        database.execute('BEGIN IMMEDIATE')
        write_claim(database, state.claim, state.run, is_sealed=True)
        database.execute('COMMIT')
