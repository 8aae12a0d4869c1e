"""Format and writer of the participation log, version 1.

The log has one row for each device in the cohort of a round that consumed a
noise row: `round` (int64, from 0, the index of the noise row), `device_id`
(text or int64) and, optionally, `timestamp` (UTC). The file's metadata hold
`fl_dpftrl.log_version`, `num_rounds` (the noise rows consumed), and digests of
the rows and of the metadata.
"""

import operator
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl import files
from fl_dpftrl.logs import device_ids as device_ids_lib
from fl_dpftrl.logs import digests, limits, noise_record, shards

LogError = shards.LogError
VOID_KEY = shards.VOID_KEY

FORMAT = {'compression': 'zstd', 'write_page_checksum': True}
"""How pyarrow writes the files."""

_TIMESTAMP = digests.TIMESTAMP


class Rows(NamedTuple):
  """Columns of a log, each of shape [num_participations].

  Attributes:
    rounds: int64.
    device_ids: text or int64.
    timestamps: int64, UTC seconds.
  """

  rounds: np.ndarray
  device_ids: np.ndarray
  timestamps: np.ndarray


def write_log(
  path: str | os.PathLike[str],
  *,
  rounds: Sequence[int] | np.ndarray,
  device_ids: Sequence[str] | Sequence[int] | np.ndarray,
  num_rounds: int,
  timestamps: Sequence[int] | np.ndarray | None = None,
  metadata: Mapping[str, str] | None = None,
) -> None:
  """Writes a log as Parquet, in one durable step.

  The same arguments give the same bytes with the same release of pyarrow.

  Args:
    path: the file, ending in .parquet; its folder must exist.
    rounds: shape [num_participations], from 0 to num_rounds − 1.
    device_ids: shape [num_participations], text or whole numbers.
    num_rounds: rows of noise consumed.
    timestamps: shape [num_participations], whole UTC seconds.
    metadata: further keys and values for the file's metadata.

  Raises:
    ValueError: for columns of other types, shapes or ranges, and for a device
      twice in a round.
    OSError: if it cannot be written.
  """
  table = _table(rounds, device_ids, timestamps)
  if table.num_rows:
    bounds = pc.min_max(table.column('round')).as_py()
    if bounds['min'] < 0 or bounds['max'] >= num_rounds:
      raise ValueError(
        f'rounds must lie in 0 to num_rounds − 1 = {num_rounds - 1}, got'
        f' {bounds["min"]} to {bounds["max"]}'
      )
  pairs = table.group_by(['round', 'device_id']).aggregate([])
  if pairs.num_rows != table.num_rows:
    raise ValueError('device_ids holds a device twice in a round')
  rows = digests.Rows(timestamps=timestamps is not None)
  rows.update(table)
  _write(parquet_path(path), table, file_metadata(num_rounds, metadata), rows)


