"""The rule for device ids, the same for whatever is read, written or trained on.

Two ids that look the same but are not would make two devices of one, and its privacy loss would be
understated. So an id is refused, not repaired, unless it is

- a whole number of 64 bits; or
- text in valid UTF-8, of 1 to limits.FIELD_BYTES bytes, in Unicode normal form C;
- without control characters, line breaks, private-use characters, and without characters that
  are invisible or change the direction of text;
- without any space but the ASCII one, and that neither first nor last; and
- no mark of missing data, such as NULL, unless whoever reads a log names other marks.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import limits
from fl_dpftrl.support.text import messages

Ids = Sequence[str] | Sequence[int] | np.ndarray

_NUMBER = re.compile(r'-?[0-9]{1,18}')
_HIDDEN = ('Cc', 'Cf', 'Co', 'Zl', 'Zp')
# Drawn as nothing or as a space although in none of these categories, or not in every release of
# Unicode: joiners, fillers, variation selectors, the blank of Braille.
_INVISIBLE = re.compile(
  '[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\ufff0-\ufff8'
  '\U00013430-\U0001343f\U0001d173-\U0001d17a\U000e0000-\U000e0fff]'
)
_KINDS = 'all text or all whole numbers of 64 bits'
MISSING = ('\\N', 'NULL', 'null', 'NaN', 'nan', 'None', '<NA>', 'NaT', 'N/A')
"""Texts by which other programs say that a value is missing; the empty text always says so."""

MARK = 'a mark of missing data'
"""Words in the reason why such a text is refused."""


def column(device_ids: Any, name: str = 'device_ids', missing: Sequence[str] = MISSING) -> pa.Array:
  """Returns device ids as string or int64.

  Args:
    device_ids: one list, array, column or index of NumPy, Arrow, pandas, PyTorch or JAX.
    name: the argument, for messages.
    missing: marks of missing data.
  """
  ids = _array(device_ids, name)
  if not len(ids):
    return pa.array([], pa.string())
  if ids.null_count:
    raise ValueError(f'{name}: at {pc.index(pc.is_null(ids), True).as_py()}, there is no id')
  if pa.types.is_integer(ids.type):
    return _whole(ids, name)
  if not is_text(ids.type):
    raise ValueError(f'{name} must be {_KINDS}, got {ids.type}')
  is_view = not (pa.types.is_string(ids.type) or pa.types.is_large_string(ids.type))
  ids = pa.array(ids.to_pylist(), pa.string()) if is_view else ids.cast(pa.string())
  _refuse(first_fault(ids, missing), name)
  return ids


def whole_numbers(values: Any, name: str) -> pa.Array:
  """Returns a list of whole numbers as int64; ValueError naming the argument otherwise."""
  numbers = _array(values, name)
  if len(numbers) and (numbers.null_count or not pa.types.is_integer(numbers.type)):
    kind = 'a missing one' if numbers.null_count else numbers.type
    raise ValueError(f'{name} must be a list of whole numbers, got {kind}')
  return _whole(numbers, name)


def as_numpy(ids: pa.Array | pa.ChunkedArray) -> np.ndarray:
  """Returns device ids as int64 or as text."""
  if pa.types.is_integer(ids.type):
    return ids.to_numpy()
  return ids.to_numpy(zero_copy_only=False).astype(np.str_)


def first_fault(ids: pa.Array, missing: Sequence[str] = MISSING) -> tuple[int, str] | None:
  """Returns the index of the first id that breaks the rule, and why; None if all keep to it.

  Args:
    ids: whole numbers, text, or bytes that should be text; without nulls.
    missing: marks of missing data.
  """
  if not len(ids):
    return None
  if pa.types.is_integer(ids.type):
    numbers = [int(mark) for mark in missing if _NUMBER.fullmatch(mark)]
    return _marked(ids, pa.array(numbers, pa.int64()))
  raw = ids.cast(pa.large_binary())
  marks = pa.array([mark.encode() for mark in missing], raw.type)
  return min((fault for fault in (_marked(raw, marks), _broken(raw)) if fault), default=None)


def _marked(ids: pa.Array, marks: pa.Array) -> tuple[int, str] | None:
  """Returns the first id that is a mark of missing data."""
  index = pc.index(pc.is_in(ids, value_set=marks), True).as_py()
  if index < 0:
    return None
  value = ids[index].as_py()
  shown = messages.quoted(value.decode() if isinstance(value, bytes) else value)
  return index, f'is {MARK}, {shown}'


def _broken(raw: pa.Array) -> tuple[int, str] | None:
  """Returns the first id that breaks the rule but for marks of missing data."""
  _, offsets, data = raw.buffers()
  bounds = np.frombuffer(offsets, np.int64)[raw.offset : raw.offset + len(raw) + 1]
  lengths = np.diff(bounds)
  wrong = np.flatnonzero((lengths == 0) | (lengths > limits.FIELD_BYTES))
  codes = np.frombuffer(data, np.uint8)[bounds[0] : bounds[-1]]
  if not wrong.size and codes.min() > 0x20 and codes.max() < 0x7F:  # Printable ASCII, as mostly.
    return None
  for value in pc.unique(raw.slice(0, wrong[0] + 1) if wrong.size else raw).to_pylist():
    if reason := _fault(value):
      return pc.index(raw, pa.scalar(value, raw.type)).as_py(), reason
  return None


def _array(values: Any, name: str) -> pa.Array:
  if isinstance(values, (str, bytes, Mapping)) or getattr(values, 'ndim', 1) != 1:
    raise ValueError(f'{name} must be one list, got {type(values).__name__}')
  if type(values).__module__.partition('.')[0] in ('torch', 'jaxlib'):  # Neither is imported.
    values = np.asarray(values)
  try:
    array = pa.array(values)
  except UnicodeError:
    raw = [str(value).encode(errors='surrogatepass') for value in values]
    _refuse(first_fault(pa.array(raw, pa.large_binary())), name)
    raise
  except Exception as e:  # Of many kinds, as what is given may be anything.
    reason = messages.one_line(e, limit=80)
    raise ValueError(f'{name} must be {_KINDS}: {reason}') from e
  if isinstance(array, pa.ChunkedArray):  # Of text in NumPy from 16 MiB on.
    array = array.combine_chunks()
  return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _whole(numbers: pa.Array, name: str) -> pa.Array:
  try:
    return numbers.cast(pa.int64())
  except pa.ArrowInvalid as e:
    raise ValueError(f'{name} must be {_KINDS}: {e}') from e


def is_text(kind: pa.DataType) -> bool:
  """Returns whether a column of this type holds text."""
  return str(kind) in ('string', 'large_string', 'string_view')


def _refuse(fault: tuple[int, str] | None, name: str) -> None:
  if fault:
    raise ValueError(f'{name}: at {fault[0]}, device_id {fault[1]}')


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
