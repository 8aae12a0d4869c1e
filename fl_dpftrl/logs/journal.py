"""Journal of a log that is being written: frames that are appended and synced.

A frame is a mark, a kind, a length, a payload, and the SHA-256 of all of these
and of the digest of the frame before it. The digests form a chain, so that the
last one stands for the whole journal. The first frame holds the log's metadata.
Later frames hold a round's cohort, a release mark, or changed metadata. A cohort ends
with the chained digest of its round (`logs.digests`), which the finished log keeps.

A frame is durable before the next one is begun. So only the last frame can be
torn, after a crash or a full disk, and what it would have recorded had not
begun. A fault that is followed by an intact frame is damage, and is refused.
"""

import fcntl
import hashlib
import json
import mmap
import os
import pathlib
import struct
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple

import numpy as np
import pyarrow as pa

from fl_dpftrl.files import durable
from fl_dpftrl.logs import keys, limits, refusals

SUFFIX = '.journal'
"""Ends the name of a journal, after that of the log that it becomes."""

METADATA, COHORT, RELEASED = b'M', b'C', b'R'

TORN_KEY = 'torn'
"""Key under which a reader's metadata say what was left out."""

_BATCH_ROWS = 1 << 18

_MARK = b'\xf1fldp\r\n\x1a'
_HEAD = struct.Struct('<8scI')
_COHORT = struct.Struct('<qqcI')  # Round, UTC second, kind of ids, number of ids.
_NUMBERS, _TEXT = b'I', b'T'
DIGEST_BYTES = hashlib.sha256().digest_size
_START = bytes(DIGEST_BYTES)


class Entry(NamedTuple):
  """A round in a journal: the place of its cohort's payload in bytes, and what it says.

  The timestamp is the UTC second.
  """

  offset: int
  size: int
  timestamp: int
  num_devices: int
  chain: bytes


class Contents(NamedTuple):
  """Intact frames of a journal.

  Attributes:
    metadata: the last that were stated.
    released: the last release mark; None without one.
    rounds: the rounds, from 0 on.
    id_type: string or int64; None if no round has devices.
    end: byte after the last intact frame.
    digest: of the last intact frame.
    torn_bytes: bytes after the end, of a frame that was being written.
  """

  metadata: dict[str, str]
  released: int | None
  rounds: tuple[Entry, ...]
  id_type: pa.DataType | None
  end: int
  digest: bytes
  torn_bytes: int


def path_of(log: str | os.PathLike[str]) -> pathlib.Path:
  """Returns the path of the journal that becomes a log."""
  return pathlib.Path(os.fspath(log) + SUFFIX)


def _frame(before: bytes, kind: bytes, payload: bytes) -> bytes:
  """Returns a frame after one with a digest, empty for the first; its own is its last 32 bytes."""
  content = _HEAD.pack(_MARK, kind, len(payload)) + payload
  return content + hashlib.sha256((before or _START) + content).digest()


def of_metadata(metadata: Mapping[str, str]) -> bytes:
  """Returns the payload that states the metadata."""
  return json.dumps(dict(metadata), sort_keys=True).encode()


def of_released(num_rounds: int) -> bytes:
  """Returns the payload of a release mark."""
  return num_rounds.to_bytes(8, 'little')


def of_cohort(round_index: int, timestamp: int, ids: pa.Array, chain: bytes) -> bytes:
  """Returns the payload of a round, from its UTC second, ids without nulls and chained digest."""
  if pa.types.is_integer(ids.type):
    kind, body = _NUMBERS, np.asarray(ids, '<i8').tobytes()
  else:
    raw = ids.cast(pa.large_binary())
    _, offsets, data = raw.buffers()
    bounds = np.frombuffer(offsets, np.int64)[raw.offset :][: len(raw) + 1]
    text = data.slice(int(bounds[0]), int(bounds[-1] - bounds[0])) if data is not None else b''
    kind, body = _TEXT, np.diff(bounds).astype('<i4').tobytes() + bytes(text)
  return _COHORT.pack(round_index, timestamp, kind, len(ids)) + body + chain


def _ids_of(payload: bytes) -> pa.Array:
  """Returns the device ids in a round's payload, as string or int64; ValueError if malformed."""
  *_, kind, count = _COHORT.unpack_from(payload)
  body = memoryview(payload)[_COHORT.size : -DIGEST_BYTES]
  if kind == _NUMBERS:
    if len(body) != 8 * count:
      raise ValueError('a cohort of another size than it states')
    return pa.array(np.frombuffer(body, '<i8'))
  lengths = np.frombuffer(body[: 4 * count], '<i4')
  if kind != _TEXT or lengths.size != count or (lengths < 0).any():
    raise ValueError('a cohort of another size than it states')
  text = body[4 * count :]
  bounds = np.append(0, np.cumsum(lengths, dtype=np.int64))
  if bounds[-1] != len(text) or bounds[-1] >= 2**31:
    raise ValueError('a cohort of another size than it states')
  offsets = pa.py_buffer(bounds.astype(np.int32).tobytes())
  return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(bytes(text)))


