"""Arrays of numbers in an .npz that somebody else wrote, read within limits.

An .npz is a zip, of which a few bytes can claim any size. Size, type and shape of an array are
read first, and it is unpacked only where they fit each other.
"""

import math
import os
import stat
import zipfile
from typing import BinaryIO

import numpy as np

MOST_BYTES = 2**29
"""Size of an array, and of a file: 512 MiB."""

_MOST_DIRECTORY = 2**16  # bytes of the list of the members
_COMPRESSION = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_END, _END_SIZE = b'PK\x05\x06', 22
_LARGE_END, _LARGE_END_SIZE = b'PK\x06\x07', 20
_KINDS = 'iuf'  # of numbers


def read(path: str | os.PathLike[str], name: str) -> np.ndarray:
  """Returns an array of an .npz, which numpy.savez wrote."""
  # Asked once: between two questions another file may take its place.
  if not stat.S_ISREG(os.stat(path).st_mode):
    raise ValueError('it is not a file')
  # Opened once, so that all is of one file where another takes its place.
  with open(path, 'rb') as stream:
    return _read(stream, name)


def _read(stream: BinaryIO, name: str) -> np.ndarray:
  try:
    _check_directory(stream)
    with zipfile.ZipFile(stream) as archive:
      return _member(archive, name)
  except (_RefusedError, MemoryError) as error:
    raise ValueError(str(error)) from None
  # Broken bytes can end in nearly any exception.
  except Exception as error:
    raise ValueError(f'it is cut short or no .npz: {error}') from None


class _RefusedError(Exception):
  pass


def _check_directory(stream: BinaryIO) -> None:
  """Refuses a file, or a list of members, of any size."""
  size = stream.seek(0, os.SEEK_END)
  if size > MOST_BYTES:
    raise _RefusedError(f'it has {size} bytes, the most there may be is {MOST_BYTES}')
  stream.seek(max(0, size - _END_SIZE - _LARGE_END_SIZE))
  last = stream.read()
  end = last[-_END_SIZE:]
  if end[:4] != _END or last[:4] == _LARGE_END:
    raise _RefusedError('it is cut short or no .npz: its end is not that of one')
  if int.from_bytes(end[12:16], 'little') > _MOST_DIRECTORY:
    raise _RefusedError('it has too many arrays')


def _member(archive: zipfile.ZipFile, name: str) -> np.ndarray:
  member = f'{name}.npy'
  if member not in archive.namelist():
    raise _RefusedError(f'it has no array of the name {name}')
  info = archive.getinfo(member)
  if info.compress_type not in _COMPRESSION:
    raise _RefusedError(f'{name} is packed in a way that NumPy does not use')
  if info.file_size > MOST_BYTES:
    raise _RefusedError(f'{name} has {info.file_size} bytes, the most there may be is {MOST_BYTES}')
  with archive.open(info) as stream:
    version = np.lib.format.read_magic(stream)
    read_header = {
      (1, 0): np.lib.format.read_array_header_1_0,
      (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
      raise _RefusedError(f'{name} is of version {version} of its format')
    shape, _, dtype = read_header(stream)
    if dtype.kind not in _KINDS:
      raise _RefusedError(f'{name} holds {dtype}, which are no numbers')
    if stream.tell() + math.prod(shape) * dtype.itemsize != info.file_size:
      raise _RefusedError(
        f'{name} has {info.file_size} bytes, which are not those of its shape {shape}'
      )
  with archive.open(info) as stream:
    values = np.lib.format.read_array(stream, allow_pickle=False)
    if stream.read(1):  # Checks the sum over the bytes at its end.
      raise _RefusedError(f'{name} has more bytes than its shape')
  return values
