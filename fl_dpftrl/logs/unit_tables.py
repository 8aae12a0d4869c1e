"""Tables of units of privacy: which person, or other unit, owns a device, and from which round on.

A table has the columns `device_id`, `unit_id` and `from_round`, and its rows are only appended to.
A device may have several owners; it has one before its first round. A row of `from_round` t says
that the device held nothing of that unit before round t, and is there before round t begins; it
never ends.

Each round of a log cites the table as it was: how many rows, and their digest. Whoever has a later
table can tell from that whether rows were changed, or added after their rounds.
"""

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl.logs import id_spellings, participation_log, readers, refusals, table_columns
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages

DEVICE_ID, UNIT_ID, FROM_ROUND = 'device_id', 'unit_id', 'from_round'
NAME = 'units.parquet'
"""File of a table in the folder of its run, or, after the name of a run, in evidence."""

_KINDS = {DEVICE_ID: table_columns.ID, UNIT_ID: table_columns.ID, FROM_ROUND: table_columns.ROUND}
_PART_ROWS = 1 << 20
_CITATION = re.compile('([1-9][0-9]{0,17}):([0-9a-f]{64})')


@dataclasses.dataclass(frozen=True, eq=False)
class UnitTable:
  """A table of units, in the order in which its rows were appended.

  Attributes:
    path: names it in messages.
    device_ids: text or int64, shape [num_rows].
    unit_ids: text or int64, shape [num_rows].
    from_rounds: int64, shape [num_rows].

  Raises:
    LogError: for a row that is there twice, and ids that are one number in two notations.
  """

  path: str
  device_ids: pa.Array
  unit_ids: pa.Array
  from_rounds: np.ndarray

  def __post_init__(self):
    devices, owners = self._devices.indices.to_numpy(), self._units.indices.to_numpy()
    pairs = devices.astype(np.int64) * (1 + owners.max(initial=0)) + owners
    order = np.argsort(pairs, kind='stable')
    again = order[1:][np.diff(pairs[order]) == 0]
    if again.size:
      row = int(again.min())
      raise refusals.LogError(
        f'{self.path}, row {row + 1}: has device and unit of an earlier row; an owner is never'
        ' withdrawn, and so not added again'
      )
    for name, distinct, ids in (
      (DEVICE_ID, self._devices.dictionary, self.device_ids),
      (UNIT_ID, self._units.dictionary, self.unit_ids),
    ):
      spellings = id_spellings.Spellings()
      spellings.add(distinct)
      if fault := spellings.first_fault(ids):
        raise refusals.LogError(f'{self.path}, row {fault[0] + 1}: {name} {fault[1]}')

  def __len__(self) -> int:
    return len(self.device_ids)

  @property
  def id_type(self) -> pa.DataType:
    """Type of the ids of units."""
    return self.unit_ids.type

  @functools.cached_property
  def _devices(self) -> pa.DictionaryArray:
    return self.device_ids.dictionary_encode()

  @functools.cached_property
  def _units(self) -> pa.DictionaryArray:
    return self.unit_ids.dictionary_encode()

  @property
  def num_devices(self) -> int:
    """Devices that have an owner in any round."""
    return len(self._devices.dictionary)

  @property
  def num_units(self) -> int:
    """Units that own a device in any round."""
    return len(self._units.dictionary)

  def ids(self, numbers: np.ndarray) -> pa.Array:
    """Returns the ids of units by their numbers, which are the same in every longer table."""
    ids = self._units.dictionary.take(pa.array(numbers))
    return ids if pa.types.is_integer(ids.type) else ids.cast(pa.large_string())

  @functools.cached_property
  def _rows(self) -> tuple[np.ndarray, np.ndarray]:
    """Rows by device, and where those of each device begin."""
    devices = self._devices.indices.to_numpy()
    starts = np.append(0, np.cumsum(np.bincount(devices, minlength=self.num_devices)))
    return np.argsort(devices, kind='stable'), starts

  def owners(
    self, device_ids: pa.Array | pa.ChunkedArray, rounds: np.ndarray | int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns who owns devices in rounds: a pair for each device and owner.

    Args:
      device_ids: shape [num_ids], of any text type or int64.
      rounds: shape [num_ids], or one for all.

    Returns:
      Places in device_ids, ascending, and numbers of units; both of shape [num_pairs]. A device
      without an owner in its round has none.
    """
    known = self._devices.dictionary
    if pa.types.is_integer(known.type) != pa.types.is_integer(device_ids.type):
      return np.zeros(0, np.int64), np.zeros(0, np.int64)
    places = pc.index_in(device_ids.cast(known.type), value_set=known)
    numbers = pc.fill_null(places, -1).to_numpy().astype(np.int64)
    rows, starts = self._rows
    begins = np.where(numbers < 0, 0, starts[numbers])
    counts = np.where(numbers < 0, 0, starts[numbers + 1] - begins)
    pairs = np.repeat(np.arange(numbers.size), counts)
    shift = np.arange(pairs.size) - np.repeat(np.cumsum(counts) - counts, counts)
    which = rows[np.repeat(begins, counts) + shift]
    t = np.broadcast_to(rounds, numbers.shape)[pairs]
    holds = self.from_rounds[which] <= t
    return pairs[holds], self._units.indices.to_numpy()[which[holds]].astype(np.int64)

  @functools.cached_property
  def citation(self) -> str:
    """The text by which a log cites the table: its number of rows, and their digest."""
    return f'{len(self)}:{self._digest(len(self))}'

  def check_cited(self, citations: Sequence[tuple[int, str]], num_rounds: int) -> None:
    """Raises LogError unless the table is what a log cites, with rows that were added in time.

    Args:
      citations: first round of each citation, from round 0 on, and the citation.
      num_rounds: rounds that were begun.
    """
    rounds = [t for t, _ in citations]
    if rounds and (rounds[0] or rounds != sorted(set(rounds)) or rounds[-1] > num_rounds):
      raise refusals.LogError(f'{self.path}: the log does not cite a table in each of its rounds')
    ends = [*rounds[1:], num_rounds]
    for (t, text), end in zip(citations, ends):
      if not (match := _CITATION.fullmatch(text)):
        raise refusals.LogError(f'{messages.quoted(text)} cites no table of units')
      num_rows = int(match[1])
      if num_rows > len(self) or self._digest(num_rows) != match[2]:
        raise refusals.LogError(
          f'{self.path}: the first {num_rows} of its {len(self)} rows are not those that the'
          f' log cites from round {t} on; rows are appended, and never changed, and a log of names'
          f' has its table beside it, {NAME}'
        )
      late = np.flatnonzero(self.from_rounds[num_rows:] < end)
      if late.size:
        row = num_rows + int(late[0])
        raise refusals.LogError(
          f'{self.path}, row {row + 1}: is of round {self.from_rounds[row]}, and was not in the'
          f' table that the log cites up to round {end - 1}; append a row before its round begins'
        )

  def save(self, path: str | os.PathLike[str], first_round: int = 0) -> None:
    """Writes the table as Parquet, with rounds that are numbered from first_round on."""
    columns = self._columns(first_round)
    with durable.replacing(paths.local(path), private=True) as temporary:
      pq.write_table(pa.table(columns), temporary)

  def _columns(self, first_round: int = 0) -> dict[str, pa.Array]:
    rounds = pa.array(self.from_rounds + first_round)
    return {DEVICE_ID: self.device_ids, UNIT_ID: self.unit_ids, FROM_ROUND: rounds}

  def _digest(self, num_rows: int) -> str:
    digest = hashlib.sha256(f'{self.device_ids.type} {self.unit_ids.type}\n'.encode())
    for start in range(0, num_rows, _PART_ROWS):
      part = slice(start, min(start + _PART_ROWS, num_rows))
      texts = (column[part].cast(pa.large_string()) for column in self._columns().values())
      lines = pc.binary_join_element_wise(*texts, pa.scalar('\t', pa.large_string()))
      digest.update(('\n'.join(lines.to_pylist()) + '\n').encode())  # No id holds either.
    return digest.hexdigest()


Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Given = UnitTable | Files
"""A table, or the files that it is in."""


def opened(units: Given, first_round: int = 0) -> UnitTable:
  """Returns a table from Parquet or CSV, in the order of files and rows.

  Args:
    units: the table, or its files.
    first_round: number of the first round in its column `from_round`.

  Raises:
    LogError: for a file that cannot be read or has other columns, a row that lacks a value or
      breaks the rule of ids, and one that is there twice.
    ValueError: for a table that was opened before, with another number of the first round.
  """
  if isinstance(units, UnitTable):
    if first_round:
      raise ValueError(
        f'units: give files, whose rounds are counted from first_round={first_round}'
      )
    return units
  columns = table_columns.TableColumns(_KINDS, dict(zip(_KINDS, _KINDS)), first_round)
  sources = participation_log.opened(units, columns)
  schemas = {}
  for source in sources:
    schemas[source.path], _, names = readers.head(source)
    if unused := [name for name in names if name not in _KINDS]:  # Such as when a row ends.
      raise refusals.LogError(
        f'{source.path}: has a column {messages.quoted(unused[0])}, which nothing reads: leave it'
        ' out'
      )
  readers.check_types(schemas)
  tables = [table for source in sources for table in readers.tables(source)]
  if not tables:
    raise refusals.LogError(f'{sources[0].path}: has no row')
  table = pa.concat_tables(tables)
  devices, owners = _ids(table.column(DEVICE_ID)), _ids(table.column(UNIT_ID))
  shown = os.fspath(units) if isinstance(units, (str, os.PathLike)) else os.fspath(units[0])
  return UnitTable(shown, devices, owners, table.column(FROM_ROUND).to_numpy())


def _ids(column: pa.ChunkedArray) -> pa.Array:
  return column.combine_chunks().cast(
    pa.int64() if pa.types.is_integer(column.type) else pa.string()
  )