class LogWriter:
  """A log that grows by one round at a time, complete and durable after each.

  If the file exists, the writer appends to it.

  Attributes:
    path: the file.
    num_rounds: rounds appended so far.
  """

  def __init__(self, path: str | os.PathLike[str], *, metadata: Mapping[str, str] | None = None):
    """Opens the log.

    Args:
      path: the file, ending in .parquet; its folder must exist.
      metadata: further keys and values for the file's metadata; an existing
        file must have the same ones.

    Raises:
      LogError: if the file exists and was not written by a LogWriter with this
        metadata.
    """
    self.path = parquet_path(path)
    self._given = dict(metadata or {})
    file_metadata(0, self._given)  # Refuses keys before there are rounds.
    self._cohorts: list[pa.Table] = []
    self._released: int | None = None
    self._rows = digests.Rows(timestamps=True)
    if self.path.exists():
      self._cohorts = self._read()
      for cohort in self._cohorts:
        self._rows.update(cohort)

  @property
  def num_rounds(self) -> int:
    return len(self._cohorts)

  def append(
    self, round_index: int, device_ids: Sequence[str] | Sequence[int] | np.ndarray, timestamp: int
  ) -> None:
    """Appends a round's cohort; it is durably on disk when this returns.

    Args:
      round_index: the next round, which is num_rounds.
      device_ids: shape [cohort size], of one type through the whole log; empty
        for a round that only consumed noise.
      timestamp: UTC second of the round.

    Raises:
      ValueError: for another round, another type of id, or a device twice.
      OSError: if it cannot be written; the log is then as before.
    """
    if operator.index(round_index) != self.num_rounds:
      raise ValueError(f'the next round of the log is {self.num_rounds}, got {round_index}')
    size = len(device_ids)
    cohort = _table(
      np.full(size, round_index, np.int64), device_ids, np.full(size, timestamp, np.int64)
    )
    if len(pc.unique(cohort.column('device_id'))) != size:
      raise ValueError(f'device_ids holds a device twice in round {round_index}')
    cohorts = [*self._cohorts, cohort]
    rows = self._rows.copy()
    rows.update(cohort)
    self._store(cohorts, rows, self._given, self._released)
    self._cohorts, self._rows = cohorts, rows

  def released(self) -> int | None:
    """Number of rounds whose results may have been used; None if unknown."""
    return self._released

  def mark_released(self, num_rounds: int) -> None:
    """Records durably that results of the first num_rounds rounds may be used.

    The mark is in the file's metadata, so it goes wherever the log goes. Before
    the first round there is no file, and the mark is written with that round.

    Raises:
      ValueError: for more rounds than the log has.
      OSError: if it cannot be written; the log is then as before.
    """
    if not 0 <= num_rounds <= self.num_rounds:
      raise ValueError(f'num_rounds must lie in 0 to {self.num_rounds}, got {num_rounds}')
    if num_rounds == self._released:
      return
    if self._cohorts:
      self._store(self._cohorts, self._rows, self._given, num_rounds)
    self._released = num_rounds

  def change_noise(self, round_index: int, *, noise_multiplier: float, clip_norm: float) -> None:
    """Records durably that the noise changes from a round on.

    Call it before that round is computed. The log is written again with the
    change in its metadata, as `noise_record.run_metadata` gives it.

    Args:
      round_index: the aggregator state's `noise.row`: num_rounds, or one less
        if that round's cohort is in the log already.
      noise_multiplier, clip_norm: values from that round on.

    Raises:
      ValueError: for another round or values out of range, and if the metadata
        lack the previous noise multiplier and clip norm.
      OSError: if it cannot be written; the log is then as before.
    """
    before = noise_record.read(self._given)
    if None in before[:2]:
      raise ValueError(
        f'{self.path}: its metadata lack the noise multiplier or clip norm that'
        ' was before; open it with those of noise_record.run_metadata'
      )
    if operator.index(round_index) not in (self.num_rounds, self.num_rounds - 1):
      raise ValueError(
        f'round_index must be {self.num_rounds}, or one less where that round'
        f' was not computed yet, got {round_index}'
      )
    change = (round_index, noise_multiplier, clip_norm)
    given = self._given | noise_record.metadata(
      before.noise_multiplier, clip_norm=before.clip_norm, changes=(*before.changes, change)
    )
    self._store(self._cohorts, self._rows, given, self._released)
    self._given = given

  def cohort(self, round_index: int) -> np.ndarray:
    """Returns the device ids of a round, as they were appended."""
    return _ids(self._cohorts[round_index])

  def rows(self, *, before: int | None = None) -> Rows:
    """Returns the rows of rounds 0 to before − 1, or of all rounds."""
    table = _concatenate(self._cohorts[:before])
    seconds = pc.divide(table.column('timestamp').cast(pa.int64()), 1_000_000)
    return Rows(
      rounds=table.column('round').to_numpy(), device_ids=_ids(table), timestamps=seconds.to_numpy()
    )

  def _store(
    self,
    cohorts: Sequence[pa.Table],
    rows: digests.Rows,
    given: Mapping[str, str],
    released: int | None,
  ) -> None:
    mark = {} if released is None else {shards.RELEASED_KEY: str(released)}
    metadata = {**file_metadata(len(cohorts), given), **mark}
    _write(self.path, _concatenate(cohorts), metadata, rows)

  def _read(self) -> list[pa.Table]:
    shard = shards.open_(self.path, 'timestamp')
    own = file_metadata(shard.num_rounds or 0, self._given)
    found = dict(shard.metadata)
    self._released = self._mark(found.pop(shards.RELEASED_KEY, None), shard)
    if found != own:
      raise LogError(f'{self.path}: its metadata are {found}, not {own}')
    table = pa.concat_tables(shard.tables())
    if pa.types.is_large_string(table.schema.field('device_id').type):
      ids = table.column('device_id').cast(pa.string())
      table = table.set_column(1, 'device_id', ids)
    rounds = table.column('round').to_numpy()
    if (
      table.schema.field('timestamp').type != _TIMESTAMP
      or table.column('timestamp').null_count
      or (np.diff(rounds) < 0).any()
      or (rounds >= shard.num_rounds).any()
    ):
      raise LogError(
        f'{self.path}: rounds must be sorted and have timestamps before a log can be appended to'
      )
    ends = np.searchsorted(rounds, np.arange(shard.num_rounds + 1)).tolist()
    return [table.slice(a, b - a) for a, b in zip(ends, ends[1:])]

  def _mark(self, text: str | None, shard: shards.Shard) -> int | None:
    if text is None:
      return None
    if not re.fullmatch('[0-9]{1,18}', text) or int(text) > shard.num_rounds:
      raise LogError(
        f'{self.path}: {shards.RELEASED_KEY} is {text[:40]!r}, and the log has'
        f' {shard.num_rounds} rounds'
      )
    return int(text)