def scan(path: str, file: BinaryIO, size: int | None = None) -> Contents:
  """Reads and checks all frames, within the first `size` bytes if it is given."""
  metadata: dict[str, str] | None = None
  released: int | None = None
  id_type: pa.DataType | None = None
  rounds: list[Entry] = []
  present = file.seek(0, os.SEEK_END)
  size = present if size is None else min(size, present)
  end, digest = 0, b''
  for offset, kind, payload, frame_digest in _frames(file, size):
    try:
      if kind == METADATA:
        metadata = _metadata(payload)
      elif metadata is None:
        break
      elif kind == RELEASED:
        released = int.from_bytes(payload, 'little')
      elif kind == COHORT:
        index, timestamp, kind_of_ids, count = _COHORT.unpack_from(payload)
        if index != len(rounds):
          raise ValueError(f'round {index} follows on {len(rounds)} rounds')
        if count:
          id_type = pa.int64() if kind_of_ids == _NUMBERS else pa.string()
        rounds.append(Entry(offset, len(payload), timestamp, count, payload[-DIGEST_BYTES:]))
      else:
        raise ValueError(f'a frame of the unknown kind {kind!r}')
    except (ValueError, struct.error) as e:
      raise refusals.LogError(f'{path}: is no journal of a log, {e}') from e
    end, digest = offset + len(payload) + DIGEST_BYTES, frame_digest
  if metadata is None:
    raise refusals.LogError(f'{path}: is no journal of a log, it does not begin with metadata')
  if end < size and (place := _intact_after(file, end, size, digest)) is not None:
    raise refusals.LogError(
      f'{path}: is damaged at byte {end}, before an intact part at byte {place}; put a copy back'
    )
  return Contents(metadata, released, tuple(rounds), id_type, end, digest, size - end)


def torn(path: str, contents: Contents) -> str:
  """Returns a sentence about a journal's torn frame."""
  return (
    f'{path}: its last {contents.torn_bytes} bytes are left out: they are of a round whose writing'
    ' was cut short, or goes on; it had not begun'
  )


def _frames(file: BinaryIO, size: int) -> Iterator[tuple[int, bytes, bytes, bytes]]:
  """Yields (offset of the payload, kind, payload, digest) up to the first fault."""
  place, before = 0, _START
  while place + _HEAD.size + DIGEST_BYTES <= size:
    file.seek(place)
    head = file.read(_HEAD.size)
    mark, kind, length = _HEAD.unpack(head)
    offset = place + _HEAD.size
    if mark != _MARK or offset + length + DIGEST_BYTES > size:
      return
    payload = file.read(length)
    digest = hashlib.sha256(before + head + payload).digest()
    if file.read(DIGEST_BYTES) != digest:
      return
    yield offset, kind, payload, digest
    place, before = offset + length + DIGEST_BYTES, digest


def _intact_after(file: BinaryIO, fault: int, size: int, before: bytes) -> int | None:
  """Returns where an intact frame begins after a fault; None if there is none.

  A frame is intact if it follows on the 32 bytes before it. If these are what was
  damaged, it follows on the digest that the faulty frame should have had.
  """
  with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as data:

    def stop(place: int) -> int:
      head = data[place : place + _HEAD.size]
      return place + _HEAD.size + _HEAD.unpack(head)[2] if len(head) == _HEAD.size else size

    end = stop(fault)
    due = hashlib.sha256((before or _START) + data[fault:end]).digest()
    place = data.find(_MARK, fault + 1)
    while place >= 0:
      known = due if place == end + DIGEST_BYTES else b''
      after = stop(place)
      content, stated = data[place:after], data[after : after + DIGEST_BYTES]
      for digest in (known, data[max(place - DIGEST_BYTES, 0) : place]):
        if digest and hashlib.sha256(digest + content).digest() == stated:
          return place
      place = data.find(_MARK, place + 1)
  return None


def _metadata(payload: bytes) -> dict[str, str]:
  metadata = json.loads(payload) if len(payload) <= 2 * limits.METADATA_BYTES else None
  if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
    raise ValueError('its metadata are not keys and texts')
  return metadata


