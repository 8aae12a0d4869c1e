"""Device ids of a log that read as other spellings of one: numbers in two notations, case, zeros.

Two spellings make two devices of one, and its privacy loss is understated. Numbers that are certain
to be such spellings are refused; ids that differ in case or leading zeros may be other devices, and
are counted.
"""

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.text import messages

_WHOLE = r'^[+-]?[0-9]+$'
# Texts of floats. Those like 1e5 may be hexadecimal, and are numbers where all ids are.
_FLOAT = r'^[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?[0-9]+[eE][+-][0-9]+$'
_EITHER = r'^[0-9]+[eE][0-9]+$'
_BLOCK = 1 << 15  # ids, which stay in the processor's cache
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class Spellings:
  """Different text ids of a log, added in parts, of which each id is in one: 8 bytes an id."""

  def __init__(self):
    self._whole: list[np.ndarray] = []  # hashes of numbers
    self._texts: list[np.ndarray] = []  # hashes of all others, without case and leading zeros
    self._floats = self._either = 0
    self._lengths: list[int] = []

  def add(self, ids: pa.Array) -> None:
    """Adds ids, each once; whole numbers, which have one spelling, are left out."""
    if pa.types.is_integer(ids.type) or not len(ids):
      return
    ids = ids.cast(pa.large_string())
    self._lengths += pc.min_max(pc.binary_length(ids)).as_py().values()
    for first in range(0, len(ids), _BLOCK):
      self._add(ids.slice(first, _BLOCK))

  def _add(self, ids: pa.Array) -> None:
    # Quicker than an expression.
    numbers = np.flatnonzero(_bytes(pc.ascii_ltrim(ids, '0123456789+-.eE'))[2] == 0)
    some = ids.take(pa.array(numbers))
    is_whole = np.zeros(len(ids), bool)
    is_whole[numbers] = _matches(some, _WHOLE)
    self._floats += int(_matches(some, _FLOAT).sum())
    self._either += int(_matches(some, _EITHER).sum())
    hashes = _readings(ids, is_whole)
    self._whole.append(hashes[is_whole])
    self._texts.append(hashes[~is_whole])

  @property
  def lengths(self) -> tuple[int, int] | None:
    """Bytes of the shortest and of the longest id; None without text."""
    return (min(self._lengths), max(self._lengths)) if self._lengths else None

  @property
  def mergeable(self) -> int:
    """Ids that would be one with another if case and leading zeros did not count."""
    return _repeated(self._texts)[1]

  def first_fault(self, ids: pa.Array | pa.ChunkedArray) -> tuple[int, str] | None:
    """Returns the index of an id that is a number in another notation than others, and why."""
    if pa.types.is_integer(ids.type) or not self.has_faults:
      return None
    ids = ids.cast(pa.large_string())
    unique = pc.unique(ids)
    if isinstance(unique, pa.ChunkedArray):
      unique = unique.combine_chunks()
    pattern = f'{_FLOAT}|{_EITHER}' if self._are_numbers else _FLOAT
    wrong, why = _matches(unique, pattern), 'reads as a float, and other ids are whole numbers'
    if not (self._has_floats and wrong.any()):
      why = 'has zeros or a sign before a number that is an id too'
      whole = unique.filter(pa.array(_matches(unique, _WHOLE)))
      plain = _plain(whole)
      wrong = np.isin(_hashes(plain), _repeated(self._whole)[0])
      wrong &= pc.not_equal(whole, plain).to_numpy(zero_copy_only=False)
      unique = whole
    if not wrong.any():
      return None
    index = pc.index(pc.is_in(ids, value_set=unique.filter(pa.array(wrong))), True).as_py()
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


class IdSummary(NamedTuple):
  """Facts of all ids of a population, without any of them.

  Attributes:
    is_text: whether they are text; else whole numbers.
    shortest: fewest bytes of text; None for numbers.
    longest: most bytes of text, or digits of a number.
    mergeable: ids that would be one with another if case and leading zeros did not count.
  """

  is_text: bool
  shortest: int | None
  longest: int
  mergeable: int

  def __str__(self) -> str:
    text = f'whole numbers of at most {self.longest} digits'
    if self.is_text:
      ends = dict.fromkeys((self.shortest, self.longest))
      text = f'text of {" to ".join(map(str, ends))} bytes'
    return f'{text}; {self.mergeable:,} differ from another only in case or leading zeros'


def warnings(mergeable: int, num_devices: int, unit: str = 'device') -> tuple[str, ...]:
  """Returns the warning about ids that would be one with another; none without such ids."""
  if not mergeable:
    return ()
  return (
    f'{mergeable:,} of {num_devices:,} {unit} ids would be one with another if letter case and'
    f' leading zeros did not count; if they are the same {unit}s, every figure is too small',
  )


def is_odd_number(text: str) -> bool:
  """Returns whether a text reads as a number that is written in another way elsewhere."""
  ids = pa.array([text], pa.large_string())
  odd_whole = _matches(ids, _WHOLE) & (_plain(ids)[0].as_py() != text)
  return bool(odd_whole | _matches(ids, _FLOAT))


def _bytes(ids: pa.Array) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Returns the bytes of large_string, and where each text begins in them and how long it is."""
  _, offsets, data = ids.buffers()
  ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
  return np.frombuffer(data, np.uint8)[ends[0] : ends[-1]], ends[:-1] - ends[0], np.diff(ends)


def _matches(ids: pa.Array, pattern: str) -> np.ndarray:
  return pc.match_substring_regex(ids, pattern).to_numpy(zero_copy_only=False).astype(bool)


def _readings(ids: pa.Array, is_whole: np.ndarray) -> np.ndarray:
  """Returns hashes of ids in lower case, without leading zeros and the plus sign of a number."""
  codes, starts, _ = _bytes(ids)
  lower = pc.ascii_lower(ids) if codes.max(initial=0) < 128 else pc.utf8_lower(ids)
  hashes, first = _hashes(lower), codes[starts]
  texts = ~is_whole & (first == ord('0'))
  hashes[texts] = _hashes(pc.ascii_ltrim(lower.filter(pa.array(texts)), '0'))
  numbers = is_whole & (first < ord('1'))  # A zero or a sign.
  hashes[numbers] = _hashes(_plain(lower.filter(pa.array(numbers))))
  return hashes


def _plain(numbers: pa.Array) -> pa.Array:
  return pc.replace_substring_regex(numbers, r'^\+?(-?)0*([0-9]+)$', r'\1\2')


def _hashes(ids: pa.Array) -> np.ndarray:
  """Returns a hash of 64 bits of each text, by words of 8 bytes."""
  _, _, sizes = _bytes(ids)
  width = -(-int(sizes.max(initial=1)) // 8)
  is_whole = (sizes == 8 * width).all()
  words, _, _ = _bytes(ids if is_whole else pc.ascii_rpad(ids, 8 * width, '\0'))
  hashes = sizes.astype(np.uint64)
  for place, column in enumerate(words.view(np.uint64).reshape(-1, width).T):
    longer = sizes > 8 * place
    places = slice(None) if longer.all() else np.flatnonzero(longer)
    mixed = hashes[places] ^ column[places]
    mixed *= _FACTOR
    hashes[places] = mixed ^ mixed >> np.uint64(29)
  return hashes


def _repeated(parts: list[np.ndarray]) -> tuple[np.ndarray, int]:
  """Returns hashes that are there more than once, and how many of all are not the first."""
  joined = np.sort(np.concatenate([np.zeros(0, np.uint64), *parts]))
  again = joined[1:][joined[1:] == joined[:-1]]
  return again, again.size
