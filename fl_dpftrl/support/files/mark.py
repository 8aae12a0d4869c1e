"""A mark in a file of its own: how many rounds of a run were begun, which, and of which run.

A round that was begun is used up, and its row of noise with it. The mark says so outside the ledger
and outside the noise, so that an old ledger, a write-ahead log that is gone or damaged, and an old
folder of noise are noticed.
"""

import contextlib
import os
import pathlib
import struct
import time
import weakref
import zlib
from typing import Any, NamedTuple

NO_HEAD = bytes(32)
NO_RUN = bytes(16)

# Number of the record, rounds, head, run, two numbers of the file of the seed, number of the mark's
# own file, whether it is suspect, the time at which it was written, and a checksum.
_RECORD = struct.Struct('<qq32s16sqqq?qI')
_SLOT = 4096  # bytes: what a disk writes whole
# Most nanoseconds between the time in a record and that of its file, whose clock is coarse.
TOLERANCE = 200_000_000
_MOST_TRIES = 20
_LATEST = 2**63 - 1


class LostStateError(ValueError):
  """Files are gone, damaged or copies without which rows of noise could repeat."""


class Record(NamedTuple):
  """Record of a mark.

  Attributes:
    number: counts the records of the file, and determines the place of each.
    num_rounds: rounds that were begun, whose rows of noise may have been used.
    head: chained digest of these rounds, 32 bytes; zeros without a ledger.
    run: random identity of the run, 16 bytes; zeros without a ledger.
    seed_file: two numbers that identify the file of the noise's seed; zeros without noise.
    inode: number of the mark's own file.
    is_suspect: whether the file was another one, or changed later, when it was opened before.
    written: when it was written, in nanoseconds since 1970.
  """

  number: int
  num_rounds: int
  head: bytes = NO_HEAD
  run: bytes = NO_RUN
  seed_file: tuple[int, int] = (0, 0)
  inode: int = 0
  is_suspect: bool = False
  written: int = 0


class MarkFile:
  """A mark in a file of its own, which costs one write to disk.

  Two records are written in turn, so that one of them is whole at any moment. Each has the time
  at which it was written. A file that changed later, by the file system's clock, was put there by
  somebody else.

  Args:
    path: the file; made where it does not exist.

  Attributes:
    record: the newest record; None before the first.
    is_suspect: whether the file is another one than its newest record was written to, or was found
      suspect before: it is a copy.
    late: nanoseconds by which the file was changed after its newest record was written: it was
      put back from a backup, or given other permissions, unless the process that wrote it was held
      up and ended there.
    close: function that lets the file go.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self._path = pathlib.Path(path)
    self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
    self.close = weakref.finalize(self, os.close, self._handle)
    self._ahead = 0  # Nanoseconds by which the file system's clock is ahead of this machine's.
    self.late, self.is_suspect = 0, False
    try:
      self.record = _newest(self._path, self._handle)
    except BaseException:
      self.close()
      raise
    if self.record is not None:
      # After a loss of power, the time of the file may be an earlier one.
      state = os.fstat(self._handle)
      self.late = state.st_ctime_ns - self.record.written
      self.is_suspect = self.record.is_suspect or state.st_ino != self.record.inode

  @property
  def num_rounds(self) -> int:
    """Rounds that were begun; 0 before the first record."""
    return 0 if self.record is None else self.record.num_rounds

  def drop(self) -> None:
    """Lets the file go; removes one that has no record, whose start was refused."""
    if self.record is None and self.close.alive:  # Later, it may be another process's.
      with contextlib.suppress(FileNotFoundError):
        self._path.unlink()
    self.close()

  def trust(self, **changes: Any) -> None:
    """Records durably what has changed, and that the file is neither a copy nor changed later."""
    self.late, self.is_suspect = 0, False
    self.write(**changes)

  def write(self, **changes: Any) -> None:
    """Records durably what has changed, such as `num_rounds` and `head`."""
    previous = Record(0, 0) if self.record is None else self.record
    number = previous.number + 1
    changes['is_suspect'] = self.is_suspect or self.late > TOLERANCE
    changes['inode'] = os.fstat(self._handle).st_ino
    try:
      for _ in range(_MOST_TRIES):
        written = time.time_ns() + self._ahead
        if written > _LATEST:
          raise ValueError(f'the clock must be before the year 2262 to write {self._path}')
        record = previous._replace(number=number, written=written, **changes)
        os.pwrite(self._handle, _packed(record), number % 2 * _SLOT)
        late = os.fstat(self._handle).st_ctime_ns - written
        if abs(late) <= TOLERANCE // 2:
          break
        self._ahead += late  # The clock is another one, or this process was held up.
      getattr(os, 'fdatasync', os.fsync)(self._handle)  # The first is not on macOS.
    except OSError as error:
      raise OSError(error.errno, error.strerror, str(self._path)) from error
    self.record = record


def read(path: str | os.PathLike[str]) -> Record | None:
  """Returns the newest record of a mark that another process may write; None without any.

  LostStateError if the file is damaged.
  """
  try:
    handle = os.open(path, os.O_RDONLY)
  except FileNotFoundError:
    return None
  try:
    return _newest(path, handle)
  finally:
    os.close(handle)


def _newest(path: str | os.PathLike[str], handle: int) -> Record | None:
  records = [_read(os.pread(handle, _RECORD.size, slot * _SLOT)) for slot in range(2)]
  whole = [record for record in records if record is not None]
  if not whole and os.fstat(handle).st_size:
    raise LostStateError(f'{path} is damaged, and only it says which rounds were begun')
  return max(whole, default=None)


def _packed(record: Record) -> bytes:
  number, num_rounds, head, run, seed_file, *others = record
  content = _RECORD.pack(number, num_rounds, head, run, *seed_file, *others, 0)[:-4]
  return content + struct.pack('<I', zlib.crc32(content))


def _read(content: bytes) -> Record | None:
  """Returns a record; None unless it is whole."""
  if len(content) != _RECORD.size or not any(content):
    return None
  *values, checksum = _RECORD.unpack(content)
  if checksum != zlib.crc32(content[:-4]):
    return None
  number, num_rounds, head, run, inode, changed, *others = values
  return Record(number, num_rounds, head, run, (inode, changed), *others)
