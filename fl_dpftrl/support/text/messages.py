"""Safe text for messages: one line of bounded length without control characters.

Values may come from files of other people. A terminal would act on control characters in them,
a line break would forge a line, and a field can be as long as its file.

What may hold a secret, as arguments of computations do, is not quoted: only its kind is said.
"""

import reprlib
from collections.abc import Collection
from typing import Any

_LEVELS = 3  # maximum nesting of containers that is shown
_ITEMS = 4  # maximum items of a container that are shown


def quoted(value: object, limit: int = 80) -> str:
  """Returns a value's repr, escaped and cut in its middle to `limit`, in bounded time."""
  writer = reprlib.Repr()
  writer.maxlevel = _LEVELS
  for name in ('maxdict', 'maxlist', 'maxtuple', 'maxset', 'maxfrozenset'):
    setattr(writer, name, _ITEMS)
  writer.maxstring = writer.maxother = writer.maxlong = limit
  if isinstance(value, (bytes, bytearray)):
    value = bytes(value[: limit + 1])
  if isinstance(value, int) and value.bit_length() > 8 * limit:
    # Python refuses to format the longest integers, and others take long.
    return _cut(f'a number of {value.bit_length()} bits', limit)
  try:
    text = writer.repr(value)
  except (ValueError, RecursionError):  # A huge number within a container.
    text = f'a {type(value).__name__}'
  return _cut(_printable(text), limit)


def kind(value: object) -> str:
  """Returns the type of a value, with its shape or size, and nothing that it holds."""
  name = type(value).__name__
  dtype, shape = getattr(value, 'dtype', None), getattr(value, 'shape', None)
  if dtype is not None and shape is not None:
    return f'{getattr(dtype, "name", name)}, {shape}'
  if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
    return f'{name} of {len(value)}'
  return name


def outline(value: Any) -> str:
  """Returns the kinds of a named tuple's fields, as `__repr__` of one that holds a secret."""
  parts = (
    f'{name}={outline(part) if hasattr(part, "_fields") else f"<{kind(part)}>"}'
    for name, part in zip(value._fields, value)
  )
  return f'{type(value).__name__}({", ".join(parts)})'


def one_line(text: object, limit: int = 300) -> str:
  """Returns text as one line of at most `limit` characters, cut in its middle.

  White space becomes single spaces, and all other unprintable characters are escaped. The
  start, which names the file or flag, and the end, which says what to do, are kept.
  """
  text = str(text)
  if len(text) > 4 * limit:
    # Except for long runs of spaces, only these parts can be in the result.
    text = f'{text[: 2 * limit]} … {text[-2 * limit :]}'
  return _cut(_printable(' '.join(text.split())), limit)


def lines(text: str) -> str:
  """Returns text of several lines with all unprintable characters escaped.

  It is the last resort before output. It cannot tell the program's line breaks from those in a
  value, so values must go through `quoted` or `one_line` first.
  """
  return '\n'.join(map(_printable, text.split('\n')))


def _printable(text: str) -> str:
  """Escapes all characters that str.isprintable rejects, even lone surrogates."""
  if text.isprintable():
    return text
  return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cut(text: str, limit: int) -> str:
  if len(text) <= limit:
    return text
  length = limit - 1
  return f'{text[: length - length // 3]}…{text[len(text) - length // 3 :]}'