def schema(id_type: pa.DataType) -> pa.Schema:
  """Returns the schema of a log with timestamps."""
  return pa.schema([('round', pa.int64()), ('device_id', id_type), ('timestamp', _TIMESTAMP)])


def parquet_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of a log to write; ValueError for another format."""
  path = pathlib.Path(path)
  if path.suffix != '.parquet':
    raise ValueError(f'a log must end in .parquet, got {str(path)!r}')
  return path


def file_metadata(num_rounds: int, more: Mapping[str, str] | None) -> dict[str, str]:
  """Returns a log's metadata, without its digests.

  Raises:
    ValueError: for a key that the log sets itself, and for too many rounds.
  """
  if operator.index(num_rounds) > limits.ROUNDS:
    raise ValueError(f'num_rounds must be at most {limits.ROUNDS}, got {num_rounds}')
  own = (shards.VERSION_KEY, shards.NUM_ROUNDS_KEY, shards.RELEASED_KEY)
  for key in (*own, *digests.KEYS):
    if more and key in more:
      raise ValueError(f'metadata must not hold {key!r}, which the log sets')
  return {
    **(more or {}),
    shards.VERSION_KEY: str(shards.LOG_VERSION),
    shards.NUM_ROUNDS_KEY: str(operator.index(num_rounds)),
  }


def _table(
  rounds: Sequence[int] | np.ndarray,
  device_ids: Sequence[str] | Sequence[int] | np.ndarray,
  timestamps: Sequence[int] | np.ndarray | None,
) -> pa.Table:
  """Returns the columns as a table, with types and shapes checked."""
  columns = {'round': _integers('rounds', rounds), 'device_id': _id_column(device_ids)}
  if timestamps is not None:
    seconds = _integers('timestamps', timestamps)
    columns['timestamp'] = seconds.cast(pa.timestamp('s', tz='UTC')).cast(_TIMESTAMP)
  lengths = {name: len(column) for name, column in columns.items()}
  if len(set(lengths.values())) != 1:
    raise ValueError(f'columns must have one length, got {lengths}')
  return pa.table(columns)


def _integers(name: str, values: Sequence[int] | np.ndarray) -> pa.Array:
  values = np.asarray(values)
  if values.ndim != 1 or (values.size and values.dtype.kind not in 'iu'):
    raise ValueError(
      f'{name} must be a list of whole numbers, got {values.dtype} of shape {values.shape}'
    )
  return pa.array(values.astype(np.int64))


def _id_column(device_ids: Sequence[str] | Sequence[int] | np.ndarray) -> pa.Array:
  try:
    ids = pa.array(device_ids)
  except (pa.ArrowException, TypeError) as e:
    raise ValueError(f'device_ids must be all text or all whole numbers: {e}') from e
  if not len(ids):
    return ids.cast(pa.string())
  if pa.types.is_integer(ids.type):
    ids = ids.cast(pa.int64())
  elif not pa.types.is_string(ids.type):
    raise ValueError(f'device_ids must be text or whole numbers, got {ids.type}')
  if ids.null_count:
    raise ValueError('device_ids must not be empty')
  if fault := device_ids_lib.first_fault(ids):
    raise ValueError(f'device_ids: at {fault.index}, {fault.reason}')
  return ids


def _concatenate(cohorts: Sequence[pa.Table]) -> pa.Table:
  """Joins all cohorts in one table; cohorts without devices have no id type."""
  tables = [c for c in cohorts if c.num_rows]
  if not tables:
    return _table([], [], [])
  types = {str(t.schema.field('device_id').type) for t in tables}
  if len(types) > 1:
    raise ValueError(f'device_ids must be of one type through a log, got {sorted(types)}')
  return pa.concat_tables(tables)


def _ids(table: pa.Table) -> np.ndarray:
  ids = table.column('device_id')
  if pa.types.is_integer(ids.type):
    return ids.to_numpy()
  return np.array(ids.to_pylist(), dtype=np.str_)


def _write(
  path: pathlib.Path, table: pa.Table, metadata: Mapping[str, str], rows: digests.Rows
) -> None:
  id_type = table.schema.field('device_id').type
  metadata = digests.sealed(metadata, rows.stated(id_type))
  # Chunks would show in the pages of the file; equal logs have equal bytes.
  table = table.combine_chunks().replace_schema_metadata(metadata)
  table = table.cast(digests.marked(table.schema))
  sink = pa.BufferOutputStream()
  pq.write_table(table, sink, **FORMAT)
  files.write_durably(path, sink.getvalue().to_pybytes(), private=True)
