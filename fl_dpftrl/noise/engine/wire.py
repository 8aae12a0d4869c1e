"""Messages between a run and its noise workers: bytes of a fixed layout, nothing to execute.

One call of gRPC carries the rows of one slice. Each message begins with a byte for its kind.
Numbers are little-endian.

    run → worker   S  what the slice is, as canonical JSON
                   A  a part of the strategy's arrays, an .npz, of the size that S names
                   R  int64 row, int64 used: the row that is wanted, and the first still needed
    worker → run   W  int64: still working, and has come to this row
                   M  float64, int64: the row is made; its standard deviation and coordinates
                   P  float32 coordinates, in their order, until the row is whole
                   F  text: why there is no row
"""

import dataclasses
import io
import json
import math
import pathlib
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl import array_files, json_files, messages, strategy_document
from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise.engine import draws
from fl_dpftrl.noise.engine import maker as makers

METHOD = 'Rows'
SERVICE = 'fl_dpftrl.NoiseWorker'
PART_BYTES = 2**20
"""Bytes of arrays or coordinates in a message, and of a slice's JSON: 1 MiB."""

MOST_BYTES = PART_BYTES + 64
"""Size of a message."""

MOST_COORDINATES = 2**40
MOST_ROUNDS = 2**31 - 1
_ARRAYS_NAME = 'arrays.npz'
_MOST_TEXT = 300
_REQUEST, _WORKING, _MADE = struct.Struct('<qq'), struct.Struct('<q'), struct.Struct('<dq')


class Request(NamedTuple):
  """The row that is wanted; rows before `used` will not be asked for again."""

  row: int
  used: int


class Working(NamedTuple):
  """The row that a worker has come to on its way to the one that is wanted."""

  row: int


class Made(NamedTuple):
  """Announces a row."""

  stddev: float
  size: int


