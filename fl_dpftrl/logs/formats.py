"""The files of a log, a batch of rows at a time: read strictly, never whole.

Rows are numbered from 1 in messages, the header of a CSV file not counted.
"""

import io
import json
import os
from typing import Callable, Iterator, NamedTuple, NoReturn, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

_COLUMNS = ('round', 'device_id')
_BATCH_ROWS = 1 << 20
_JSON_BLOCK = 1 << 26  # bytes


class LogError(ValueError):
  """A log that cannot be believed; the message names the file, in one line."""


class Opened(NamedTuple):
  """A file that can be read.

  Attributes:
    metadata: the file's own keys and values; none for CSV and JSON lines.
    id_type: of `device_id`: large_string or int64.
    tables: its rows from the first on, each time that it is called; `round` is
      int64, and further columns are those of the file.
  """

  metadata: dict[str, str]
  id_type: pa.DataType
  tables: Callable[[], Iterator[pa.Table]]


def _parquet(path: str, extra_columns: Sequence[str]) -> Opened:
  columns = [*_COLUMNS, *extra_columns]
  with pq.ParquetFile(path) as file:
    _check_names(path, file.schema_arrow.names, columns)
    rounds = file.schema_arrow.field('round').type
    ids = file.schema_arrow.field('device_id').type
    stored = file.metadata.metadata or {}
  if not pa.types.is_integer(rounds):
    raise LogError(f'{path}: round must be whole numbers, is {rounds}')
  id_type = _id_type(path, ids)
  metadata = {
      k.decode(): v.decode()
      for k, v in stored.items()
      if k not in (b'ARROW:schema', b'pandas')
  }

  def canonical(table: pa.Table) -> pa.Table:
    table = table.select(columns)
    rounds, ids = table.column('round'), table.column('device_id')
    table = table.set_column(0, 'round', rounds.cast(pa.int64()))
    return table.set_column(1, 'device_id', ids.cast(id_type))

  def tables():
    with pq.ParquetFile(path) as file:
      if not file.metadata.num_rows:
        yield canonical(file.schema_arrow.empty_table())
      for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
        yield canonical(pa.Table.from_batches([batch]))

  return Opened(metadata, id_type, tables)


def _id_type(path: str, given: pa.DataType) -> pa.DataType:
  """int64 or large_string, whatever the file has."""
  types = pa.types
  kind = given.value_type if types.is_dictionary(given) else given
  if types.is_integer(kind):
    return pa.int64()
  if types.is_string(kind) or types.is_large_string(kind):
    return pa.large_string()
  raise LogError(f'{path}: device_id must be text or whole numbers, is {given}')


def _csv(path: str, extra_columns: Sequence[str]) -> Opened:
  del extra_columns
  with open(path, 'rb') as file:
    if file.seek(0, os.SEEK_END):
      file.seek(-1, os.SEEK_END)
      if file.read() != b'\n':
        raise LogError(
            f'{path}: does not end with a newline, so it may have been cut; add'
            ' one if it is whole'
        )

  def stream():
    return pa_csv.open_csv(
        path,
        read_options=pa_csv.ReadOptions(block_size=1 << 24),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types={name: pa.large_string() for name in _COLUMNS},
            strings_can_be_null=False,
        ),
    )

  with stream() as reader:
    _check_names(path, reader.schema.names, _COLUMNS)

  def tables():
    first_row = 1
    with stream() as reader:
      for batch in reader:
        table = pa.Table.from_batches([batch]).select(_COLUMNS)
        yield _csv_rows(path, table, first_row)
        first_row += table.num_rows

  return Opened({}, pa.large_string(), tables)


def _csv_rows(path: str, table: pa.Table, first_row: int) -> pa.Table:
  rounds, ids = table.column('round'), table.column('device_id')
  odd = pc.invert(pc.match_substring_regex(rounds, r'^-?[0-9]{1,18}$'))
  message = 'round must be a whole number, got {round!r}'
  refuse_first(path, table, odd, message, first_row)
  spaced = pc.not_equal(pc.utf8_trim_whitespace(ids), ids)
  message = 'device_id has spaces around it, {device_id!r}'
  refuse_first(path, table, spaced, message, first_row)
  return table.set_column(0, 'round', rounds.cast(pa.int64()))


def _json_lines(path: str, extra_columns: Sequence[str]) -> Opened:
  del extra_columns

  def parsed(block: bytes, id_type: pa.DataType) -> pa.Table:
    schema = pa.schema([('round', pa.int64()), ('device_id', id_type)])
    options = pa_json.ParseOptions(explicit_schema=schema)
    return pa_json.read_json(io.BytesIO(block), parse_options=options).select(
        _COLUMNS
    )

  id_type = pa.large_string()
  first = next(_blocks(path), None)
  if first is not None:
    try:
      parsed(first, id_type)
    except pa.ArrowInvalid:
      id_type = pa.int64()

  def tables():
    for block in _blocks(path):
      try:
        table = parsed(block, id_type)
      except pa.ArrowInvalid as e:
        _explain_json(path, e)
      yield table

  return Opened({}, id_type, tables)


def _blocks(path: str) -> Iterator[bytes]:
  """Whole lines, about as many bytes at a time as are read fast."""
  with open(path, 'rb') as file:
    while block := file.read(_JSON_BLOCK):
      block += file.readline()
      if block.strip():
        yield block


def _explain_json(path: str, error: pa.ArrowInvalid) -> NoReturn:
  """Finds the first row that is at fault, or that differs from the first."""
  first = None
  with open(path, encoding='utf-8', errors='replace') as file:
    for row, line in enumerate(filter(str.strip, file), 1):
      try:
        entry = json.loads(line)
        round_index, device_id = entry['round'], entry['device_id']
      except (ValueError, KeyError, TypeError):
        raise LogError(
            f'{path}, row {row}: must be a JSON object with round and device_id'
        ) from error
      if type(round_index) is not int:  # pylint: disable=unidiomatic-typecheck
        raise LogError(
            f'{path}, row {row}: round must be a whole number, got'
            f' {round_index!r}'
        ) from error
      first = type(device_id) if first is None else first
      if first not in (int, str) or type(device_id) is not first:
        raise LogError(
            f'{path}, row {row}: device_id must be all text or all whole'
            f' numbers, got {device_id!r}'
        ) from error
  raise error


READERS = {
    '.parquet': _parquet,
    '.csv': _csv,
    '.jsonl': _json_lines,
    '.ndjson': _json_lines,
    '.json': _json_lines,
}
"""Suffix → (path, further columns) → Opened; further ones of Parquet alone.

Readers, and the tables that they open, raise LogError, OSError or
pa.ArrowException.
"""


def _check_names(
    path: str, names: Sequence[str], wanted: Sequence[str]
) -> None:
  for name in wanted:
    if names.count(name) != 1:
      how = 'no' if name not in names else 'more than one'
      raise LogError(
          f'{path}: has {how} column {name!r}; its columns are'
          f' {", ".join(map(repr, names))}'
      )


def refuse_first(
    path: str,
    table: pa.Table,
    wrong: pa.ChunkedArray,
    message: str,
    first_row: int = 1,
) -> None:
  """Raises LogError with the first row that is wrong, if one is.

  Args:
    path: the table's file.
    table: some of its rows.
    wrong: bool, for each row.
    message: may name columns in braces.
    first_row: the number of the table's first row in the file.
  """
  index = pc.index(wrong, pa.scalar(True)).as_py()
  if index >= 0:
    row = table.slice(index, 1).to_pylist()[0]
    raise LogError(
        f'{path}, row {first_row + index}: {message.format(**row)}'
    )
