"""Rows of a log's table: checked as the file has them, and then one for each device.

Missing data is never read as absence. A row may hold a list of devices, and an empty list is a
cohort without devices. A list, a device in it, or a round that is missing is refused before
anything is flattened.

Messages number rows from 1, not counting the header of a CSV file or blank lines.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import id_columns, limits, refusals
from fl_dpftrl.support.text import messages


def is_list(kind: pa.DataType) -> bool:
  """Returns whether a column holds a list of devices in each row."""
  return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def checked(
  path: str,
  table: pa.Table,
  id_type: pa.DataType,
  *,
  num_rounds: int | None = None,
  first_round: int = 0,
  first_row: int = 1,
  missing: Sequence[str] = id_columns.MISSING,
) -> pa.Table:
  """Returns a row for each device, with rounds counted from 0.

  Args:
    table: some of the file's rows: `round`, int64, and `device_id`, an id or a list of them.
    id_type: type of the ids that are returned; see `flattened`.
    num_rounds: upper limit that all rounds must be below; None for no limit.
    first_round: number of the first round in the file.
    first_row: number of the table's first row in the file.
    missing: marks of missing data.
  """
  for name in ('round', 'device_id'):
    _refuse(path, table, pc.is_null(table.column(name)), f'has no {name}', first_row)
  if not table.num_rows:
    return flattened(table, id_type)[0]
  table = _from_zero(path, table, num_rounds, first_round, first_row)
  _check_dictionaries(path, table.column('device_id'), first_row)
  flat, rows = flattened(table, id_type)
  device_ids, first = flat.column('device_id'), 0
  if device_ids.null_count:
    row = first_row + int(rows[pc.index(pc.is_null(device_ids), True).as_py()])
    raise refusals.LogError(f'{path}, row {row}: has no device_id in its list')
  for chunk in device_ids.chunks:
    if fault := id_columns.first_fault(chunk, missing):
      hint = refusals.MARK_HINT if id_columns.MARK in fault[1] else ''
      row = first_row + int(rows[first + fault[0]])
      raise refusals.LogError(f'{path}, row {row}: {fault[1]}{hint}')
    first += len(chunk)
  return flat


def flattened(table: pa.Table, id_type: pa.DataType) -> tuple[pa.Table, np.ndarray]:
  """Returns a row for each device of ids or lists of them, and the place of its row."""
  place = table.schema.get_field_index('device_id')
  device_ids, rows = table.column(place), np.arange(table.num_rows)
  table = table.remove_column(place)
  if is_list(device_ids.type):
    whole = device_ids.combine_chunks()
    rows = pc.list_parent_indices(whole).to_numpy()
    table, device_ids = table.take(rows), pa.chunked_array([pc.list_flatten(whole)])
  chunks = [_as(id_type, chunk) for chunk in device_ids.chunks]
  return table.add_column(place, 'device_id', pa.chunked_array(chunks, id_type)), rows


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


def _check_dictionaries(path: str, device_ids: pa.ChunkedArray, first_row: int) -> None:
  """Raises LogError for an id that is too long, before there is a copy of it in each row."""
  for chunk in device_ids.chunks:
    if pa.types.is_dictionary(chunk.type) and id_columns.is_text(chunk.type.value_type):
      if (pc.max(pc.binary_length(chunk.dictionary)).as_py() or 0) > limits.FIELD_BYTES:
        raise refusals.LogError(
          f'{path}, from row {first_row} on: a device_id is longer than {limits.FIELD_BYTES} bytes'
        )


def _from_zero(
  path: str, table: pa.Table, num_rounds: int | None, first_round: int, first_row: int
) -> pa.Table:
  """Returns a table with its rounds counted from 0; LogError with the number that the file has."""
  rounds = table.column('round')
  first, last = pc.min_max(rounds).as_py().values()
  if first < first_round:
    why = f'round {{round}} is before first_round={first_round}'
    why = why if first_round else 'round must be at least 0, got {round}'
    _refuse(path, table, pc.less(rounds, first_round), why, first_row)
  limit = first_round + (limits.ROUNDS if num_rounds is None else num_rounds)
  if last >= limit:
    why = f'round must be below {limit}, got {{round}}'
    if num_rounds is not None:
      why = f'round {{round}} is beyond the {num_rounds} rounds of the log'
      if last == num_rounds and first > 0:  # Plain where a log counts from 1.
        why += ', which count from 0; if they begin at 1, give first_round=1'
    _refuse(path, table, pc.greater_equal(rounds, limit), why, first_row)
  return table.set_column(0, 'round', pc.subtract(rounds, first_round)) if first_round else table


def _refuse(
  path: str, table: pa.Table, wrong: pa.ChunkedArray, message: str, first_row: int
) -> None:
  """Raises LogError with the first row that is wrong, if any; {round} in a message is its value."""
  index = pc.index(wrong, pa.scalar(True)).as_py()
  if index >= 0:
    shown = messages.quoted(table.column('round')[index].as_py())
    raise refusals.LogError(f'{path}, row {first_row + index}: {message.format(round=shown)}')
