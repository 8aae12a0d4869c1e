"""Checks that reject a log that cannot be believed, whatever its format.

Messages number rows from 1, not counting the header of a CSV file or blank lines.

Two device ids that look the same but are not would make two devices of one, and its privacy loss
would be understated. So an id is refused, not repaired, when it is read and when it is written,
unless it is

- a whole number of 64 bits; or
- text in valid UTF-8, of 1 to limits.FIELD_BYTES bytes, in Unicode normal form C;
- without control characters, line breaks, private-use characters, and without characters that
  are invisible or change the direction of text;
- without any space but the ASCII one, and that neither first nor last.
"""

import re
import unicodedata
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import limits
from fl_dpftrl.text import messages

_HIDDEN = ('Cc', 'Cf', 'Co', 'Zl', 'Zp')
# Drawn as nothing or as a space although in none of these categories, or not in every release of
# Unicode: joiners, fillers, variation selectors, the blank of Braille.
_INVISIBLE = re.compile(
  '[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8'
  '\U00013430-\U0001343f\U0001d173-\U0001d17a\U000e0000-\U000e0fff]'
)


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
    if fault := first_fault(chunk):
      index, reason = fault
      raise LogError(f'{path}, row {first_row + index}: {reason}')
    first_row += len(chunk)


def refuse_first(
  path: str, table: pa.Table, wrong: pa.ChunkedArray, message: str, first_row: int
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


def first_fault(ids: pa.Array) -> tuple[int, str] | None:
  """Returns the index of the first id that breaks the rule, and why; None if all keep to it.

  Args:
    ids: whole numbers, text, or bytes that should be text; without nulls.
  """
  if pa.types.is_integer(ids.type) or not len(ids):
    return None
  raw = ids.cast(pa.large_binary())
  lengths = pc.binary_length(raw)
  wrong = pc.or_(pc.equal(lengths, 0), pc.greater(lengths, limits.FIELD_BYTES))
  end = pc.index(wrong, pa.scalar(True)).as_py()
  if end < 0 and _is_plain(raw):
    return None
  for value in pc.unique(raw if end < 0 else raw.slice(0, end + 1)).to_pylist():
    if reason := _fault(value):
      return pc.index(raw, pa.scalar(value, raw.type)).as_py(), f'device_id {reason}'
  return None


def _is_plain(raw: pa.Array) -> bool:
  """Returns whether all bytes are of printable ASCII other than the space, which is most often."""
  _, offsets, data = raw.buffers()
  bounds = np.frombuffer(offsets, np.int64)[raw.offset :]
  values = np.frombuffer(data, np.uint8)[bounds[0] : bounds[len(raw)]]
  return values.min() >= 0x21 and values.max() <= 0x7E


def _fault(value: bytes) -> str | None:
  """Returns why an id breaks the rule, with the id escaped; None if it keeps to it."""
  if not value:
    return 'is empty'
  shown: str | bytes = value
  try:
    shown = value.decode()
    reason = _reason(shown, len(value))
  except UnicodeDecodeError:
    reason = 'is not UTF-8'
  # Escapes tell ids apart that look the same.
  escaped = messages.quoted(shown).encode('ascii', 'backslashreplace').decode()
  return reason and f'{reason}, {messages.one_line(escaped, 80)}'


def _reason(text: str, size: int) -> str | None:
  if size > limits.FIELD_BYTES:
    return f'is longer than {limits.FIELD_BYTES} bytes'
  kinds = [] if text.isprintable() else list(map(unicodedata.category, text))
  if text.strip(' ') != text or (kinds and 'Z' in (kinds[0][0], kinds[-1][0])):
    return 'has spaces around it'
  if _INVISIBLE.search(text) or any(kind in _HIDDEN for kind in kinds):
    return 'holds a control or invisible character'
  if any(kind == 'Zs' and character != ' ' for kind, character in zip(kinds, text)):
    return 'holds a space other than U+0020'
  return None if unicodedata.is_normalized('NFC', text) else 'is not in Unicode normal form C'
