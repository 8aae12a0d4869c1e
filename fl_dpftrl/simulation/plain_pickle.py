"""Safe reader of pickles with plain containers, numbers and text.

Python's own reader can be told to run no code of a file. It still crashes on deeply nested keys,
does not end for tuples that share their parts, and takes any memory that a few bytes ask for.
Here its steps are limited: keys are only text, numbers and None, so that hashing is cheap, and
the memory of values is counted. The finished object is traversed once, shared parts each time.
"""

import io
import os
import pickle
import pickletools
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from fl_dpftrl.text import messages

MOST_MEMORY = 2**30
"""Maximum memory of the values of a pickle, in bytes: 1 GiB."""

MOST_LEVELS = 16
"""Maximum nesting of containers."""

MOST_VALUES = 50_000_000
"""Maximum number of values of a traversal; shared values count each time."""

_CONTAINER = 8  # a step into a container counts as so many values
_INTEGER_BITS = 127
_LONGEST_NUMBER = 64  # maximum characters, in text pickles

# Upper bounds of the memory of a step, in bytes: of the CPython objects and references that it
# makes, and at least _STEP, to limit the run time.
_STEP, _NUMBER, _CHARACTER = 128, 56, 4
_ENTRY = 120  # entry of a dictionary or a set, which grows in steps
_CONTAINERS = {
  **dict.fromkeys(('MARK', 'EMPTY_LIST', 'LIST'), 232),
  **dict.fromkeys(('TUPLE', 'TUPLE1', 'TUPLE2', 'TUPLE3'), 224),
  **dict.fromkeys(('EMPTY_DICT', 'DICT', 'EMPTY_SET', 'FROZENSET'), 368),
}
_TEXTS = {'UNICODE', 'BINUNICODE', 'SHORT_BINUNICODE', 'BINUNICODE8'}
_TEXTS |= {'STRING', 'BINSTRING', 'SHORT_BINSTRING', 'BINBYTES', 'SHORT_BINBYTES', 'BINBYTES8'}
_WRITTEN = {'INT', 'LONG', 'FLOAT', 'PUT', 'GET'}  # numbers on a line of their own
_INTEGERS = {'INT', 'LONG', 'LONG1', 'LONG4'}
# Where the keys, or members of a set, are among the items on the stack.
_KEYS = {
  'SETITEM': slice(-2, -1),
  'SETITEMS': slice(None, None, 2),
  'DICT': slice(None, None, 2),
  'ADDITEMS': slice(None),
  'FROZENSET': slice(None),
}
_NAMING = {'GLOBAL', 'STACK_GLOBAL'}  # refused by find_class, with the name
_OUTSIDE = {'PERSID', 'BINPERSID', 'NEXT_BUFFER', 'READONLY_BUFFER'}
_OTHERS = {'PROTO', 'STOP', 'POP', 'POP_MARK', 'DUP', 'NONE', 'NEWTRUE', 'NEWFALSE', 'BINFLOAT'}
_OTHERS |= {'BINGET', 'LONG_BINGET', 'BINPUT', 'LONG_BINPUT', 'MEMOIZE', 'EMPTY_TUPLE'}
_OTHERS |= {'APPEND', 'APPENDS', *_NAMING}
_PLAIN = _OTHERS.union(_CONTAINERS, _TEXTS, _WRITTEN, _INTEGERS, _KEYS)

_RUN = 4096  # numbers whose memory is counted together
_FOUR_BYTES = struct.Struct('<i')


def load(path: str | os.PathLike[str], content: bytes) -> object:
  """Returns the first object of a pickle, which may name no class or function.

  It consists of lists, tuples, sets, dictionaries, numbers below 2^127, text and bytes. Keys, and
  members of sets, are text, bytes, numbers or None.

  Args:
    path: path of the file, for messages.
    content: bytes of the file.

  Raises:
    ValueError: if the pickle names or holds anything else, exceeds MOST_MEMORY, MOST_LEVELS or
      MOST_VALUES, or is incomplete.
  """
  try:
    value = _Reader(content).load()
    _traverse(value)
    return value
  except _NotPlainError as error:
    raise ValueError(
      f'{path} holds more than plain containers and numbers, and is not read: {error}'
    ) from None
  except _TooLargeError as error:
    raise ValueError(f'{path} is too large to be read: {error}') from None
  # Corrupt bytes can raise nearly any exception.
  except Exception:
    raise ValueError(f'{path} is no pickle, or is not whole') from None


class _NotPlainError(Exception):
  pass


class _TooLargeError(Exception):
  pass