class Reader:
  """A journal that is read as a log; see `reader`."""

  def __init__(self, path: str, file: BinaryIO, size: int):
    """Opens the first `size` bytes of a journal; LogError if it is damaged."""
    self._path, self._file = path, file
    contents = scan(path, file, size)
    self._rounds = contents.rounds
    self.metadata = {
      **contents.metadata,
      keys.VERSION_KEY: str(keys.LOG_VERSION),
      keys.NUM_ROUNDS_KEY: str(len(self._rounds)),
    }
    if contents.released is not None:
      self.metadata[keys.RELEASED_KEY] = str(contents.released)
    if self._rounds:
      self.metadata[keys.CHAIN_KEY] = self._rounds[-1].chain.hex()
    if contents.torn_bytes:
      self.metadata[TORN_KEY] = torn(path, contents)
    self._id_type = contents.id_type or pa.null()
    id_type = pa.large_string() if self._id_type == pa.string() else self._id_type
    self.schema = pa.schema([('round', pa.int64()), ('device_id', id_type)])

  def tables(self) -> Iterator[pa.Table]:
    """Yields its rows in order."""
    kept, rows = list[pa.Table](), 0
    for index, entry in enumerate(self._rounds):
      if not entry.num_devices:
        continue
      self._file.seek(entry.offset)
      ids = _ids_of(self._file.read(entry.size))
      if ids.type != self._id_type:
        raise refusals.LogError(f'{self._path}: device ids are of two types')
      kept.append(pa.table({'round': np.full(len(ids), index, np.int64), 'device_id': ids}))
      rows += len(ids)
      if rows >= _BATCH_ROWS:
        yield pa.concat_tables(kept)
        kept, rows = [], 0
    if kept:
      yield pa.concat_tables(kept)


class JournalFile:
  """An open journal, which one writer at a time may append to.

  Attributes:
    path: the file.
    contents: what it held when it was opened.
  """

  def __init__(self, path: pathlib.Path):
    """Opens a journal for reading, and the first append locks it; LogError if it is damaged."""
    self.path = path
    self._descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    weakref.finalize(self, os.close, self._descriptor)
    with open(os.dup(self._descriptor), 'rb') as file:
      self.contents = scan(str(path), file)
    self._end, self._digest = self.contents.end, self.contents.digest
    self._size = self._end + self.contents.torn_bytes
    self._locked, self._process = False, os.getpid()

  @classmethod
  def begin(cls, path: pathlib.Path, frames: Iterable[tuple[bytes, bytes]]) -> 'JournalFile':
    """Writes a journal in one durable step, and holds it.

    Args:
      path: the file.
      frames: kind and payload of each, the metadata first.
    """
    digest = b''
    try:
      with durable.replacing(path, private=True, new=True) as temporary:
        with open(temporary, 'wb') as file:
          for kind, payload in frames:
            written = _frame(digest, kind, payload)
            file.write(written)
            digest = written[-DIGEST_BYTES:]
    except FileExistsError as e:
      raise ValueError(
        f'{path} was begun by another writer: a log has one writer at a time; open the log again'
      ) from e
    result = cls(path)
    result._lock()
    return result

  def append(self, kind: bytes, payload: bytes) -> int:
    """Appends a frame, durable when this returns; returns the payload's offset."""
    self.check_process()
    self._lock()
    written = _frame(self._digest, kind, payload)
    try:
      if self._size != self._end:  # What was torn would stand before the frame.
        os.ftruncate(self._descriptor, self._end)
      done = 0
      while done < len(written):
        done += os.pwrite(self._descriptor, written[done:], self._end + done)
      os.fsync(self._descriptor)
    except OSError as e:
      self._undo()
      raise OSError(e.errno, e.strerror or str(e), str(self.path)) from e
    offset = self._end + len(written) - len(payload) - DIGEST_BYTES
    self._end += len(written)
    self._size, self._digest = self._end, written[-DIGEST_BYTES:]
    return offset

  def check_process(self) -> None:
    """Raises ValueError in a process that was forked from the one that opened the journal."""
    if os.getpid() != self._process:  # Both have the lock, and would write to one place.
      raise ValueError(f'{self.path} was opened by another process, which alone may write to it')

  def ids(self, entry: Entry) -> pa.Array:
    """Returns the device ids of a round, also after the file was removed."""
    return _ids_of(os.pread(self._descriptor, entry.size, entry.offset))

  def remove(self) -> None:
    """Removes the file durably; its rounds can still be read here."""
    self.path.unlink(missing_ok=True)
    durable.sync_folder(self.path.parent)

  def _undo(self) -> None:
    try:
      os.ftruncate(self._descriptor, self._end)
      self._size = self._end
    except OSError:  # The next append tries again; readers drop a torn frame.
      self._size = -1

  def _lock(self) -> None:
    if self._locked:
      return
    try:
      fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ValueError(
        f'{self.path} is held by another writer: a log has one writer at a time'
      ) from None
    own = os.fstat(self._descriptor)
    try:
      same = os.path.samestat(own, os.stat(self.path)) and own.st_size == self._size
    except FileNotFoundError:
      same = False
    if not same:
      fcntl.flock(self._descriptor, fcntl.LOCK_UN)
      raise ValueError(
        f'{self.path} was changed by another writer since it was opened; open the log again'
      )
    self._locked = True
