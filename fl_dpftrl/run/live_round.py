"""Rounds of a run that goes on: one is open at a time, and each ends once."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self, cast

from fl_dpftrl.logs import id_columns
from fl_dpftrl.run import admission
from fl_dpftrl.run.observers import observer
from fl_dpftrl.support.files import durable


class NotOpenError(ValueError):
  """A round that has not begun, or has ended."""


class Turns:
  """Lets one round of a run be open at a time, whichever threads begin rounds.

  Attributes:
    lock: lock of rounds that begin.
    observers: observers of the run.
    open_round: the round that has begun and not ended; None between rounds.
  """

  def __init__(self, folder: str | os.PathLike[str], observers: observer.Observers):
    self.lock, self.observers = durable.ThreadLock(folder), observers
    self.open_round: LiveRound | None = None
    self._is_closed = False

  def check(self) -> None:
    """Raises ValueError if the run is closed, or a round is open."""
    if self._is_closed:
      raise ValueError('the run is closed; open it again to go on')
    if self.open_round is not None:
      raise ValueError(f'round {self.open_round.index} is still open')

  def close(self) -> None:
    """Fails the round that is open, and lets no other begin."""
    self._is_closed = True
    if self.open_round is not None:
      with contextlib.suppress(ValueError):  # Another thread ends it meanwhile.
        self.open_round.fail()


class LiveRound(contextlib.AbstractContextManager[Any]):
  """A round of a run, which begins once, and ends once: with a release, or as one that failed.

  Attributes:
    index: number of the round; None before it is recorded.
    device_ids: devices of the round.
    is_open: whether it has begun and not ended.
  """

  def __init__(
    self,
    run: Any,
    turns: Turns,
    admit: Callable[[], admission.Admission],
    device_ids: id_columns.Ids,
    index: int | None = None,
  ):
    """Makes a round that `begin` records, by `admit`, or one that is recorded, with its index."""
    self._admit, self.index = admit, cast(int, index)
    self.device_ids: Any = device_ids
    self.is_open = self._has_begun = False
    self._run, self._turns, self._lock = run, turns, durable.ThreadLock(run.folder)
    self._measurements: Mapping[str, Any] | None = None  # They are there once it has released.

  def __repr__(self) -> str:
    ended = 'failed' if self._measurements is None else 'released'
    state = 'open' if self.is_open else ended if self._has_begun else 'not begun'
    return f'{type(self).__name__}({self.index}, {len(self.device_ids)} devices, {state})'

  def __enter__(self) -> Self:
    return self.begin()

  def __exit__(self, kind: type | None, error: BaseException | None, *unused: Any) -> None:
    with contextlib.suppress(NotOpenError):  # It was released, or another thread ends it.
      self.fail(error)

  @durable.letting_go
  def begin(self) -> Self:
    """Admits the devices and records them durably, for loops in which no block can span a round.

    Raises:
      ValueError, BudgetSpentError, OSError: see `round` of the run.
    """
    try:
      with self._turns.lock:
        if self._has_begun:
          raise ValueError(f'round {self.index} was entered before: a round is one block')
        admitted = self._admit()
        self.index, self.device_ids = admitted.round_index, admitted.device_ids
        self._has_begun = True
        self._prepare(admitted)
        # In this order: whoever is open can be failed.
        self.is_open, self._turns.open_round = True, self
      self._turns.observers.begin(self._run, self.index)
      return self
    except BaseException as error:  # No `__exit__` follows.
      if self.is_open:
        self.fail(error)
      raise

  @durable.letting_go
  def fail(self, error: BaseException | None = None) -> None:
    """Ends the round without a release; its row of noise is used up.

    Args:
      error: why, for observers.

    Raises:
      ValueError: for a round that is not open, such as one that another thread has ended.
    """
    with self._ended(error):
      self._discard()

  def _prepare(self, admitted: admission.Admission) -> None:
    """Makes all ready for a round whose cohort is recorded."""

  def _discard(self) -> None:
    """Lets go what belongs to a round that failed."""

  @contextlib.contextmanager
  def _ended(self, error: BaseException | None = None) -> Iterator[None]:
    """Ends the round with the block; no other thread adds, ends or begins a round within it."""
    with contextlib.ExitStack() as unlocked:
      with self._lock:
        if not self.is_open:
          raise NotOpenError(f'round {self.index} is not open: it ended before, or never began')
        try:
          self.is_open = False
          unlocked.callback(lambda: self._observe(error))
          yield
        except Exception as raised:
          error = raised
          raise
        finally:
          self._turns.open_round = None

  def _observe(self, error: BaseException | None) -> None:
    """Calls the observers after the round."""
    observers = self._turns.observers
    if self._measurements is None:
      observers.end(self._run, self.index, error)
    else:
      observers.released(self._run, self.index, self._measurements)
