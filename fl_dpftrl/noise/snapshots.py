"""Buffers on disk, each written once, so that few rows are made again.

A snapshot is a list of buffer files with their checksums. Buffers that did not
change since an earlier snapshot are not written again. Nothing depends on a
snapshot being there: whatever is damaged or missing is passed over, and the rows
since an older one, or since row 0, are made again from the seed.
"""

import os
import pathlib
import re
import zlib

import numpy as np

from fl_dpftrl.noise import integer_rows
from fl_dpftrl.support.files import durable

_NAME = re.compile(r'before-(\d{9})\.json')
# A snapshot: the checksum of each buffer's file, by its name, and the maker's trail.
_Listed = tuple[dict[str, int], int]


class Snapshots:
  """The snapshots of one maker's buffers, in a folder that is made where it does not exist."""

  def __init__(self, folder: str | os.PathLike[str], maker: integer_rows.RowMaker):
    self._folder, self._maker = pathlib.Path(folder), maker
    self._of = {'identity': maker.identity, 'num_rounds': maker.num_rounds}
    self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    self._folder.chmod(0o700)
    durable.remove_leftovers(self._folder)

  def rows(self) -> list[int]:
    """Returns the rows before which there is a snapshot."""
    matches = (_NAME.fullmatch(path.name) for path in self._folder.iterdir())
    return sorted(int(match[1]) for match in matches if match)

  def save(self) -> None:
    """Writes the buffers that no file holds yet, then the list of them all."""
    maker = self._maker
    if maker.row in self.rows():
      return
    earlier: dict[str, int] = {}
    for row in self.rows():
      earlier |= self._read(row)[0]
    listed = {}
    for buffer, version in enumerate(maker.versions):
      if version < 0:
        continue
      name = f'buffer-{buffer}-{version}'
      if name not in earlier:
        content = memoryview(maker.buffers[buffer]).cast('B')
        earlier[name] = zlib.crc32(content)
        with durable.replacing(self._folder / name, private=True, durable=False) as path:
          path.write_bytes(content)
      listed[name] = earlier[name]
    about = {**self._of, 'buffers': listed, 'trail': maker.trail}
    durable.write(self._list(maker.row), about, durable=False)

  def load(self, row: int) -> None:
    """Brings the maker, if it is new, to the latest readable snapshot up to a row."""
    maker = self._maker
    for snapshot_row in reversed([r for r in self.rows() if r <= row]):
      listed, trail = self._read(snapshot_row)
      versions = self._fill(listed)
      if listed and versions is not None:
        maker.restore(snapshot_row, versions, trail)
        return
    maker.buffers[:] = 0.0

  def keep(self, row: int) -> None:
    """Deletes the snapshots that a run resumed at a row will not need."""
    rows = self.rows()
    needed = [r for r in rows if r <= row][-2:] + [r for r in rows if r > row]
    for r in set(rows) - set(needed):
      self._list(r).unlink(missing_ok=True)
    names = {name for r in needed for name in self._read(r)[0]}
    for path in self._folder.glob('buffer-*'):
      if path.name not in names:
        path.unlink(missing_ok=True)

  def _fill(self, listed: dict[str, int]) -> list[int] | None:
    """Reads buffers from their files, and returns their versions; None if a file will not do."""
    maker, versions = self._maker, [-1] * len(self._maker.buffers)
    maker.buffers[:] = 0.0
    for name, checksum in listed.items():
      _, buffer, version = name.split('-')
      try:
        values = np.fromfile(self._folder / name, maker.buffers.dtype)
      except OSError:
        return None
      if values.size != maker.size or zlib.crc32(values.data) != checksum:
        return None
      maker.buffers[int(buffer)], versions[int(buffer)] = values, int(version)
    return versions

  def _read(self, row: int) -> _Listed:
    """Returns what a snapshot lists; nothing where it cannot be read."""
    try:
      about = durable.read(self._list(row))
      if {name: about[name] for name in self._of} == self._of:
        return dict(about['buffers']), int(about['trail'])
    except (OSError, ValueError, KeyError, TypeError):
      pass
    return {}, 0

  def _list(self, row: int) -> pathlib.Path:
    return self._folder / f'before-{row:09d}.json'