class Failed(NamedTuple):
  """The line that says why there is no row."""

  line: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Slice:
  """The coordinates that a worker makes, and the noise that they belong to.

  Attributes:
    strategy: family and parameters, as in a strategy file.
    arrays_bytes: size of the .npz with its arrays; 0 for none.
    row_size: coordinates of a whole row.
    first_chunk: chunk of the row with which the slice begins.
    size: coordinates of the slice.
    num_rounds, stddev, seed, memory, precision: see `RowMaker`.
    snapshot_rows: rows between two snapshots; 0 for none.
    made_by: versions that must agree for the rows to be the same.

  Raises:
    ValueError: naming the attribute that is of another type or out of range.
  """

  strategy: json_files.Object
  arrays_bytes: int
  row_size: int
  first_chunk: int
  size: int
  num_rounds: int
  stddev: float
  seed: bytes = dataclasses.field(repr=False)
  memory: str
  precision: str
  snapshot_rows: int
  made_by: str

  def __post_init__(self):
    if not isinstance(self.strategy, dict):
      raise ValueError(f'strategy must be an object, got {messages.quoted(self.strategy)}')
    for name, low, high in [
      ('arrays_bytes', 0, array_files.MOST_BYTES),
      ('row_size', 1, MOST_COORDINATES),
      ('first_chunk', 0, MOST_COORDINATES // draws.CHUNK),
      ('size', 1, MOST_COORDINATES),
      ('num_rounds', 1, MOST_ROUNDS),
      ('snapshot_rows', 0, MOST_ROUNDS),
    ]:
      value = getattr(self, name)
      if type(value) is not int or not low <= value <= high:
        raise ValueError(
          f'{name} must be a whole number from {low} to {high}, got {messages.quoted(value)}'
        )
    if type(self.stddev) is not float or not math.isfinite(self.stddev):
      raise ValueError(f'stddev must be a number, got {messages.quoted(self.stddev)}')
    for name in ('memory', 'precision', 'made_by'):
      value = getattr(self, name)
      if not isinstance(value, str) or len(value) > _MOST_TEXT:
        raise ValueError(f'{name} must be a short text, got {messages.quoted(value)}')
    if not isinstance(self.seed, bytes) or len(self.seed) != draws.SEED_BYTES:
      raise ValueError(f'seed must have {draws.SEED_BYTES} bytes')
    makers.check(size=self.size, stddev=self.stddev, memory=self.memory, precision=self.precision)
    if self.first_chunk * draws.CHUNK + self.size > self.row_size:
      raise ValueError(f'the slice ends after the row of {self.row_size} coordinates')

  @property
  def first(self) -> int:
    """Coordinate of the row with which the slice begins."""
    return self.first_chunk * draws.CHUNK

  def identity(self, strategy: strategies.Strategy) -> int:
    """Identity of the whole noise, which is made of this strategy."""
    return makers.identity(
      strategy, size=self.row_size, seed=self.seed, memory=self.memory, precision=self.precision
    )

  def encode(self) -> bytes:
    """The message.

    Raises:
      ValueError: for a strategy that is too large, or that JSON cannot hold.
    """
    try:
      content = _canonical({**vars(self), 'seed': self.seed.hex()})
    except (TypeError, ValueError) as error:
      raise ValueError(f'the strategy cannot be sent to a noise worker: {error}') from error
    if len(content) > PART_BYTES:
      raise ValueError(
        f'the strategy cannot be sent to a noise worker: {len(content)} bytes, of which'
        f' {PART_BYTES} is the most; keep long parameters as arrays'
      )
    return b'S' + content


def _canonical(values: json_files.Object) -> bytes:
  text = json.dumps(values, sort_keys=True, separators=(',', ':'), allow_nan=False)
  return text.encode()


def decode_slice(message: bytes) -> Slice:
  """The slice of a message.

  Raises:
    ValueError: for anything else.
  """
  content = _content(message, b'S', 0, PART_BYTES)
  values = json_files.parse(content)
  known = {field.name for field in dataclasses.fields(Slice)}
  if not isinstance(values, dict) or values.keys() != known or _canonical(values) != content:
    raise ValueError(f'a slice must be a canonical JSON object with {", ".join(sorted(known))}')
  seed = values['seed']
  if not isinstance(seed, str) or len(seed) != 2 * draws.SEED_BYTES:
    raise ValueError('seed is not one')
  try:
    return Slice(**{**values, 'seed': bytes.fromhex(seed)})
  except ValueError as error:
    raise ValueError(f'a slice that will not do: {error}') from error


def pack(strategy: strategies.Strategy) -> tuple[json_files.Object, bytes]:
  """Family and parameters of a strategy, and the .npz with its arrays."""
  arrays: dict[str, np.ndarray] = {}
  described = strategy_document.describe(strategy, arrays)
  if not arrays:
    return described, b''
  strategy_document.name_arrays(described, _ARRAYS_NAME)
  stream = io.BytesIO()
  np.savez(stream, **arrays)
  return described, stream.getvalue()


def unpack(
  described: json_files.Object, arrays: bytes, folder: pathlib.Path
) -> strategies.Strategy:
  """The strategy that `pack` packed.

  Args:
    described, arrays: as `pack` returned them.
    folder: an empty folder for the arrays.

  Raises:
    ValueError: for anything else, or a family that this process does not know.
    OSError: where the folder cannot be written to.
  """
  if arrays:
    (folder / _ARRAYS_NAME).write_bytes(arrays)
  return strategy_document.read_strategy(described, folder / 'strategy.json')


def array_messages(arrays: bytes) -> Iterator[bytes]:
  for start in range(0, len(arrays), PART_BYTES):
    yield b'A' + arrays[start : start + PART_BYTES]


def decode_array(message: bytes, most_bytes: int) -> bytes:
  """A part of the arrays, which has at least one byte.

  Raises:
    ValueError: for anything else.
  """
  return _content(message, b'A', 1, min(most_bytes, PART_BYTES))


def encode_request(request: Request) -> bytes:
  return b'R' + _REQUEST.pack(*request)


def decode_request(message: bytes) -> Request:
  """The row that is asked for.

  Raises:
    ValueError: for anything else.
  """
  found = Request(*_REQUEST.unpack(_content(message, b'R', _REQUEST.size, _REQUEST.size)))
  if not 0 <= found.row <= MOST_ROUNDS or not -1 <= found.used <= MOST_ROUNDS:
    raise ValueError(f'row {found.row} and used {found.used} are out of range')
  return found


def encode_working(working: Working) -> bytes:
  return b'W' + _WORKING.pack(*working)


def encode_row(stddev: float, values: np.ndarray) -> Iterator[bytes]:
  """The messages of a row.

  Args:
    stddev: standard deviation of the row.
    values: float32.
  """
  yield b'M' + _MADE.pack(stddev, values.size)
  content = values.astype('<f4', copy=False).data.cast('B')
  for start in range(0, len(content), PART_BYTES):
    yield b'P' + content[start : start + PART_BYTES]


def encode_failure(line: str) -> bytes:
  return b'F' + messages.one_line(line, _MOST_TEXT).encode('utf-8', 'replace')


def decode_answer(message: bytes) -> Working | Made | Failed | np.ndarray:
  """Decodes a message of a worker; coordinates are float32.

  Raises:
    ValueError: for anything else.
  """
  kind = message[:1]
  if kind == b'W':
    return Working(*_WORKING.unpack(_content(message, kind, _WORKING.size, _WORKING.size)))
  if kind == b'M':
    return Made(*_MADE.unpack(_content(message, kind, _MADE.size, _MADE.size)))
  if kind == b'F':
    text = _content(message, kind, 0, 4 * _MOST_TEXT).decode('utf-8', 'replace')
    return Failed(messages.one_line(text, _MOST_TEXT))
  if kind != b'P' or len(message) % 4 != 1 or not 1 < len(message) <= MOST_BYTES:
    raise ValueError(_unexpected(message, b'P'))
  return np.frombuffer(message, '<f4', offset=1)


def _content(message: Any, kind: bytes, low: int, high: int) -> bytes:
  """Returns the message after its kind; ValueError unless its size is from low to high."""
  if message[:1] != kind or not low <= len(message) - 1 <= high:
    raise ValueError(_unexpected(message, kind))
  return message[1:]


def _unexpected(message: bytes, kind: bytes) -> str:
  return (
    f'a message of kind {messages.quoted(message[:1])} with {len(message)} bytes is not the'
    f' expected {messages.quoted(kind)}'
  )
