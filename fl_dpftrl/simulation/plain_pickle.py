"""Safe reader of pickles with plain containers, numbers and text.

Python's own reader can be told to run no code of a file. It still crashes on deeply nested
keys, does not end for tuples that share their parts, and takes any memory that a few bytes ask
for. Here keys are only text, numbers and None, so that hashing is cheap. The memory of every
value is counted before the value is made. The finished object is traversed once, shared parts
each time.
"""

import codecs
import functools
import math
import os
import struct
from collections.abc import Callable
from typing import Any

from fl_dpftrl import messages
from fl_dpftrl.simulation import plain_size

MOST_MEMORY = 2**30
"""Maximum memory of the values of a pickle, in bytes: 1 GiB."""

_MOST_INTEGER_BYTES = 16
_LATEST_PROTOCOL = 5
_LONGEST_NUMBER = 64  # maximum characters, in text pickles

# Upper bounds of the memory of CPython objects and of a reference, in bytes.
_NUMBER, _LIST, _TUPLE, _DICTIONARY, _SET, _PLACE = 48, 104, 72, 240, 224, 8
_ENTRY = 120  # entry of a dictionary or a set, which grows in steps
_CHARACTER = 4
_STEP = 128  # added to every step, to limit the run time

_RUN = 4096  # numbers whose memory is counted together
_FOUR_BYTES, _EIGHT_BYTES = struct.Struct('<i'), struct.Struct('>d')
_COUNTED = {  # opcode: bytes of the count, whether it is text
  b'X': (4, True),
  b'\x8c': (1, True),
  b'\x8d': (8, True),
  b'B': (4, False),
  b'C': (1, False),
  b'\x8e': (8, False),
  b'T': (4, False),
  b'U': (1, False),
}
_CONSTANTS = {b'N': None, b'\x88': True, b'\x89': False}
_NAMES = {
  b'c': 'GLOBAL',
  b'i': 'INST',
  b'o': 'OBJ',
  b'R': 'REDUCE',
  b'b': 'BUILD',
  b'\x81': 'NEWOBJ',
  b'\x92': 'NEWOBJ_EX',
  b'\x82': 'EXT1',
  b'\x83': 'EXT2',
  b'\x84': 'EXT4',
}
_OUTSIDE = (b'P', b'Q', b'\x97', b'\x98')


def load(path: str | os.PathLike[str], content: bytes) -> object:
  """Returns the first object of a pickle, which may name no class or function.

  It consists of lists, tuples, sets, dictionaries, numbers below 2^127, text and bytes. Keys,
  and members of sets, are text, bytes, numbers or None.

  Args:
    path: path of the file, for messages.
    content: bytes of the file.

  Raises:
    ValueError: if the pickle names or holds anything else, exceeds MOST_MEMORY or the limits of
      plain_size.check, or is incomplete.
  """
  try:
    value = _Reader(content).read()
    plain_size.check(value)
    return value
  except _NotPlainError as error:
    raise ValueError(
      f'{path} holds more than plain containers and numbers, and is not read: {error}'
    ) from None
  except plain_size.TooLargeError as error:
    raise ValueError(f'{path} is too large to be read: {error}') from None
  # Corrupt bytes can raise nearly any exception.
  except Exception:
    raise ValueError(f'{path} is no pickle, or is not whole') from None


class _NotPlainError(Exception):
  pass


