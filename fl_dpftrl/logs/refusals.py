"""Checks that reject a log that cannot be believed, whatever its format.

Messages number rows from 1, not counting the header of a CSV file or blank lines.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import device_ids, limits
from fl_dpftrl.text import messages


class LogError(ValueError):
  """A log that cannot be believed; the message names the file, in one line."""

  def __init__(self, message: str):
    super().__init__(messages.one_line(message))


def check_names(path: str, names: Sequence[str], wanted: Sequence[str]) -> None:
  """Raises LogError unless each wanted column is there once."""
  if len(names) > limits.COLUMNS:
    raise LogError(f'{path}: has more than {limits.COLUMNS} columns')
  for name in wanted:
    if names.count(name) != 1:
      how = 'no' if name not in names else 'more than one'
      shown = ', '.join(messages.quoted(n) for n in names[:8])
      raise LogError(
        f'{path}: has {how} column {name!r}; its columns are {shown}'
        + (f' and {len(names) - 8} more' if len(names) > 8 else '')
        + (f'; say which it is: --columns={name}=NAME' if name in ('round', 'device_id') else '')
      )


def check_rows(path: str, table: pa.Table, num_rounds: int | None, first_row: int) -> None:
  """Raises LogError with the first row that is at fault, if any.

  Args:
    path: the table's file.
    table: some of the file's rows: `round` int64, and `device_id`.
    num_rounds: upper limit that all rounds must be below; None for no limit.
    first_row: number of the table's first row in the file.
  """
  rounds, ids = table.column('round'), table.column('device_id')
  refuse = lambda wrong, message: refuse_first(path, table, wrong, message, first_row)
  for name, column in (('round', rounds), ('device_id', ids)):
    if column.null_count:
      refuse(pc.is_null(column), f'has no {name}')
  if not table.num_rows:
    return
  bounds = pc.min_max(rounds).as_py()
  if bounds['min'] < 0:
    refuse(pc.less(rounds, 0), 'round must be at least 0, got {round}')
  if num_rounds is not None and bounds['max'] >= num_rounds:
    # Plain where a log counts from 1: its last round is the number of rounds.
    plain = bounds['max'] == num_rounds and bounds['min'] > 0
    hint = ', which count from 0; if they begin at 1, give --first_round=1' if plain else ''
    refuse(
      pc.greater_equal(rounds, num_rounds),
      f'round {{round}} is beyond the {num_rounds} rounds of the log{hint}',
    )
  if bounds['max'] >= limits.ROUNDS:
    refuse(
      pc.greater_equal(rounds, limits.ROUNDS), f'round must be below {limits.ROUNDS}, got {{round}}'
    )
  for chunk in ids.chunks:
    if fault := device_ids.first_fault(chunk):
      raise LogError(f'{path}, row {first_row + fault.index}: {fault.reason}')
    first_row += len(chunk)


def refuse_first(
  path: str, table: pa.Table, wrong: pa.ChunkedArray, message: str, first_row: int = 1
) -> None:
  """Raises LogError with the first row that is wrong, if any.

  Args:
    path: the table's file.
    table: some of the file's rows.
    wrong: bool, for each row.
    message: text that may name columns in braces; their values are quoted.
    first_row: number of the table's first row in the file.
  """
  index = pc.index(wrong, pa.scalar(True)).as_py()
  if index >= 0:
    row = table.slice(index, 1).to_pylist()[0]
    shown = {name: messages.quoted(value) for name, value in row.items()}
    raise LogError(f'{path}, row {first_row + index}: {message.format(**shown)}')
