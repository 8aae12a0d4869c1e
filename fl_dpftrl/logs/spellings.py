"""Device ids of a log that read as other spellings of one: numbers in two notations, case, zeros.

Two spellings make two devices of one, and its privacy loss is understated. Numbers that are certain
to be such spellings are refused; ids that differ in case or leading zeros may be other devices, and
are counted.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.participation import seen
from fl_dpftrl.text import messages

_WHOLE = r'^[+-]?[0-9]+$'
# Texts of floats. Those like 1e5 may be hexadecimal, and are numbers where all ids are.
_FLOAT = r'^[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?[0-9]+[eE][+-][0-9]+$'
_EITHER = r'^[0-9]+[eE][0-9]+$'
_OF_NUMBERS = np.isin(np.arange(256), np.frombuffer(b'0123456789+-.eE', np.uint8))


class Spellings:
  """Different text ids of a log, added in parts, of which each id is in one: 8 bytes an id."""

  def __init__(self):
    self._whole: list[np.ndarray] = []  # hashes of numbers
    self._texts: list[np.ndarray] = []  # hashes of all others, without case and leading zeros
    self._floats = self._either = 0

  def add(self, ids: pa.Array) -> None:
    """Adds ids, each once; whole numbers, which have one spelling, are left out."""
    if pa.types.is_integer(ids.type) or not len(ids):
      return
    ids = ids.cast(pa.large_string())
    numbers = _possible_numbers(ids)
    is_whole = np.zeros(len(ids), bool)
    if numbers.size:
      some = ids.take(pa.array(numbers))
      is_whole[numbers] = _matches(some, _WHOLE)
      self._floats += int(_matches(some, _FLOAT).sum())
      self._either += int(_matches(some, _EITHER).sum())
    self._whole.append(_hashes(_plain_numbers(ids.filter(pa.array(is_whole)))))
    self._texts.append(_hashes(_folded(ids.filter(pa.array(~is_whole)))))

  @property
  def mergeable(self) -> int:
    """Ids that would be one with another if case and leading zeros did not count."""
    return _repeated(self._texts)[1]

  def first_fault(self, ids: pa.Array | pa.ChunkedArray) -> tuple[int, str] | None:
    """Returns the index of an id that is a number in another notation than others, and why."""
    if pa.types.is_integer(ids.type) or not self.has_faults:
      return None
    unique = pc.unique(ids).cast(pa.large_string())
    if isinstance(unique, pa.ChunkedArray):
      unique = unique.combine_chunks()
    pattern = f'{_FLOAT}|{_EITHER}' if self._are_numbers else _FLOAT
    wrong, why = _matches(unique, pattern), 'reads as a float, and other ids are whole numbers'
    if not (self._has_floats and wrong.any()):
      why = 'has zeros or a sign before a number that is an id too'
      whole = unique.filter(pa.array(_matches(unique, _WHOLE)))
      plain = _plain_numbers(whole)
      wrong = np.isin(_hashes(plain), _repeated(self._whole)[0])
      wrong &= pc.not_equal(whole, plain).to_numpy(zero_copy_only=False)
      unique = whole
    if not wrong.any():
      return None
    places = [
      pc.index(ids, pa.scalar(text, ids.type)).as_py() for text in unique.filter(pa.array(wrong))
    ]
    index = min(places)
    shown = messages.quoted(ids[index].as_py())
    return index, f'device_id {why}, {shown}; write each device in one spelling'

  @property
  def has_faults(self) -> bool:
    """True if a number is there in two notations."""
    return self._has_floats or _repeated(self._whole)[1] > 0

  @property
  def _are_numbers(self) -> bool:
    return sum(part.size for part in self._texts) == self._floats + self._either

  @property
  def _has_floats(self) -> bool:
    floats = self._floats or (self._either and self._are_numbers)
    return bool(floats) and any(part.size for part in self._whole)


def warnings(mergeable: int, num_devices: int) -> tuple[str, ...]:
  """Returns the warning about ids that would be one with another; none without such ids."""
  if not mergeable:
    return ()
  return (
    f'{mergeable:,} of {num_devices:,} device ids would be one with another if letter case and'
    ' leading zeros did not count; if they are the same devices, every figure is too small',
  )


def _possible_numbers(ids: pa.Array) -> np.ndarray:
  """Returns places of ids that may be numbers, by a few of their bytes."""
  _, offsets, data = ids.buffers()
  ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
  codes, lengths = np.frombuffer(data, np.uint8), np.diff(ends)
  places = np.flatnonzero(lengths)
  for share in (0, 4, 2, 1, 3):
    at = ends[places] + (lengths[places] - 1) * share // 4
    places = places[_OF_NUMBERS[codes[at]]]
  return places


def _matches(ids: pa.Array, pattern: str) -> np.ndarray:
  return pc.match_substring_regex(ids, pattern).to_numpy(zero_copy_only=False).astype(bool)


def _plain_numbers(whole: pa.Array) -> pa.Array:
  """Returns whole numbers without a plus sign and leading zeros."""
  odd = pc.or_(pc.match_substring_regex(whole, '^[+-]'), pc.starts_with(whole, '0'))
  return _replaced(whole, odd, r'^\+?(-?)0*([0-9])', r'\1\2')


def _folded(ids: pa.Array) -> pa.Array:
  """Returns ids in lower case, without leading zeros."""
  return _replaced(pc.utf8_lower(ids), pc.starts_with(ids, '0'), '^0+(.)', r'\1')


def _replaced(ids: pa.Array, where: pa.Array, pattern: str, by: str) -> pa.Array:
  if not pc.any(where).as_py():
    return ids
  new = pc.replace_substring_regex(ids.filter(where), pattern, by)
  return pc.replace_with_mask(ids, where, new)


def _hashes(ids: pa.Array) -> np.ndarray:
  return seen.hashes(ids.to_numpy(zero_copy_only=False))


def _repeated(parts: list[np.ndarray]) -> tuple[np.ndarray, int]:
  """Returns hashes that are there more than once, and how many of all are not the first."""
  joined = np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
  again = joined[1:][joined[1:] == joined[:-1]]
  return again, again.size
