"""Device ids of a log that read as other spellings of one: numbers in two notations, case, zeros.

Two spellings make two devices of one, and its privacy loss is understated. Numbers that are certain
to be such spellings are refused, by readers and before a round is recorded; ids that differ in case
or leading zeros may be other devices, and are counted.
"""

import collections
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fl_dpftrl.logs import pseudonyms
from fl_dpftrl.support.text import messages

_WHOLE = r'^[+-]?[0-9]+$'
# Texts of floats, as only they have -0. Those like 1e5 may be hexadecimal, and are numbers where
# all ids are.
_FLOAT = r'^[+-]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?[0-9]+[eE][+-][0-9]+$|^-0+$'
_EITHER = r'^[0-9]+[eE][0-9]+$'
_OTHER, _IS_WHOLE, _IS_FLOAT, _IS_EITHER, _IS_CANARY = range(5)
_BLOCK = 1 << 15  # ids, of which there is a copy at a time
# A key of a number is a hash of it, and in its last bits how many characters are before it.
_SPELLING = np.uint64(2**11 - 1)

CANARY = 'canary-'
"""How text ids of canaries begin, which say nothing of how devices are spelt."""

COLLIDES = (
  'has zeros or a sign before a number that is an id too, or is a number beside a float, or a float'
  ' in another notation'
)
"""Words on an id that no log takes beside those that it has."""


class Spellings:
  """Different text ids of a log, added in parts, of which each id is in one: 8 bytes an id.

  Threads may add parts at once.
  """

  def __init__(self):
    self._whole: list[np.ndarray] = []  # hashes of numbers
    self._texts: list[np.ndarray] = []  # hashes of all others, without case and leading zeros
    self._floats: list[np.ndarray] = []  # hashes of the numbers that they are
    self._either: list[np.ndarray] = []
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
    kinds = _kinds(ids)
    for kind, parts in ((_IS_FLOAT, self._floats), (_IS_EITHER, self._either)):
      parts.append(_number_hashes(ids.filter(pa.array(kinds == kind))))
    texts = ids.filter(pa.array(kinds != _IS_WHOLE))
    self._whole.append(_hashes(_plain(ids.filter(pa.array(kinds == _IS_WHOLE)))))
    self._texts.append(_hashes(pc.ascii_ltrim(pc.utf8_lower(texts), '0')))

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
    if not self._has_floats:
      why = 'is a float that is there in another notation too'
      numbers = unique.filter(pa.array(wrong))
      wrong[wrong] = np.isin(_number_hashes(numbers), _repeated(self._float_numbers)[0])
    if not wrong.any():
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
    return index, f'{why}, {shown}; write each in one spelling'

  @property
  def has_faults(self) -> bool:
    """True if a number is there in two notations."""
    return self._has_floats or any(_repeated(x)[1] for x in (self._whole, self._float_numbers))

  @property
  def _are_numbers(self) -> bool:
    return _size(self._texts) == _size(self._floats) + _size(self._either)

  @property
  def _float_numbers(self) -> list[np.ndarray]:
    return [*self._floats, *(self._either if self._are_numbers else ())]

  @property
  def _has_floats(self) -> bool:
    return _size(self._float_numbers) > 0 and _size(self._whole) > 0


class RecordedSpellings:
  """How the ids of a log are spelt so far, so that it takes none that `Spellings` would refuse.

  Memory is 8 bytes for each text that is a whole number, and a float's text. Two numbers may have
  one hash, and one of them is refused then: among ten million with a probability of 3 in a
  thousand.
  """

  def __init__(self):
    self._keys: list[np.ndarray] = []  # Each sorted, and more than twice as long as the next.
    self._has = np.zeros(5, bool)  # By kind.
    self._floats, self._either = dict[int, str](), dict[int, str]()  # Texts, by hashes of numbers.

  def collisions(self, ids: pa.Array) -> np.ndarray:
    """Returns which ids no reader would take beside those so far, or beside others of these."""
    wrong = np.zeros(len(ids), bool)
    if pa.types.is_integer(ids.type) or not len(ids):
      return wrong
    ids = ids.cast(pa.large_string())
    kinds = _kinds(ids)
    whole = np.flatnonzero(kinds == _IS_WHOLE)
    has_other = self._has[_OTHER] or (kinds == _OTHER).any()
    keys = _keys(ids.take(pa.array(whole)))
    _, firsts, inverse = np.unique(keys | _SPELLING, return_index=True, return_inverse=True)
    recorded = self._recorded(keys)
    spelling = np.where(recorded > 0, recorded, keys[firsts][inverse])
    if self._has[_IS_FLOAT] or (self._has[_IS_EITHER] and not has_other):
      wrong[whole] = True
    elif whole.size or self._has[_IS_WHOLE]:
      wrong[whole] = spelling != keys
      wrong |= (kinds == _IS_FLOAT) | ((kinds == _IS_EITHER) & (not has_other))
    floats = np.flatnonzero((kinds == _IS_FLOAT) | ((kinds == _IS_EITHER) & (not has_other)))
    texts = collections.ChainMap({}, self._floats, {} if has_other else self._either)
    for place, number in zip(floats.tolist(), _number_hashes(ids.take(pa.array(floats))).tolist()):
      wrong[place] |= texts.setdefault(number, ids[place].as_py()) != ids[place].as_py()
    return wrong

  def add(self, ids: pa.Array) -> None:
    """Adds ids of the log, also again."""
    if pa.types.is_integer(ids.type) or not len(ids):
      return
    ids = ids.cast(pa.large_string())
    kinds = _kinds(ids)
    keys = np.unique(_keys(ids.filter(pa.array(kinds == _IS_WHOLE))))
    keys = keys[self._recorded(keys) == 0]
    parts = [*self._keys, keys] if keys.size else list(self._keys)
    while len(parts) > 1 and parts[-2].size <= 2 * parts[-1].size:
      parts[-2:] = [np.sort(np.concatenate(parts[-2:]))]
    self._keys = parts
    self._has[kinds] = True
    for kind, texts in ((_IS_FLOAT, self._floats), (_IS_EITHER, self._either)):
      some = ids.filter(pa.array(kinds == kind))
      texts |= zip(_number_hashes(some).tolist(), some.to_pylist())

  def _recorded(self, keys: np.ndarray) -> np.ndarray:
    """Returns the key of each number as the log has it, 0 where it has none."""
    recorded = np.zeros(keys.size, np.uint64)
    for part in self._keys:
      places = np.searchsorted(part, keys | _SPELLING, side='right') - 1
      near = part[np.maximum(places, 0)]
      recorded = np.where((near | _SPELLING) == (keys | _SPELLING), near, recorded)
    return recorded