class _Reader:
  """Reader of one object; all other exceptions mean that bytes are corrupt."""

  def __init__(self, content: bytes):
    self._content = content
    self._place = 0
    self._left = MOST_MEMORY
    self._stack: list[Any] = []
    self._below: list[list[Any]] = []  # stacks below the marks
    self._memo: dict[int, Any] = {}
    self._steps = _steps(self)

  def read(self) -> object:
    """Returns the object at the first STOP."""
    content, steps = self._content, self._steps
    while True:
      opcode = content[self._place]
      self._place += 1
      if opcode == 0x2E:
        return self._stack.pop()
      steps[opcode]()

  def pay(self, memory: int) -> None:
    """Subtracts memory from the remaining budget before it is used."""
    self._left -= memory
    if self._left < 0:
      raise plain_size.TooLargeError(f'its values take more than {MOST_MEMORY} bytes of memory')

  def push(self, value: object, memory: int) -> None:
    self.pay(memory + _STEP)
    self._stack.append(value)

  def take(self, count: int) -> bytes:
    """Returns the next bytes."""
    taken = self._content[self._place : self._place + count]
    if len(taken) < count:
      raise EOFError
    self._place += count
    return taken

  def protocol(self) -> None:
    self.pay(_STEP)
    if self.number(1) > _LATEST_PROTOCOL:
      raise ValueError('unknown protocol')

  def frame(self) -> None:
    self.pay(_STEP)
    self.take(8)

  def number(self, size: int) -> int:
    return int.from_bytes(self.take(size), 'little')

  def line(self) -> bytes:
    """Returns the bytes up to the next line break."""
    end = self._content.index(b'\n', self._place)
    line = self._content[self._place : end]
    self._place = end + 1
    return line

  def numbers(self) -> None:
    """Reads a run of whole numbers of 1, 2 or 4 bytes, the bulk of a trace."""
    self.pay(_RUN * (_NUMBER + _PLACE))
    content, place = self._content, self._place - 1
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
    self._place = place
    self._left += (_RUN - len(found)) * (_NUMBER + _PLACE) - _STEP
    self._stack += found

  def binary_float(self) -> None:
    self.push(_EIGHT_BYTES.unpack(self.take(8))[0], _NUMBER)

  def counted(self, size: int, is_text: bool) -> None:
    content = self.take(self.number(size))
    self.pay(_CHARACTER * len(content))
    self.push(_text(content) if is_text else content, _NUMBER)

  def integer(self, size: int) -> None:
    """Reads a whole number whose length is in the next `size` bytes."""
    count = self.number(size)
    if count > _MOST_INTEGER_BYTES:
      raise _NotPlainError(f'it has a whole number of {count} bytes')
    self.push(int.from_bytes(self.take(count), 'little', signed=True), _NUMBER)

  def written(self, convert: Callable[[bytes], object]) -> None:
    """Reads a value on a line of its own."""
    line = self.line()
    self.pay(_CHARACTER * len(line))
    self.push(convert(line), _NUMBER)

  def mark(self) -> None:
    self.pay(_LIST + _STEP)
    self._below.append(self._stack)
    self._stack = []

  def since_mark(self) -> list[Any]:
    items = self._stack
    self._stack = self._below.pop()
    return items

  def last(self, count: int) -> list[Any]:
    if len(self._stack) < count:
      raise IndexError
    items = self._stack[-count:]
    del self._stack[-count:]
    return items

  def push_tuple(self, items: list[Any]) -> None:
    self.push(tuple(items), _TUPLE + _PLACE * len(items))

  def push_list(self, items: list[Any]) -> None:
    self.push(items, _LIST + _PLACE * len(items))

  def push_dictionary(self, items: list[Any]) -> None:
    self.push({}, _DICTIONARY)
    self.set_items(items)

  def push_set(self, kind: type[Any], items: list[Any]) -> None:
    self.pay(_ENTRY * len(items))
    self.push(kind(_key(item) for item in items), _SET)

  def append(self, items: list[Any]) -> None:
    self.pay(2 * _PLACE * len(items))
    _as(list, self._stack[-1]).extend(items)

  def add(self, items: list[Any]) -> None:
    self.pay(_ENTRY * len(items))
    _as(set, self._stack[-1]).update(_key(item) for item in items)

  def set_items(self, items: list[Any]) -> None:
    if len(items) % 2:
      raise IndexError
    self.pay(_ENTRY * (len(items) // 2))
    target = _as(dict, self._stack[-1])
    for key, value in zip(items[::2], items[1::2]):
      target[_key(key)] = value

  def put(self, index: int) -> None:
    self.pay(_ENTRY)
    self._memo[index] = self._stack[-1]

  def get(self, index: int) -> None:
    self.push(self._memo[index], 0)

  def pop(self) -> None:
    if self._stack:
      self._stack.pop()
    else:
      self.since_mark()

  def global_name(self) -> None:
    module, name = self.line(), self.line()
    _refuse_name(b'%s.%s' % (module, name))

  def stack_global(self) -> None:
    module, name = self.last(2)
    _refuse_name(f'{module!s:.80}.{name!s:.80}')


def _refuse_name(name: object) -> None:
  if isinstance(name, bytes):
    name = name.decode('utf-8', 'backslashreplace')
  raise _NotPlainError(f'it names {messages.quoted(name)}')


def _refuse(words: str) -> None:
  raise _NotPlainError(words)


def _broken() -> None:
  raise ValueError('no such opcode')


def _steps(reader: _Reader) -> list[Callable[[], object]]:
  """Returns the action of each opcode, indexed by its number."""
  r = reader
  steps: dict[bytes, Callable[[], object]] = {
    b'(': r.mark,
    b'0': r.pop,
    b'1': r.since_mark,
    b'2': lambda: r.push(r._stack[-1], 0),
    b'J': r.numbers,
    b'M': r.numbers,
    b'K': r.numbers,
    b'G': r.binary_float,
    b'I': lambda: r.written(_written_integer),
    b'L': lambda: r.written(_written_long),
    b'F': lambda: r.written(_written_float),
    b'S': lambda: r.written(_written_bytes),
    b'V': lambda: r.written(_written_text),
    b'\x8a': lambda: r.integer(1),
    b'\x8b': lambda: r.integer(4),
    b']': lambda: r.push_list([]),
    b'l': lambda: r.push_list(r.since_mark()),
    b'a': lambda: r.append(r.last(1)),
    b'e': lambda: r.append(r.since_mark()),
    b')': lambda: r.push((), 0),
    b't': lambda: r.push_tuple(r.since_mark()),
    b'\x85': lambda: r.push_tuple(r.last(1)),
    b'\x86': lambda: r.push_tuple(r.last(2)),
    b'\x87': lambda: r.push_tuple(r.last(3)),
    b'}': lambda: r.push_dictionary([]),
    b'd': lambda: r.push_dictionary(r.since_mark()),
    b's': lambda: r.set_items(r.last(2)),
    b'u': lambda: r.set_items(r.since_mark()),
    b'\x8f': lambda: r.push_set(set, []),
    b'\x90': lambda: r.add(r.since_mark()),
    b'\x91': lambda: r.push_set(frozenset, r.since_mark()),
    b'p': lambda: r.put(_index(r.line())),
    b'q': lambda: r.put(r.number(1)),
    b'r': lambda: r.put(r.number(4)),
    b'\x94': lambda: r.put(len(r._memo)),
    b'g': lambda: r.get(_index(r.line())),
    b'h': lambda: r.get(r.number(1)),
    b'j': lambda: r.get(r.number(4)),
    b'\x80': r.protocol,
    b'\x95': r.frame,
    b'c': r.global_name,
    b'\x93': r.stack_global,
    b'\x96': lambda: _refuse('it has an array of bytes'),
  }
  for opcode, counted in _COUNTED.items():
    steps[opcode] = functools.partial(r.counted, *counted)
  for opcode, value in _CONSTANTS.items():
    steps[opcode] = functools.partial(r.push, value, 0)
  for opcode, name in _NAMES.items():
    steps.setdefault(opcode, functools.partial(_refuse, f'it has {name}'))
  for opcode in _OUTSIDE:
    steps[opcode] = lambda: _refuse('it refers to an object outside the file')
  return [steps.get(bytes([opcode]), _broken) for opcode in range(256)]


def _as(kind: type[Any], value: Any) -> Any:
  if type(value) is not kind:
    raise TypeError
  return value


def _key(value: object) -> object:
  """Returns a value that can be hashed in constant time."""
  if value is not None and not isinstance(value, (str, bytes, int, float)):
    raise _NotPlainError(f'it has a {type(value).__name__} as a key')
  return value


def _text(content: bytes) -> str:
  return content.decode('utf-8', 'surrogatepass')


def _index(line: bytes) -> int:
  if not line.isdigit() or len(line) > _LONGEST_NUMBER:
    raise ValueError(line)
  return int(line)


def _written_integer(line: bytes) -> object:
  if line in (b'00', b'01'):
    return line == b'01'
  return _written_long(line)


def _written_long(line: bytes) -> int:
  if len(line) > _LONGEST_NUMBER:
    raise _NotPlainError(f'it has a whole number of {len(line)} digits')
  value = int(line.removesuffix(b'L'))
  if value.bit_length() >= 8 * _MOST_INTEGER_BYTES:
    raise _NotPlainError(f'it has the whole number {value}')
  return value


def _written_float(line: bytes) -> float:
  return float(line) if len(line) <= _LONGEST_NUMBER else math.nan


def _written_bytes(line: bytes) -> object:
  """Parses ASCII text of protocol 0 in quotation marks."""
  if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b'"', b"'"):
    raise ValueError(line)
  return codecs.escape_decode(line[1:-1])[0].decode('ascii')


def _written_text(line: bytes) -> str:
  return line.decode('raw-unicode-escape')