class _Reader(pickle._Unpickler):
  """Python's reader with other steps; exceptions but the two above mean corrupt bytes."""

  dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {}
  stack: list[Any]

  def __init__(self, content: bytes):
    self._file = io.BytesIO(content)
    self._content = content
    self._left = MOST_MEMORY
    super().__init__(self._file)

  def find_class(self, module_name: str, global_name: str) -> Any:
    raise _NotPlainError(f'it names {messages.quoted(f"{module_name:.80}.{global_name:.80}")}')

  def pay(self, memory: int) -> None:
    """Subtracts memory from the remaining budget."""
    self._left -= memory
    if self._left < 0:
      raise _TooLargeError(f'its values take more than {MOST_MEMORY} bytes of memory')

  def load_frame(self) -> None:
    """Passes over the header of a frame, whose content is read like the rest."""
    self.pay(_STEP)
    if len(self._file.read(8)) < 8:
      raise EOFError

  def load_integers(self) -> None:
    """Reads a run of whole numbers of 1, 2 or 4 bytes, the bulk of a trace."""
    self.pay(_RUN * _NUMBER)
    content, place = self._content, self._file.tell() - 1
    found: list[int] = []
    while len(found) < _RUN:
      opcode = content[place]
      if opcode == 0x4A:
        found.append(_FOUR_BYTES.unpack_from(content, place + 1)[0])
        place += 5
      elif opcode == 0x4D:
        found.append(content[place + 1] | content[place + 2] << 8)
        place += 3
      elif opcode == 0x4B:
        found.append(content[place + 1])
        place += 2
      else:
        break
    self._file.seek(place)
    self._left += (_RUN - len(found)) * _NUMBER - _STEP
    self.stack += found

  def check_line(self) -> None:
    end = self._content.index(b'\n', self._file.tell())
    if end - self._file.tell() > _LONGEST_NUMBER:
      raise _NotPlainError(f'it has a number of {end - self._file.tell()} digits')

  def check_keys(self, place: slice) -> None:
    """Refuses keys that cannot be hashed in constant time."""
    keys = self.stack[place]
    self.pay(_ENTRY * len(keys))
    for key in keys:
      if key is not None and not isinstance(key, (str, bytes, int, float)):
        raise _NotPlainError(f'it has a {type(key).__name__} as a key')


def _step(name: str, load: Callable[[Any], None]) -> Callable[[Any], None]:
  """Returns Python's step of an opcode with the checks before and after it."""
  cost, keys = _CONTAINERS.get(name, _STEP), _KEYS.get(name)
  is_written, is_text, is_integer = name in _WRITTEN, name in _TEXTS, name in _INTEGERS

  def step(reader: _Reader) -> None:
    reader.pay(cost)
    if keys is not None:
      reader.check_keys(keys)
    if is_written:
      reader.check_line()
    load(reader)
    if is_text:
      reader.pay(_CHARACTER * len(reader.stack[-1]))
    if is_integer and reader.stack[-1].bit_length() > _INTEGER_BITS:
      raise _NotPlainError(f'it has a whole number of {reader.stack[-1].bit_length()} bits')

  return step


def _refusal(name: str) -> Callable[[Any], None]:
  what = 'refers to an object outside the file' if name in _OUTSIDE else f'has {name}'

  def step(reader: _Reader) -> None:
    raise _NotPlainError(f'it {what}')

  return step


for _opcode in pickletools.opcodes:
  _code, _name = ord(_opcode.code), _opcode.name
  _Reader.dispatch[_code] = (
    _step(_name, pickle._Unpickler.dispatch[_code]) if _name in _PLAIN else _refusal(_name)
  )
_Reader.dispatch[ord('\x95')] = _Reader.load_frame
_Reader.dispatch.update(dict.fromkeys(b'JKM', _Reader.load_integers))


def _traverse(value: object) -> None:
  """Traverses an object, which may share parts or contain itself.

  Raises:
    _TooLargeError: if it exceeds MOST_LEVELS or MOST_VALUES.
  """
  count = 1
  levels = [iter((value,))]
  while levels:
    for item in levels[-1]:
      if isinstance(item, dict):
        count += _CONTAINER + 2 * len(item)
        item = item.values()
      elif isinstance(item, (list, tuple)):
        count += _CONTAINER + len(item)
      else:
        continue
      if count > MOST_VALUES:
        raise _TooLargeError(f'it has more than {MOST_VALUES} values, shared ones each time')
      levels.append(iter(item))
      if len(levels) > MOST_LEVELS + 1:
        raise _TooLargeError(f'it has more than {MOST_LEVELS} containers within each other')
      break
    else:
      levels.pop()
