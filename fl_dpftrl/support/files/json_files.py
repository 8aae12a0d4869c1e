"""JSON that somebody else wrote, read within limits and refused in one line.

Python's reader takes numbers beyond any range, constants that are no numbers and keys that are
there twice, and nests as deep as its stack. All of these are refused, and so is a document that
would take too much memory, before it does.
"""

import codecs
import json
import math
import os
from collections.abc import Iterable, Iterator
from typing import Any

from fl_dpftrl.support.text import messages

Object = dict[str, Any]
"""A JSON object."""

MOST_BYTES = 2**24
"""Size of a file, unless another limit is given: 16 MiB."""

MOST_MEMORY = 2**30
"""Bytes that the values of a document may take together: 1 GiB."""

MOST_LEVELS = 64
"""Objects and lists within each other."""

ROUNDING = 1e-9
"""Largest relative difference of a number from the same one that another processor computes."""

_MOST_DIGITS = 20  # of a whole number
_LONGEST_NUMBER = 200  # characters of any other

# At most how many bytes of memory a value takes for each of these characters: CPython's empty
# containers with one entry, and a number with its place.
_COSTS = {b'{': 300, b'[': 100, b',': 100}
_COST_OF_A_BYTE = 3  # the file, its text, and the text of its values


def read(path: str | os.PathLike[str]) -> Any:
  """Returns the value of a JSON file in UTF-8."""
  try:
    return parse(read_bytes(path))
  except ValueError as error:
    raise ValueError(f'{os.fspath(path)}: {error}') from None


def read_bytes(path: str | os.PathLike[str]) -> bytes:
  """Returns the content of a file, of which no more than MOST_BYTES are read."""
  with open(path, 'rb') as stream:
    content = stream.read(MOST_BYTES + 1)
  if len(content) > MOST_BYTES:
    raise ValueError(f'it has more than {MOST_BYTES} bytes, the most there may be')
  return content


def parse(content: bytes) -> Any:
  """Returns the value of a JSON document in UTF-8."""
  memory = _COST_OF_A_BYTE * len(content)
  memory += sum(cost * content.count(mark) for mark, cost in _COSTS.items())
  if memory > MOST_MEMORY:
    raise ValueError(
      f'it may take {memory} bytes of memory, of which {MOST_MEMORY} is the most there may be'
    )
  if content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
    raise ValueError('it is in UTF-16, as its byte order mark says: save it in UTF-8')
  try:
    value = json.loads(
      content.decode('utf-8-sig'),
      object_pairs_hook=unique,
      parse_int=_whole_number,
      parse_float=_number,
      parse_constant=_refuse_constant,
    )
  except (json.JSONDecodeError, UnicodeDecodeError) as error:
    raise ValueError(f'it is not JSON, or cut short: {error}') from None
  except RecursionError:
    value = None
    levels = MOST_LEVELS + 1
  else:
    levels = _levels(value)
  if levels > MOST_LEVELS:
    raise ValueError(f'it has more than {MOST_LEVELS} lists and objects within each other')
  return value


def _levels(value: Any) -> int:
  """Lists and objects within each other, as far as it matters here."""
  levels, level = 0, [value]
  while levels <= MOST_LEVELS:
    level = [item for item in level if isinstance(item, (dict, list))]
    if not level:
      break
    levels += 1
    level = [
      item
      for container in level
      for item in (container.values() if isinstance(container, dict) else container)
    ]
  return levels


def unique(pairs: list[tuple[str, Any]]) -> Object:
  """Returns the object of its pairs; ValueError for a key that occurs twice."""
  result = dict(pairs)
  if len(result) < len(pairs):
    keys = [key for key, _ in pairs]
    twice = next(key for key in keys if keys.count(key) > 1)
    raise ValueError(f'it has the key {messages.quoted(twice)} twice')
  return result


def check_keys(document: Object, names: Iterable[str]) -> None:
  """Raises ValueError for a key beside the names: it may change what they mean."""
  for key in sorted(document.keys() - set(names)):
    raise ValueError(f'it has the key {messages.quoted(key)}, which is not known')


def _whole_number(text: str) -> int:
  if len(text) > _MOST_DIGITS:
    raise ValueError(
      f'it has the number {messages.quoted(text, 40)}, of more than {_MOST_DIGITS} digits'
    )
  return int(text)


def _number(text: str) -> float:
  value = float(text) if len(text) <= _LONGEST_NUMBER else math.inf
  if not math.isfinite(value):
    raise ValueError(
      f'it has the number {messages.quoted(text, 40)}, which is too large or too long'
    )
  return value


def _refuse_constant(constant: str) -> None:
  raise ValueError(f'it has {constant}, which is not a number')


def differences(place: str, stored: Any, computed: Any) -> Iterator[str]:
  """Yields a sentence for each value that differs from a computed one.

  Types differ, and numbers with a fraction by more than `ROUNDING`: processors round differently.
  """
  if isinstance(stored, dict) and isinstance(computed, dict):
    for name in sorted(stored.keys() | computed.keys()):
      inner = f'{place}.{name}' if place else name
      if name not in computed or name not in stored:
        yield f'{messages.quoted(inner)} is {"missing" if name in computed else "unknown"}'
      else:
        yield from differences(inner, stored[name], computed[name])
  elif isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
    for index, (entry, other) in enumerate(zip(stored, computed)):
      yield from differences(f'{place}[{index}]', entry, other)
  elif type(stored) is not type(computed) or not _is_close(stored, computed):
    yield (
      f'{place or "the document"} is {messages.quoted(stored)}, but the log and the strategy give'
      f' {messages.quoted(computed)}'
    )


def _is_close(stored: Any, computed: Any) -> bool:
  if isinstance(stored, float):
    return math.isclose(stored, computed, rel_tol=ROUNDING)
  return bool(stored == computed)
