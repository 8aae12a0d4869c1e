"""Text of messages: one line of bounded length, and no value of an argument."""

from collections.abc import Collection
from typing import Any


def one_line(text: object, limit: int = 300) -> str:
  """Returns text as one line of printable characters, cut in its middle to `limit` of them."""
  line = ' '.join(str(text).split())
  line = ''.join(c if c.isprintable() else repr(c)[1:-1] for c in line)
  end = limit // 3
  return line if len(line) <= limit else f'{line[: limit - 1 - end]}…{line[len(line) - end :]}'


def quoted(value: object) -> str:
  """Returns the repr of a value as one line, for what the caller named, such as an address."""
  return one_line(repr(value), 80)


def kind(value: Any) -> str:
  """Returns the type of a value, with its shape or size, and nothing that it holds."""
  name = type(value).__name__
  dtype, shape = getattr(value, 'dtype', None), getattr(value, 'shape', None)
  if dtype is not None and shape is not None:
    return f'{getattr(dtype, "name", name)}, {shape}'
  if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
    return f'{name} of {len(value)}'
  return name
