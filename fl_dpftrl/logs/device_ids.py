"""The one rule that device ids keep to, in every format and in what is written.

Two ids that look the same but are not would make two devices of one, and its privacy loss would
be understated. So an id is refused, not repaired, unless it is

- a whole number of 64 bits; or
- text in valid UTF-8, of 1 to limits.FIELD_BYTES bytes, in Unicode normal form C;
- without control characters, line breaks, private-use characters, and without characters that
  are invisible or change the direction of text;
- without any space but the ASCII one, and that neither first nor last.
"""

import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import limits
from fl_dpftrl.text import messages

# Categories of Unicode, and what is drawn as nothing or as a space although it
# is in none of them: joiners, fillers, variation selectors, the blank of Braille.
_HIDDEN = (
  r'[\p{Cc}\p{Cf}\p{Co}\p{Zl}\p{Zp}'
  r'\x{034F}\x{115F}\x{1160}\x{17B4}\x{17B5}\x{180B}-\x{180F}\x{2800}\x{3164}'
  r'\x{FE00}-\x{FE0F}\x{FFA0}\x{FFF0}-\x{FFF8}\x{1D173}-\x{1D17A}'
  r'\x{E0000}-\x{E0FFF}]'
)
_OTHER_SPACES = r'[\x{00A0}\x{1680}\x{2000}-\x{200A}\x{202F}\x{205F}\x{3000}]'
_AT_ONCE = 1 << 14
_SPACE_AROUND = r'^\p{Z}|\p{Z}$'


class Fault(NamedTuple):
  """A refused device id: its index, and the reason with the id escaped."""

  index: int  # type: ignore[assignment]  # hides the method of tuples
  reason: str


def first_fault(ids: pa.Array) -> Fault | None:
  """Returns the first id that breaks the rule; None if all ids keep to it.

  Args:
    ids: whole numbers, text, or bytes that should be text; without nulls.
  """
  if pa.types.is_integer(ids.type) or not len(ids):
    return None
  raw = ids.cast(pa.large_binary())
  least, most = _range_of_bytes(raw)
  lengths = pc.binary_length(raw)
  bounds = pc.min_max(lengths).as_py()
  short = bounds['min'] >= 1 and bounds['max'] <= limits.FIELD_BYTES
  if short and least >= 0x21 and most <= 0x7E:
    return None
  faults = [
    Fault(index, f'device_id {why}{_shown(raw, index)}')
    for index, why in _faults(raw, lengths, most)
  ]
  return min(faults, key=lambda fault: fault.index, default=None)


def _faults(raw: pa.Array, lengths: pa.Array, most: int) -> Iterator[tuple[int, str]]:
  """Yields the first fault of each kind, as its index and reason."""
  yield from _first(pc.equal(lengths, 0), 'is empty')
  yield from _first(
    pc.greater(lengths, limits.FIELD_BYTES), f'is longer than {limits.FIELD_BYTES} bytes, '
  )
  try:
    text = raw.cast(pa.large_string())
  except pa.ArrowInvalid:
    index = _first_undecodable(raw)
    yield index, 'is not UTF-8, '
    text = raw.slice(0, index).cast(pa.large_string())
  matches = lambda pattern: pc.match_substring_regex(text, pattern)
  yield from _first(matches(_SPACE_AROUND), 'has spaces around it, ')
  yield from _first(matches(_HIDDEN), 'holds a control or invisible character, ')
  if most >= 0x80:
    yield from _first(matches(_OTHER_SPACES), 'holds a space other than U+0020, ')
    index = _first_not_normal(text)
    if index is not None:
      yield index, 'is not in Unicode normal form C, '


def _first_not_normal(text: pa.Array) -> int | None:
  for start in range(0, len(text), _AT_ONCE):
    ids = text.slice(start, _AT_ONCE).to_pylist()
    # A line feed composes with nothing, so that one look does for most.
    if unicodedata.is_normalized('NFC', '\n'.join(ids)):
      continue
    for index, value in enumerate(ids, start):
      if not unicodedata.is_normalized('NFC', value):
        return index
  return None


def _first(wrong: pa.Array, why: str) -> Iterator[tuple[int, str]]:
  index = pc.index(wrong, pa.scalar(True)).as_py()
  if index >= 0:
    yield index, why


def _shown(raw: pa.Array, index: int) -> str:
  value = raw[index].as_py()
  if not value:
    return ''
  try:
    value = value.decode()
  except UnicodeDecodeError:
    pass  # Shown as bytes.
  # Escapes tell ids apart that look the same.
  text = messages.quoted(value).encode('ascii', 'backslashreplace').decode()
  return messages.one_line(text, 80)


def _first_undecodable(raw: pa.Array) -> int:
  low, high = 0, len(raw)  # All before low decode; not all before high do.
  while high - low > 1:
    middle = (low + high) // 2
    try:
      raw.slice(low, middle - low).cast(pa.large_string())
      low = middle
    except pa.ArrowInvalid:
      high = middle
  return low


def _range_of_bytes(raw: pa.Array) -> tuple[int, int]:
  """Returns the smallest and the largest byte of any value."""
  _, offsets, data = raw.buffers()
  bounds = np.frombuffer(offsets, np.int64)[raw.offset :]
  first, last = int(bounds[0]), int(bounds[len(raw)])
  if first == last:
    return 0, 0
  values = np.frombuffer(data, np.uint8)[first:last]
  return int(values.min()), int(values.max())
