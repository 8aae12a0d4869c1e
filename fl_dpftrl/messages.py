"""Text of messages: one line, of bounded length, in which values cannot act.

Values come from files that somebody else wrote. A terminal would act on the
control characters in them, a line break would forge a line, and a whole field
can be as long as its file.
"""

import reprlib

_LEVELS = 3  # of containers within containers that are shown
_ITEMS = 4  # of a container that are shown


def quoted(value: object, limit: int = 80) -> str:
  """Returns a value as Python writes it, cut in its middle to `limit` characters.

  Control characters, line breaks, invisible characters and bytes that are no
  text are escaped. The work does not grow with the size of the value.

  Args:
    value: any; containers are shown in part.
    limit: characters of the result; at least 3.
  """
  writer = reprlib.Repr()
  writer.maxlevel = _LEVELS
  for name in ('maxdict', 'maxlist', 'maxtuple', 'maxset', 'maxfrozenset'):
    setattr(writer, name, _ITEMS)
  writer.maxstring = writer.maxother = writer.maxlong = limit
  if isinstance(value, (bytes, bytearray)):
    value = bytes(value[: limit + 1])
  if isinstance(value, int) and value.bit_length() > 8 * limit:
    # Python refuses to write the longest, and takes long over others.
    return _cut(f'a number of {value.bit_length()} bits', limit)
  try:
    text = writer.repr(value)
  except (ValueError, RecursionError):  # A huge number within a container.
    text = f'a {type(value).__name__}'
  return _cut(_printable(text), limit)


def one_line(text: object, limit: int = 300) -> str:
  """Returns text as one line of at most `limit` characters, cut in its middle.

  White space becomes single spaces and all else that cannot be printed is
  escaped. The beginning, which names the file or flag, and the end, which says
  what would do, are kept.

  Args:
    text: a message, or an error.
    limit: characters of the result; at least 3.
  """
  text = str(text)
  if len(text) > 4 * limit:
    # Long runs of spaces apart, only these can be in the result.
    text = f'{text[: 2 * limit]} … {text[-2 * limit :]}'
  return _cut(_printable(' '.join(text.split())), limit)


def lines(text: str) -> str:
  """Returns text of several lines, all else that cannot be printed escaped.

  The last resort where text is shown: it cannot tell a line break of ours from
  one in a value, so values go through `quoted` or `one_line` before.
  """
  return '\n'.join(map(_printable, text.split('\n')))


def _printable(text: str) -> str:
  """Escapes all that str.isprintable refuses, lone surrogates included."""
  if text.isprintable():
    return text
  return ''.join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cut(text: str, limit: int) -> str:
  if len(text) <= limit:
    return text
  kept = limit - 1
  return f'{text[: kept - kept // 3]}…{text[len(text) - kept // 3 :]}'
