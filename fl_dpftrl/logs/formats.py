"""One file of a log as a table: Parquet, CSV and JSON lines, read strictly.

Rows are numbered from 1 in messages, the header of a CSV file not counted.
"""

import json
import os
from typing import NoReturn, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

_COLUMNS = ('round', 'device_id')


class LogError(ValueError):
  """A log that cannot be believed; the message names the file, in one line."""


def _parquet(
    path: str, extra_columns: Sequence[str]
) -> tuple[pa.Table, dict[str, str]]:
  with pq.ParquetFile(path, memory_map=False) as file:
    names = file.schema_arrow.names
    columns = (*_COLUMNS, *extra_columns)
    _check_names(path, names, columns)
    table = file.read(columns=list(columns)).select(columns)
    stored = file.metadata.metadata or {}
  metadata = {
      k.decode(): v.decode()
      for k, v in stored.items()
      if k not in (b'ARROW:schema', b'pandas')
  }
  return _canonical(path, table), metadata


def _canonical(path: str, table: pa.Table) -> pa.Table:
  """Rounds as int64, ids as int64 or large_string, whatever the file has."""
  types = pa.types
  rounds, ids = table.column('round'), table.column('device_id')
  if not types.is_integer(rounds.type):
    raise LogError(f'{path}: round must be whole numbers, is {rounds.type}')
  kind = ids.type.value_type if types.is_dictionary(ids.type) else ids.type
  if types.is_integer(kind):
    kind = pa.int64()
  elif types.is_string(kind) or types.is_large_string(kind):
    kind = pa.large_string()
  else:
    raise LogError(
        f'{path}: device_id must be text or whole numbers, is {ids.type}'
    )
  table = table.set_column(0, 'round', rounds.cast(pa.int64()))
  return table.set_column(1, 'device_id', ids.cast(kind))


def _csv(
    path: str, extra_columns: Sequence[str]
) -> tuple[pa.Table, dict[str, str]]:
  del extra_columns
  with open(path, 'rb') as file:
    if file.seek(0, os.SEEK_END):
      file.seek(-1, os.SEEK_END)
      if file.read() != b'\n':
        raise LogError(
            f'{path}: does not end with a newline, so it may have been cut; add'
            ' one if it is whole'
        )
  text = {name: pa.large_string() for name in _COLUMNS}
  table = pa_csv.read_csv(
      path,
      parse_options=pa_csv.ParseOptions(newlines_in_values=True),
      convert_options=pa_csv.ConvertOptions(
          column_types=text, strings_can_be_null=False
      ),
  )
  _check_names(path, table.column_names, _COLUMNS)
  table = table.select(_COLUMNS)
  rounds = table.column('round')
  odd = pc.invert(pc.match_substring_regex(rounds, r'^-?[0-9]{1,18}$'))
  refuse_first(
      path, table, odd, 'round must be a whole number, got {round!r}'
  )
  spaced = pc.not_equal(
      pc.utf8_trim_whitespace(table.column('device_id')),
      table.column('device_id'),
  )
  refuse_first(
      path, table, spaced, 'device_id has spaces around it, {device_id!r}'
  )
  return table.set_column(0, 'round', rounds.cast(pa.int64())), {}


def _json_lines(
    path: str, extra_columns: Sequence[str]
) -> tuple[pa.Table, dict[str, str]]:
  del extra_columns
  for kind in (pa.large_string(), pa.int64()):
    types = pa.schema([('round', pa.int64()), ('device_id', kind)])
    try:
      table = pa_json.read_json(
          path, parse_options=pa_json.ParseOptions(explicit_schema=types)
      )
      break
    except pa.ArrowInvalid as e:
      error = e
  else:
    _explain_json(path, error)
  return table.select(_COLUMNS), {}


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
"""Suffix → (path, further columns) → table and metadata.

The table has `round` as int64 and `device_id` as large_string or int64; further
columns are read from Parquet alone. Readers raise LogError, OSError or
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
    path: str, table: pa.Table, wrong: pa.ChunkedArray, message: str
) -> None:
  """Raises LogError with the first row that is wrong, if one is.

  Args:
    path: the table's file.
    table: its rows.
    wrong: bool, for each row.
    message: may name columns in braces.
  """
  index = pc.index(wrong, pa.scalar(True)).as_py()
  if index >= 0:
    row = table.slice(index, 1).to_pylist()[0]
    raise LogError(f'{path}, row {index + 1}: {message.format(**row)}')
