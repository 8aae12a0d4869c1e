"""Sources of noise rows: buffers in memory, a snapshot, or the seed."""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from fl_dpftrl.noise.engine import maker as makers
from fl_dpftrl.noise.engine import snapshots


class Source(Protocol):
  """Source of noise rows, made in this process or received in slices."""

  def make(self, row: int, out: np.ndarray, used: int) -> float:
    """Writes a row into out, float32, and returns its standard deviation.

    Rows before `used` will not be asked for again.
    """
    ...

  def abandon(self) -> None:
    """Ends the making of a row from another thread."""
    ...

  def close(self) -> None: ...


class Abandoned(Exception):
  """The source was closed while it made a row."""


class LocalSource:
  """Makes noise rows with a `RowMaker`, including rows before its current one.

  Args:
    new_maker: returns a `RowMaker` that starts from row 0.
    saved: snapshots of the maker; None for none.
    snapshot_rows: rows between two snapshots; 0 writes none.
  """

  def __init__(
    self,
    new_maker: Callable[[], makers.RowMaker],
    saved: snapshots.Snapshots | None = None,
    snapshot_rows: int = 0,
  ):
    self._new_maker, self._snapshots = new_maker, saved
    self._snapshot_rows = snapshot_rows
    self._maker: makers.RowMaker | None = None
    self._closing = False

  def make(self, row: int, out: np.ndarray, used: int) -> float:
    """See `Source`.

    Raises:
      Abandoned: if it was closed meanwhile.
    """
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
      stddev = maker.make(out)
      if t == row:
        return stddev

  @property
  def reached(self) -> int:
    """The row that is being made, or comes next; −1 where none was begun."""
    maker = self._maker
    return -1 if maker is None else maker.row

  def abandon(self) -> None:
    """See `Source`."""
    self._closing = True

  def close(self) -> None:
    if self._maker is not None:
      self._maker.close()
      self._maker = None
    self._closing = False
