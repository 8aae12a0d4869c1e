"""The trail of a folder of noise: the row after one that was given out, and what came before it."""

import os
import struct
import zlib

NAME = 'trail'
"""Name of the file in the folder."""

# Row, what the rows before it add up to, and a checksum.
_FORMAT = struct.Struct('<qQI')
SIZE = _FORMAT.size
"""Bytes of a trail."""


def packed(row: int, total: int) -> bytes:
  """Returns a trail: row, and the sum of all rows before it, modulo 2⁶⁴."""
  content = _FORMAT.pack(row, total, 0)[:-4]
  return content + struct.pack('<I', zlib.crc32(content))


def unpacked(content: bytes) -> tuple[int, int] | None:
  """Returns row and sum of a trail; None for one that is damaged."""
  if len(content) != SIZE:
    return None
  row, total, _ = _FORMAT.unpack(content)
  return (row, total) if row >= 0 and content == packed(row, total) else None


def num_rows(folder: str | os.PathLike[str]) -> int:
  """Returns how many rows were given out at least; 0 where the trail cannot be read."""
  try:
    with open(os.path.join(folder, NAME), 'rb') as file:
      return (unpacked(file.read(SIZE)) or (0, 0))[0]
  except OSError:
    return 0