def check(ids: pa.Array, name: str) -> None:
  """Raises ValueError for ids of which one is another spelling of another."""
  distinct = pc.unique(ids)
  if (wrong := np.flatnonzero(RecordedSpellings().collisions(distinct))).size:
    place = pc.index(ids, distinct[wrong[0]]).as_py()
    raise ValueError(f'{name}: at {place}, the id {COLLIDES}; write each in one spelling')


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
  (kind,) = _kinds(ids)
  return bool(kind == _IS_FLOAT or (kind == _IS_WHOLE and _plain(ids)[0].as_py() != text))


def _kinds(ids: pa.Array) -> np.ndarray:
  """Returns what each text reads as."""
  kinds = np.full(len(ids), _OTHER)
  # Quicker than an expression.
  rest = pc.binary_length(pc.ascii_ltrim(ids, '0123456789+-.eE'))
  places = np.flatnonzero(rest.to_numpy(zero_copy_only=False) == 0)
  numbers = ids.take(pa.array(places))
  for kind, pattern in ((_IS_WHOLE, _WHOLE), (_IS_FLOAT, _FLOAT), (_IS_EITHER, _EITHER)):
    kinds[places[_matches(numbers, pattern)]] = kind
  kinds[pc.starts_with(ids, CANARY).to_numpy(zero_copy_only=False)] = _IS_CANARY
  return kinds


def _keys(whole: pa.Array) -> np.ndarray:
  """Returns the key of each whole number in its spelling."""
  plain = _plain(whole)
  sizes = (pc.binary_length(ids).to_numpy(zero_copy_only=False) for ids in (whole, plain))
  prefixes = np.subtract(*sizes).astype(np.uint64)  # Less than limits.FIELD_BYTES, which is 2¹⁰.
  has_plus = pc.starts_with(whole, '+').to_numpy(zero_copy_only=False)
  return (_hashes(plain).view(np.uint64) & ~_SPELLING) | (2 * prefixes + has_plus).astype(np.uint64)


def _matches(ids: pa.Array, pattern: str) -> np.ndarray:
  return pc.match_substring_regex(ids, pattern).to_numpy(zero_copy_only=False).astype(bool)


def _plain(numbers: pa.Array) -> pa.Array:
  """Returns whole numbers without plus and leading zeros."""
  if pc.any(pc.starts_with(numbers, '-')).as_py():
    return pc.replace_substring_regex(numbers, r'^\+?(-?)0*([0-9]+)$', r'\1\2')
  plain = pc.ascii_ltrim(numbers, '+0')  # Quicker than an expression.
  return pc.if_else(pc.equal(plain, ''), pa.scalar('0', plain.type), plain)


def _hashes(ids: pa.Array) -> np.ndarray:
  """Returns a hash of 64 bits of each text."""
  texts = ids.to_numpy(zero_copy_only=False).tolist()
  return np.fromiter(map(hash, texts), np.int64, len(texts))


def _number_hashes(ids: pa.Array) -> np.ndarray:
  """Returns a hash of the number that each text reads as."""
  texts = ids.to_pylist()
  return np.fromiter((hash(pseudonyms.key(text)) for text in texts), np.int64, len(texts))


def _size(parts: list[np.ndarray]) -> int:
  return sum(part.size for part in parts)


def _repeated(parts: list[np.ndarray]) -> tuple[np.ndarray, int]:
  """Returns hashes that are there more than once, and how many of all are not the first."""
  joined = np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
  again = joined[1:][joined[1:] == joined[:-1]]
  return again, again.size
