"""Format of the participation log, version 1, and a writer of whole logs.

The log has one row for each device in the cohort of a round that consumed a
noise row: `round` (int64, from 0, the index of the noise row), `device_id`
(text or int64) and, optionally, `timestamp` (UTC). The file's metadata hold
`fl_dpftrl.log_version`, `num_rounds` (the noise rows consumed), and digests of
the rows and of the metadata.
"""

import operator
import os
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl.files import durable
from fl_dpftrl.logs import chain, columns, digests, limits, shards
from fl_dpftrl.text import messages

VOID_KEY = shards.VOID_KEY

FORMAT = {'compression': 'zstd', 'write_page_checksum': True}
"""How pyarrow writes the files."""

ROW_GROUP = 1 << 20
"""Rows of a row group."""

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
  table = columns.table(rounds, device_ids, timestamps)
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
  metadata = file_metadata(num_rounds, metadata)
  metadata[shards.CHAIN_KEY] = chain.of_table(table, num_rounds).hex()
  write(parquet_path(path), table.schema, metadata, rows, [table])


def schema(id_type: pa.DataType) -> pa.Schema:
  """Returns the schema of a log with timestamps."""
  return pa.schema([('round', pa.int64()), ('device_id', id_type), ('timestamp', _TIMESTAMP)])


def parquet_path(path: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of a log to write; ValueError for another format or without a folder."""
  path = pathlib.Path(path)
  if path.suffix != '.parquet':
    raise ValueError(f'a log must end in .parquet, got {str(path)!r}')
  if not path.parent.is_dir():
    raise ValueError(f'{path}: the folder {path.parent} does not exist; make it first')
  return path


def file_metadata(num_rounds: int, more: Mapping[str, str] | None) -> dict[str, str]:
  """Returns a log's metadata, without its digests.

  Raises:
    ValueError: for a key that the log sets itself, what is no text, and too many rounds.
  """
  if operator.index(num_rounds) > limits.ROUNDS:
    raise ValueError(f'num_rounds must be at most {limits.ROUNDS}, got {num_rounds}')
  own = (shards.VERSION_KEY, shards.NUM_ROUNDS_KEY, shards.RELEASED_KEY, shards.CHAIN_KEY)
  for key in (*own, *digests.KEYS):
    if more and key in more:
      raise ValueError(f'metadata must not hold {key!r}, which the log sets')
  for key, value in (more or {}).items():
    if not isinstance(key, str) or not isinstance(value, str):
      raise ValueError(
        f'metadata must hold texts under texts, got {messages.quoted(value)} under'
        f' {messages.quoted(key)}'
      )
  return {
    **(more or {}),
    shards.VERSION_KEY: str(shards.LOG_VERSION),
    shards.NUM_ROUNDS_KEY: str(operator.index(num_rounds)),
  }


def write(
  path: pathlib.Path,
  kind: pa.Schema,
  metadata: Mapping[str, str],
  rows: digests.Rows,
  tables: Iterable[pa.Table],
) -> None:
  """Writes rows as a log's file, in one durable step and with little in memory.

  Args:
    path: the file.
    kind: schema of the rows.
    metadata: of the file, without digests.
    rows: digests of the rows.
    tables: the rows; equal rows give equal bytes, however they are cut.
  """
  metadata = digests.sealed(metadata, rows.stated(kind.field('device_id').type))
  kind = digests.marked(kind.with_metadata(metadata))
  with durable.replacing(path, private=True) as temporary:
    with pq.ParquetWriter(temporary, kind, **FORMAT) as file:
      for table in _groups(tables):
        # Chunks would show in the pages of the file.
        file.write_table(table.combine_chunks().cast(kind))


def _groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
  """Yields the same rows in tables of ROW_GROUP rows, the last one smaller."""
  kept: list[pa.Table] = []
  rows = 0
  for table in tables:
    kept.append(table)
    rows += table.num_rows
    while rows >= ROW_GROUP:
      whole = pa.concat_tables(kept)
      yield whole.slice(0, ROW_GROUP)
      kept, rows = [whole.slice(ROW_GROUP)], rows - ROW_GROUP
  if rows:
    yield pa.concat_tables(kept)
