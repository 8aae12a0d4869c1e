"""Rows of a table: checked as the file has them, and then one for each device.

Missing data is never read as absence. A row may hold a list of devices, and an empty list is a
cohort without devices. A list, a device in it, or a round that is missing is refused before
anything is flattened.

Messages number rows from 1, not counting the header of a CSV file or blank lines.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import id_columns, limits, refusals, table_columns
from fl_dpftrl.support.text import messages


def is_list(kind: pa.DataType) -> bool:
  """Returns whether a column holds a list of devices in each row."""
  return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def checked(
  path: str,
  table: pa.Table,
  schema: pa.Schema,
  columns: table_columns.TableColumns,
  *,
  num_rounds: int | None = None,
  first_row: int = 1,
) -> pa.Table:
  """Returns a row for each device, with rounds counted from 0.

  Args:
    table: some of the file's rows, with rounds in int64, and ids or one column of lists of them.
    schema: names and types of the columns that are returned.
    columns: their kinds, first round and marks of missing data.
    num_rounds: upper limit that all rounds must be below; None for no limit.
    first_row: number of the table's first row in the file.
  """
  for name in columns.kinds:
    _refuse(path, table, name, pc.is_null(table.column(name)), 'has no {name}', first_row)
  for name, kind in columns.kinds.items():
    if table.num_rows and kind == table_columns.ROUND:
      table = _from_zero(path, table, name, num_rounds, columns.first_round, first_row)
    elif kind != table_columns.ROUND:
      _check_dictionaries(path, name, table.column(name), first_row)
  flat, rows = _flattened(table, schema)
  for name, kind in columns.kinds.items():
    if kind != table_columns.ROUND:
      _check_ids(path, name, flat.column(name), rows + first_row, columns)
  return flat


def _check_ids(
  path: str, name: str, ids: pa.ChunkedArray, rows: np.ndarray, columns: table_columns.TableColumns
) -> None:
  """Raises LogError for an id that is missing in its list, or breaks the rule."""
  if ids.null_count:
    row = rows[pc.index(pc.is_null(ids), True).as_py()]
    raise refusals.LogError(f'{path}, row {row}: has no {name} in its list')
  first = 0
  for chunk in ids.chunks:
    if fault := id_columns.first_fault(chunk, columns.missing):
      hint = refusals.MARK_HINT if columns.has_flags and id_columns.MARK in fault[1] else ''
      raise refusals.LogError(f'{path}, row {rows[first + fault[0]]}: {name} {fault[1]}{hint}')
    first += len(chunk)


def _flattened(table: pa.Table, schema: pa.Schema) -> tuple[pa.Table, np.ndarray]:
  """Returns a row for each device of ids or lists of them, and the place of its row."""
  rows = np.arange(table.num_rows)
  for place, name in enumerate(table.column_names):
    if is_list(table.column(name).type):
      whole = table.column(name).combine_chunks()
      rows = pc.list_parent_indices(whole).to_numpy()
      table = table.remove_column(place).take(rows)
      table = table.add_column(place, name, pa.chunked_array([pc.list_flatten(whole)]))
  arrays = {
    field.name: pa.chunked_array(
      [_as(field.type, chunk) for chunk in table.column(field.name).chunks], field.type
    )
    for field in schema
  }
  return pa.table(arrays), rows


def _as(kind: pa.DataType, ids: pa.Array) -> pa.Array:
  if not len(ids):
    return pa.array([], kind)
  if pa.types.is_dictionary(ids.type):
    ids = ids.dictionary_decode()
  if ids.type == kind or not pa.types.is_large_string(kind):
    return ids.cast(kind)
  # As bytes: they are no text until the rule has seen them.
  raw = ids.cast(pa.large_binary() if pa.types.is_large_string(ids.type) else pa.binary())
  return raw.cast(pa.large_binary()).view(kind)


def _check_dictionaries(path: str, name: str, ids: pa.ChunkedArray, first_row: int) -> None:
  """Raises LogError for an id that is too long, before there is a copy of it in each row."""
  for chunk in ids.chunks:
    if pa.types.is_dictionary(chunk.type) and id_columns.is_text(chunk.type.value_type):
      if (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) > limits.FIELD_BYTES:
        raise refusals.LogError(
          f'{path}, from row {first_row} on: a {name} is longer than {limits.FIELD_BYTES} bytes'
        )


def _from_zero(
  path: str, table: pa.Table, name: str, num_rounds: int | None, first_round: int, first_row: int
) -> pa.Table:
  """Returns a table with its rounds counted from 0; LogError with the number that the file has."""
  rounds = table.column(name)
  first, last = pc.min_max(rounds).as_py().values()
  if first < first_round:
    why = f'{{name}} {{value}} is before first_round={first_round}'
    why = why if first_round else '{name} must be at least 0, got {value}'
    _refuse(path, table, name, pc.less(rounds, first_round), why, first_row)
  limit = first_round + (limits.ROUNDS if num_rounds is None else num_rounds)
  if last >= limit:
    why = f'{{name}} must be below {limit}, got {{value}}'
    if num_rounds is not None:
      why = f'{{name}} {{value}} is beyond the {num_rounds} rounds of the log'
      if last == num_rounds and first > 0:  # Plain where a log counts from 1.
        why += ', which count from 0; if they begin at 1, give first_round=1'
    _refuse(path, table, name, pc.greater_equal(rounds, limit), why, first_row)
  if not first_round:
    return table
  place = table.column_names.index(name)
  return table.set_column(place, name, pc.subtract(rounds, first_round))


def _refuse(
  path: str, table: pa.Table, name: str, wrong: pa.ChunkedArray, message: str, first_row: int
) -> None:
  """Raises LogError with the first row that is wrong, if any, and the column's value in it."""
  index = pc.index(wrong, pa.scalar(True)).as_py()
  if index >= 0:
    value = messages.quoted(table.column(name)[index].as_py())
    text = message.format(name=name, value=value)
    raise refusals.LogError(f'{path}, row {first_row + index}: {text}')
