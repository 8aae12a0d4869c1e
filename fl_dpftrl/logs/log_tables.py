"""The participation log: columns, and writers of whole logs.

The log has one row for each device in the cohort of a round that consumed a noise row: `round`
(int64, from 0, the index of the noise row), `device_id` (text or int64) and, optionally,
`timestamp` (UTC). The file's metadata hold `fl_dpftrl.log_version`, `num_rounds` (the rounds
begun), and a digest of the metadata; its pages have checksums.
"""

import contextlib
import hashlib
import json
import operator
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl.logs import id_columns, id_spellings, keys, limits, refusals
from fl_dpftrl.support.files import durable, paths
from fl_dpftrl.support.text import messages

ROW_GROUP = 1 << 20
"""Rows of a row group of a file."""
_MOST_TABLES = 1 << 10
# Rounds of a table, and bytes of its ids, whose places Arrow counts in 32 bits.
_ROUNDS_AT_ONCE, _BYTES_AT_ONCE = 1 << 8, 1 << 24

_FORMAT = {'compression': 'zstd', 'write_page_checksum': True}
MOST_SECONDS = 253_402_300_799  # end of the year 9999
TIMESTAMP = pa.timestamp('us', tz='UTC')
"""Type of the timestamps of a log."""


def write_log(
  path: str | os.PathLike[str],
  *,
  rounds: Sequence[int] | np.ndarray,
  device_ids: id_columns.Ids,
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
    ValueError: for columns of other types, shapes or ranges or without any row,
      and for a device twice in a round.
    OSError: if it cannot be written.
  """
  columns = {
    'round': id_columns.whole_numbers(rounds, 'rounds'),
    'device_id': id_columns.column(device_ids),
  }
  if timestamps is not None:
    seconds = utc_seconds('timestamps', timestamps)
    columns['timestamp'] = seconds.cast(pa.timestamp('s', tz='UTC')).cast(TIMESTAMP)
  lengths = {name: len(column) for name, column in columns.items()}
  if len(set(lengths.values())) != 1:
    raise ValueError(f'columns must have one length, got {lengths}')
  table = pa.table(columns)
  if not table.num_rows:  # Rows may be missing; `LogWriter` says that there were none.
    raise ValueError('rounds must not be empty: LogWriter writes rounds without devices')
  bounds = pc.min_max(table.column('round')).as_py()
  if bounds['min'] < 0 or bounds['max'] >= num_rounds:
    raise ValueError(
      f'rounds must lie in 0 to num_rounds − 1 = {num_rounds - 1}, got'
      f' {bounds["min"]} to {bounds["max"]}'
    )
  if table.group_by(['round', 'device_id']).aggregate([]).num_rows != table.num_rows:
    raise ValueError('device_ids holds a device twice in a round')
  id_spellings.check(columns['device_id'], 'device_ids')
  metadata = file_metadata(num_rounds, metadata)
  with appending(parquet_path(path), table.schema, metadata) as append:
    append(table)


def write_rounds(
  path: pathlib.Path,
  schema: pa.Schema,
  metadata: Mapping[str, str],
  rounds: Iterable[tuple[int, int, pa.Array]],
) -> None:
  """Writes a log of rounds: index, UTC second and devices of each, in one durable step."""
  with appending(path, schema, metadata) as append:
    part, num_bytes = list[tuple[int, int, pa.Array]](), 0
    for round_ in rounds:
      part.append(round_)
      num_bytes += round_[-1].nbytes
      if len(part) >= _ROUNDS_AT_ONCE or num_bytes >= _BYTES_AT_ONCE:
        append(table_of(*zip(*part)))
        part, num_bytes = [], 0
    if part:
      append(table_of(*zip(*part)))


@contextlib.contextmanager
def appending(
  path: pathlib.Path, schema: pa.Schema, metadata: Mapping[str, str]
) -> Iterator[Callable[[pa.Table], None]]:
  """Writes a log in one durable step; yields what appends rows, which are cut as they need be."""
  kind = schema.with_metadata(sealed(metadata))
  pending: list[pa.Table] = []
  rows = 0

  with durable.replacing(path, private=True) as temporary:
    # Arrow would take a name such as ~/run or run:1 for another place.
    with temporary.open('wb') as opened, pq.ParquetWriter(opened, kind, **_FORMAT) as file:

      def write(table: pa.Table) -> None:
        file.write_table(table.combine_chunks().cast(kind))  # Chunks would show in the pages.

      def append(table: pa.Table) -> None:
        nonlocal rows
        pending.append(table)
        rows += table.num_rows
        if len(pending) >= _MOST_TABLES:  # Each takes kilobytes, however few rows it has.
          pending[:] = [pa.concat_tables(pending).combine_chunks()]
        while rows >= ROW_GROUP:
          whole = pa.concat_tables(pending)
          write(whole.slice(0, ROW_GROUP))
          pending[:], rows = [whole.slice(ROW_GROUP)], rows - ROW_GROUP

      yield append
      if rows:
        write(pa.concat_tables(pending))


def sealed(metadata: Mapping[str, str]) -> dict[str, str]:
  """Returns metadata with their digest."""
  canonical = json.dumps(sorted(metadata.items()), ensure_ascii=True)
  return {**metadata, keys.METADATA_KEY: hashlib.sha256(canonical.encode()).hexdigest()}


def opened(path: str, stored: Mapping[str, str]) -> dict[str, str]:
  """Returns the metadata of a file without their digest; LogError where it is of others."""
  contents = {key: value for key, value in stored.items() if key != keys.METADATA_KEY}
  if keys.METADATA_KEY in stored and sealed(contents) != stored:
    raise refusals.LogError(
      f'{path}: its metadata are not those of {keys.METADATA_KEY}; take another copy, or write'
      ' what was changed on purpose with write_log'
    )
  return contents


def stored_metadata(path: pathlib.Path) -> dict[str, str]:
  """Returns the metadata of a Parquet file, unchecked; LogError for a damaged one."""
  with path.open('rb') as file:
    try:
      stored = pq.read_metadata(file).metadata or {}
    except (pa.ArrowException, OSError) as e:
      raise refusals.LogError(f'{path}: cannot be read, {e}') from e
  return {os.fsdecode(key): os.fsdecode(value) for key, value in stored.items()}


def with_timestamps(id_type: pa.DataType) -> pa.Schema:
  """Returns the schema of the rows of a log with timestamps."""
  return pa.schema([('round', pa.int64()), ('device_id', id_type), ('timestamp', TIMESTAMP)])


def parquet_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of a log to write; ValueError for another format or without a folder."""
  path = paths.local(path)
  if path.suffix != '.parquet':
    raise ValueError(f'a log must end in .parquet, got {str(path)!r}')
  if not path.parent.is_dir():
    raise ValueError(f'{path}: the folder {path.parent} does not exist; make it first')
  return path


def file_metadata(num_rounds: int, more: Mapping[str, str] | None) -> dict[str, str]:
  """Returns a log's metadata, without their digest."""
  if operator.index(num_rounds) > limits.ROUNDS:
    raise ValueError(f'num_rounds must be at most {limits.ROUNDS}, got {num_rounds}')
  more = more or {}
  for key in keys.OWN_KEYS:
    if key in more:
      raise ValueError(f'metadata must not hold {key!r}, which the log sets')
  for key, value in more.items():
    if not isinstance(key, str) or not isinstance(value, str):
      raise ValueError(
        f'metadata must hold texts under texts, got {messages.quoted(value)} under'
        f' {messages.quoted(key)}'
      )
  return {
    **more,
    keys.VERSION_KEY: str(keys.LOG_VERSION),
    keys.NUM_ROUNDS_KEY: str(operator.index(num_rounds)),
  }


def utc_seconds(name: str, values: Sequence[int] | np.ndarray) -> pa.Array:
  """Returns UTC seconds as int64; ValueError naming the argument for other numbers."""
  seconds = id_columns.whole_numbers(values, name)
  for value in pc.min_max(seconds).as_py().values():
    if value is not None and abs(value) > MOST_SECONDS:
      raise ValueError(
        f'{name} must be UTC seconds, got {value}, which is beyond the year 9999; divide'
        ' milliseconds by 1000'
      )
  return seconds


def table_of(
  rounds: Sequence[int], seconds: Sequence[int], cohorts: Sequence[pa.Array]
) -> pa.Table:
  """Returns the rows of some rounds, each with its devices and one timestamp in UTC seconds."""
  sizes = [len(ids) for ids in cohorts]
  times = np.repeat(1_000_000 * np.array(seconds, np.int64), sizes)
  return pa.table(
    {
      'round': np.repeat(np.array(rounds, np.int64), sizes),
      'device_id': pa.concat_arrays(cohorts),
      'timestamp': pa.array(times).cast(TIMESTAMP),
    }
  )
