"""Rows that are made ahead of time, in the background, and the sources that they come from."""

import concurrent.futures
import functools
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from fl_dpftrl.files import durable
from fl_dpftrl.noise import integer_rows, snapshots

_Value = TypeVar('_Value')
_NICENESS = 5
# Rows of a block, and coordinates of all of them.
_MOST_AT_ONCE, _COORDINATES_AT_ONCE = 16, 1 << 17


class Made(NamedTuple):
  """Facts of a row that was made."""

  norm: float
  before: int
  after: int


_Block = list[tuple[int, np.ndarray, Made]]  # Successive rows: their numbers, values and facts.


class Source(Protocol):
  """Source of noise rows, made in this process or received in slices."""

  def make(self, row: int, out: np.ndarray, used: int) -> Made:
    """Writes a row into out, int64; rows before `used` will not be asked for again."""
    ...

  def abandon(self) -> None:
    """Ends the making of a row from another thread."""
    ...

  def close(self) -> None: ...


class Abandoned(Exception):
  """The source was closed while it made a row."""


class LocalSource:
  """Makes noise rows with a `RowMaker`, including rows before its current one."""

  def __init__(
    self,
    new_maker: Callable[[], integer_rows.RowMaker],
    saved: snapshots.Snapshots | None = None,
    snapshot_rows: int = 0,
  ):
    self._new_maker, self._snapshots = new_maker, saved
    self._snapshot_rows = snapshot_rows
    self._maker: integer_rows.RowMaker | None = None
    self._closing = False

  @classmethod
  def of(
    cls,
    path: str | os.PathLike[str] | None,
    snapshot_rows: int,
    num_rounds: int,
    recipe: dict[str, Any],
    **more: Any,
  ) -> 'LocalSource':
    """Returns the source of a `RowMaker` with snapshots in a folder, if there is one."""
    saved = None
    if path is not None:
      folder = pathlib.Path(path)
      folder.mkdir(mode=0o700, parents=True, exist_ok=True)
      folder.chmod(0o700)
      durable.remove_leftovers(folder)
      saved = snapshots.Snapshots(folder, integer_rows.identity(**recipe), num_rounds)
    new_maker = functools.partial(integer_rows.RowMaker, **recipe, num_rounds=num_rounds, **more)
    return cls(new_maker, saved, snapshot_rows)

  def make(self, row: int, out: np.ndarray, used: int) -> Made:
    maker = self._maker
    if maker is None or maker.is_torn or maker.row > row:
      if maker is not None:
        maker.close()
      self._maker = None  # Until the next is whole.
      maker = self._new_maker()
      if not maker.versions:  # Without buffers, any row can be the first.
        maker.restore(row, [])
      elif self._snapshots is not None:
        self._snapshots.load(maker, row)
      self._maker = maker
    while True:
      if self._closing:
        raise Abandoned
      t = maker.row
      if self._snapshots is not None and self._snapshot_rows and t and t % self._snapshot_rows == 0:
        self._snapshots.save(maker)
        self._snapshots.keep(used)
      previous_trail = maker.trail
      norm = maker.make(out)
      if t == row:
        return Made(norm, previous_trail, maker.trail)

  @property
  def reached(self) -> int:
    """The row that is being made, or comes next; −1 where none was begun."""
    maker = self._maker
    return -1 if maker is None else maker.row

  def abandon(self) -> None:
    self._closing = True

  def close(self) -> None:
    if self._maker is not None:
      self._maker.close()
      self._maker = None
    self._closing = False


class Ahead(Generic[_Value]):
  """Makes one row after the other in the background; `begun` is the last one, −1 before any."""

  def __init__(self, make: Callable[[int], _Value]):
    self._make = make
    self.begun = -1
    self._future: concurrent.futures.Future[_Value] | None = None

  def begin(self, row: int) -> 'concurrent.futures.Future[_Value]':
    """Starts to make a row, unless it is made already."""
    previous = self._future
    if previous and self.begun == row and not (previous.done() and previous.exception()):
      return previous
    future: concurrent.futures.Future[_Value] = concurrent.futures.Future()

    def run():
      _stand_back()
      if previous:
        concurrent.futures.wait([previous])
      try:
        future.set_result(self._make(row))
      except BaseException as error:
        future.set_exception(error)

    threading.Thread(target=run, name='noise', daemon=True).start()
    self.begun, self._future = row, future  # Only now: what never started would never end.
    return future

  def row(self, row: int) -> _Value:
    """Returns what was made for a row, once it is."""
    return self.begin(row).result()

  def wait(self) -> None:
    """Returns when nothing is being made any more."""
    if self._future:
      concurrent.futures.wait([self._future])


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
    self._last: _Block = []

  def prepare(self, seed: bytes, row: int) -> None:
    """Starts to make a row."""
    with self._lock:
      self._use(seed)
      if not self._in_last(row):
        self._ahead.begin(self._block_of(row))

  def row(self, seed: bytes, row: int) -> tuple[np.ndarray, Made]:
    """Returns a row, int64, not to be changed, and what is known of it."""
    if not 0 <= row < self._num_rounds:
      raise ValueError(f'row {row} is not among the {self._num_rounds} that there are')
    with self._lock:
      self._use(seed)
      if not self._in_last(row):
        self._last = self._ahead.row(self._block_of(row))
        if not self._in_last(row):  # The row or one before it failed: which one is told.
          self._last = self._ahead.row(row)
        following = self._last[-1][0] + 1
        if following < self._num_rounds:
          self._ahead.begin(following)
      _, values, facts = self._last[row - self._last[0][0]]
      return values, facts

  def close(self) -> None:
    """Ends what is being made, and forgets the rows."""
    with self._lock:
      if self._seed is not None:
        self._source.abandon()
        self._ahead.wait()
        self._source.close()
        self._last, self._seed = [], None

  def _in_last(self, row: int) -> bool:
    return bool(self._last) and self._last[0][0] <= row <= self._last[-1][0]

  def _block_of(self, row: int) -> int:
    """Returns the first row of the block that is being made, if the row is in it, or the row."""
    begun = self._ahead.begun
    return begun if 0 <= begun <= row < begun + self._at_once else row

  def _use(self, seed: bytes) -> None:
    if seed != self._seed:
      self._source = self._new_source(seed)
      make = functools.partial(_make, self._source, self._size, self._at_once, self._num_rounds)
      self._last, self._seed, self._ahead = [], seed, Ahead(make)


def _make(source: Source, size: int, at_once: int, num_rounds: int, first: int) -> _Block:
  """Returns rows from the first on, without those from one that fails on."""
  block: _Block = []
  used = first - at_once + 1  # Rows of the block before are in use.
  for row in range(first, min(first + at_once, num_rounds)):
    room = np.empty(size + 8, np.int64)
    values = room[-room.ctypes.data // 8 % 8 :][:size]  # Aligned: TensorFlow makes no copy.
    try:
      block.append((row, values, source.make(row, values, used)))
    except Exception:
      if not block:
        raise
      break
  return block


def _stand_back() -> None:
  """Lowers the priority of this thread and of those that it starts, below that of clients."""
  if sys.platform == 'linux':  # Where niceness is a thread's, not a process's.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
