"""A mark in a file of its own: how many rows of noise may have been used.

It is kept beside the noise, so that an old ledger, or an old folder of noise, is noticed.
"""

import os
import pathlib
import struct
import time
import zlib
from typing import Any

# Number of the record, rows that were used, two numbers of the caller's, the time at which it
# was written, and a checksum.
_RECORD = struct.Struct('<qqqqqI')
_SLOT = 4096  # bytes: what a disk writes whole
# Most nanoseconds between the time in a record and that of its file, whose clock is coarse.
_TOLERANCE = 200_000_000
_MOST_TRIES = 20


class LostStateError(ValueError):
  """Files are gone, damaged or copies without which rows of noise could repeat."""


class MarkFile:
  """A mark in a file of its own, which costs one write to disk.

  Two records are written in turn, so that one of them is whole at any moment. Each has the time
  at which it was written. A file that changed later, by the file system's clock, was put there by
  somebody else.

  Args:
    path: the file; made where it does not exist.

  Attributes:
    kept: two numbers that the caller keeps with the mark, each of 64 bits with a sign.
    is_put_back: whether the file was copied, put back from a backup, or given other permissions
      after it was written last.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self._path = pathlib.Path(path)
    self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
    self._rows: int | None = None
    self._number = 0  # Of the newest record, which determines its place.
    self.kept = (0, 0)
    self._ahead = 0  # Nanoseconds by which the file system's clock is ahead of this machine's.
    state, written = os.fstat(self._handle), 0
    for slot in range(2):
      record = _read(os.pread(self._handle, _RECORD.size, slot * _SLOT))
      if record is not None and record[0] > self._number:
        self._number, self._rows, *kept, written = record
        self.kept = (kept[0], kept[1])
    # After a loss of power, the time of the file may be an earlier one.
    self.is_put_back = self._rows is not None and state.st_ctime_ns > written + _TOLERANCE
    if state.st_size and self._rows is None:
      os.close(self._handle)
      raise ValueError(f'{self._path} is damaged, and alone says which rows of noise were used')

  def released(self) -> int | None:
    """Returns how many rows may have been used; None where nothing says it."""
    return self._rows

  def mark_released(self, num_rows: int) -> None:
    """Records durably how many rows may have been used, with `kept`."""
    number = self._number + 1
    for _ in range(_MOST_TRIES):
      written = time.time_ns() + self._ahead
      content = _RECORD.pack(number, num_rows, *self.kept, written, 0)[:-4]
      content += struct.pack('<I', zlib.crc32(content))
      os.pwrite(self._handle, content, number % 2 * _SLOT)
      late = os.fstat(self._handle).st_ctime_ns - written
      if abs(late) <= _TOLERANCE // 2:
        break
      self._ahead += late  # The clock is another one, or this process was held up.
    getattr(os, 'fdatasync', os.fsync)(self._handle)  # The first is not on macOS.
    self._number, self._rows = number, num_rows

  def close(self) -> None:
    os.close(self._handle)


def _read(content: bytes) -> tuple[Any, ...] | None:
  """Returns the numbers of a record; None unless it is whole."""
  if len(content) != _RECORD.size or not any(content):
    return None
  *numbers, checksum = _RECORD.unpack(content)
  return tuple(numbers) if checksum == zlib.crc32(content[:-4]) else None
