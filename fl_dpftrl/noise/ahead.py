"""Rows that are made ahead of time or when they are needed, and the sources that they come from."""

import contextlib
import functools
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any, NamedTuple, cast

import numpy as np

from fl_dpftrl.noise import integer_rows, snapshots
from fl_dpftrl.support import callers

_NICENESS = 5
_QUICK_SECONDS = 1e-3  # of a row that is not worth a thread


class Made(NamedTuple):
  """Facts of a row that was made."""

  norm: float
  before: int
  after: int


_Row = tuple[np.ndarray, Made]


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

  Nothing depends on snapshots: where one cannot be written, a warning says so once.

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
    self._has_warned = False

  def make(self, row: int, out: np.ndarray, used: int) -> Made:
    maker = self._maker
    if maker is None or maker.is_torn or maker.row > row:
      self._maker = None  # Until the next is whole.
      if maker is not None:
        maker.close()
      maker = self._new_maker()
      if not maker.versions:  # Without buffers, any row can be the first.
        maker.restore(row, [])
      elif self._folder is not None:
        with self._warning_once():
          self._snapshots = snapshots.Snapshots(self._folder, maker)
          self._snapshots.load(row)
      self._maker = maker
    while True:
      if self._is_abandoned:
        raise Abandoned
      t = maker.row
      if self._snapshots is not None and t and t % self._snapshot_rows == 0:
        with self._warning_once():
          self._snapshots.save()
          self._snapshots.keep(used)
      previous_trail = maker.trail
      norm = maker.make(out)
      if t == row:
        return Made(norm, previous_trail, maker.trail)

  @contextlib.contextmanager
  def _warning_once(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      if not self._has_warned:
        self._has_warned = True
        callers.warn(
          f'no snapshot of noise can be kept in {self._folder} ({error.strerror or error}): the'
          ' next start makes more rows again'
        )

  def close(self) -> None:
    if self._maker is not None:
      self._maker.close()
      self._maker = None


class Rows:
  """The rows of a seed, in memory: the next is made while the last is in use, or when it is needed.

  That is where rows take less than a millisecond: threads would wait for each other longer. The
  last row may be asked for again. Rows before it are made again from a snapshot or from row 0.

  Args:
    new_source: seed → source of its rows.
  """

  def __init__(self, new_source: Callable[[bytes], Source], size: int, num_rounds: int):
    self._new_source = new_source
    self._size, self._num_rounds = size, num_rounds
    self._lock = threading.Lock()
    self._seed: bytes | None = None
    self._row, self._last = -1, cast(Any, None)
    self._rooms: list[tuple[mmap.mmap, weakref.ref[np.ndarray]]] = []  # Memory, and who has it.
    self._choosing = threading.Lock()
    self._future: futures.Future[_Row] | None = None

  def prepare(self, seed: bytes, row: int, *, now: bool = False) -> None:
    """Starts to make a row in the background; a quick one is only made now, if at all."""
    with self._lock:
      self._use(seed)
      if row != self._row and (now or not self._is_quick):
        self._begin(row, here=self._is_quick)

  def row(self, seed: bytes, row: int) -> tuple[np.ndarray, Made]:
    """Returns a row, int64, not to be changed, and what is known of it."""
    if not 0 <= row < self._num_rounds:
      raise ValueError(f'row {row} is not among the {self._num_rounds} that there are')
    with self._lock:
      self._use(seed)
      if row != self._row:
        self._last, self._row = self._begin(row, here=self._is_quick).result(), row
        if not self._is_quick and row + 1 < self._num_rounds:
          self._begin(row + 1)
      return self._last

  def close(self) -> None:
    """Ends what is being made, and forgets the rows."""
    with self._lock:
      if self._seed is not None:
        self._source.abandon()
        if self._future:
          futures.wait([self._future])
        self._source.close()
        self._seed = self._last = self._future = None
        self._rooms = []

  def _use(self, seed: bytes) -> None:
    if seed != self._seed:
      self._source, self._is_quick = self._new_source(seed), False
      self._seed, self._row, self._last = seed, -1, None
      self._begun, self._future = -1, None  # The row that is being made.

  def _begin(self, row: int, *, here: bool = False) -> 'futures.Future[_Row]':
    """Makes a row in the background, or here, after the one before, unless it is begun."""
    source, previous = self._source, self._future
    if previous and self._begun == row and not (previous.done() and previous.exception()):
      return previous
    future: futures.Future[_Row] = futures.Future()
    turn = threading.Lock()  # Whoever gets it decides whether the row is made.

    def run():
      if not turn.acquire(blocking=False):
        return
      if not here:
        _stand_back()
      if previous:
        futures.wait([previous])
      try:
        future.set_result(self._made(source, row))
      except BaseException as error:
        if here and not isinstance(error, Exception):  # Ctrl-C, which is the caller's.
          raise
        future.set_exception(error)

    if not here:
      try:
        threading.Thread(target=run, name='noise', daemon=True).start()
      except RuntimeError:  # There can be no more threads.
        here = True
      except BaseException:  # An interrupt, before or after the thread was started.
        if not turn.acquire(blocking=False):
          self._begun, self._future = row, future  # No other may use the source meanwhile.
        raise
    if here:
      run()
    self._begun, self._future = row, future  # Only now: what never started would never end.
    return future

  def _made(self, source: Source, row: int) -> _Row:
    start, values = time.perf_counter(), self._room()
    facts = source.make(row, values, row - 1)  # Which may be asked for again.
    self._is_quick = time.perf_counter() - start < _QUICK_SECONDS
    return values, facts

  def _room(self) -> np.ndarray:
    """Returns memory, that of an earlier row if nobody has it: new memory has to be cleared.

    It begins with a page, so that TensorFlow copies none, and goes back to the system.
    """
    with self._choosing:
      unused = [memory for memory, shown in self._rooms if shown() is None]
      memory = unused[0] if unused else mmap.mmap(-1, 8 * self._size, access=mmap.ACCESS_COPY)
      # Whatever shows a part of it refers to this array: NumPy sees none beyond.
      room = np.frombuffer(memory, np.int64)
      others = [pair for pair in self._rooms if pair[0] is not memory]
      self._rooms = [*others, (memory, weakref.ref(room))][-2:]
      return room


def _stand_back() -> None:
  """Lowers the priority of this thread and of those that it starts, below that of clients."""
  if sys.platform == 'linux':  # Where niceness is a thread's, not a process's.
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
