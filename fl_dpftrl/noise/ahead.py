"""Rows that are made ahead of time, in the background, and the sources that they come from."""

import functools
import os
import sys
import threading
from collections.abc import Callable
from concurrent import futures
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.noise import integer_rows, snapshots

_NICENESS = 5
# Rows of a block, and coordinates of all of them.
_MOST_AT_ONCE, _COORDINATES_AT_ONCE = 16, 1 << 17


class Made(NamedTuple):
  """Facts of a row that was made."""

  norm: float
  before: int
  after: int


_Block = dict[int, tuple[np.ndarray, Made]]  # Successive rows: their values and facts.


class Source:
  """Source of noise rows, made in this process or received in slices."""

  _is_abandoned = False

  def make(self, row: int, out: np.ndarray, used: int) -> Made:
    """Writes a row into out, int64; rows before `used` will not be asked for again."""
    raise NotImplementedError

  def abandon(self) -> None:
    """Ends the making of a row from another thread."""
    self._is_abandoned = True

  def close(self) -> None:
    """Frees what rows are made with."""


class Abandoned(Exception):
  """The source was closed while it made a row."""


class LocalSource(Source):
  """Makes noise rows with a `RowMaker`, including rows before its current one.

  Args:
    folder: for snapshots, of the source only; None for none.
    snapshot_rows: number of rows from one snapshot to the next.
    recipe: arguments of the `RowMaker`.
  """

  def __init__(self, folder: str | os.PathLike[str] | None, snapshot_rows: int, **recipe: Any):
    self._folder, self._snapshot_rows = folder, snapshot_rows
    self._new_maker = functools.partial(integer_rows.RowMaker, **recipe)
    self._maker: integer_rows.RowMaker | None = None
    self._snapshots: snapshots.Snapshots | None = None

  def make(self, row: int, out: np.ndarray, used: int) -> Made:
    maker = self._maker
    if maker is None or maker.is_torn or maker.row > row:
      if maker is not None:
        maker.close()
      self._maker = None  # Until the next is whole.
      maker = self._new_maker()
      if not maker.versions:  # Without buffers, any row can be the first.
        maker.restore(row, [])
      elif self._folder is not None:
        self._snapshots = snapshots.Snapshots(self._folder, maker)
        self._snapshots.load(row)
      self._maker = maker
    while True:
      if self._is_abandoned:
        raise Abandoned
      t = maker.row
      if self._snapshots is not None and t and t % self._snapshot_rows == 0:
        self._snapshots.save()
        self._snapshots.keep(used)
      previous_trail = maker.trail
      norm = maker.make(out)
      if t == row:
        return Made(norm, previous_trail, maker.trail)

  def close(self) -> None:
    if self._maker is not None:
      self._maker.close()
      self._maker = None


def at_once(size: int) -> int:
  """Returns how many rows of so many coordinates are made at once."""
  return max(1, min(_MOST_AT_ONCE, _COORDINATES_AT_ONCE // size))


class Rows:
  """The rows of a seed, in memory: the next is made while the last is in use.

  Small rows are made several at once, in blocks. The last row may be asked for again. Rows before
  it are made again from a snapshot or from row 0.

  Args:
    new_source: seed → source of its rows.
  """

  def __init__(self, new_source: Callable[[bytes], Source], size: int, num_rounds: int):
    self._new_source = new_source
    self._size, self._num_rounds = size, num_rounds
    self._at_once = at_once(size)
    self._lock = threading.Lock()
    self._seed: bytes | None = None
    self._future: futures.Future[_Block] | None = None
    self._last: _Block = {}

  def prepare(self, seed: bytes, row: int) -> None:
    """Starts to make a row."""
    with self._lock:
      self._use(seed)
      if row not in self._last:
        self._begin(self._block_of(row))

  def row(self, seed: bytes, row: int) -> tuple[np.ndarray, Made]:
    """Returns a row, int64, not to be changed, and what is known of it."""
    if not 0 <= row < self._num_rounds:
      raise ValueError(f'row {row} is not among the {self._num_rounds} that there are')
    with self._lock:
      self._use(seed)
      if row not in self._last:
        self._last = self._begin(self._block_of(row)).result()
        if row not in self._last:  # The row or one before it failed: which one is told.
          self._last = self._begin(row).result()
        following = max(self._last) + 1
        if following < self._num_rounds:
          self._begin(following)
      return self._last[row]

  def close(self) -> None:
    """Ends what is being made, and forgets the rows."""
    with self._lock:
      if self._seed is not None:
        self._source.abandon()
        if self._future:
          futures.wait([self._future])
        self._source.close()
        self._last, self._seed = {}, None

  def _use(self, seed: bytes) -> None:
    if seed != self._seed:
      self._source = self._new_source(seed)
      self._last, self._seed = {}, seed
      self._begun, self._future = -1, None  # The block that is being made, and its rows.

  def _block_of(self, row: int) -> int:
    """Returns the first row of the block that is being made, if the row is in it, or the row."""
    begun = self._begun
    return begun if 0 <= begun <= row < begun + self._at_once else row

  def _begin(self, first: int) -> 'futures.Future[_Block]':
    """Starts to make a block after the one before, unless it is made already."""
    source, previous = self._source, self._future
    if previous and self._begun == first and not (previous.done() and previous.exception()):
      return previous
    future: futures.Future[_Block] = futures.Future()

    def run():
      _stand_back()
      if previous:
        futures.wait([previous])
      try:
        future.set_result(self._made(source, first))
      except BaseException as error:
        future.set_exception(error)

    threading.Thread(target=run, name='noise', daemon=True).start()
    self._begun, self._future = first, future  # Only now: what never started would never end.
    return future

  def _made(self, source: Source, first: int) -> _Block:
    """Returns rows from the first on, without those from one that fails on."""
    block: _Block = {}
    used = first - self._at_once + 1  # Rows of the block before are in use.
    for row in range(first, min(first + self._at_once, self._num_rounds)):
      room = np.empty(self._size + 8, np.int64)
      values = room[-room.ctypes.data // 8 % 8 :][: self._size]  # Aligned: TensorFlow copies none.
      try:
        block[row] = values, source.make(row, values, used)
      except Exception:
        if not block:
          raise
        break
    return block


def _stand_back() -> None:
  """Lowers the priority of this thread and of those that it starts, below that of clients."""
  if sys.platform == 'linux':  # Where niceness is a thread's, not a process's.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
