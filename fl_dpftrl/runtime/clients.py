"""Runs the clients of a round at the same time, and takes them in their order."""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeAlias

from tensorflow.python.eager import cancellation

from fl_dpftrl.runtime import failures, threads

# How long an interrupted round waits for an operation that is under way.
_PATIENCE_SECONDS = 5.0

Work: TypeAlias = Callable[[int, cancellation.CancellationManager], Any]


class Stop:
  """Ends running and future rounds from another thread."""

  def __init__(self):
    self._asked = False
    self._under_way: set[Callable[[], None]] = set()

  def ask(self) -> None:
    self._asked = True
    for cancel in tuple(self._under_way):
      cancel()

  def check(self) -> None:
    """Raises RuntimeError if a stop was requested."""
    if self._asked:
      raise RuntimeError('the round was stopped')

  @contextlib.contextmanager
  def told_to(self, cancel: Callable[[], None]) -> Iterator[None]:
    """Calls cancel if a stop is requested within the block."""
    self._under_way.add(cancel)
    try:
      self.check()
      yield
    finally:
      self._under_way.discard(cancel)


def in_order(
  work: Work, num_clients: int, num_threads: int, stop: Stop | None = None
) -> Generator[Any, None, None]:
  """Yields work(0), work(1), …, of which several are computed at the same time.

  Results that wait for an earlier one, and clients that train, are at most twice
  num_threads together, however much slower one of them is. Where one fails, or
  whoever takes the results goes away, the others are cancelled. Clients before one that
  fails are waited for: the error is that of the first place, each time the same.

  Args:
    work: of one client, by TensorFlow, with what cancels it.
    num_clients: how many.
    num_threads: that work at the same time, at least 1.
    stop: ends the round with a RuntimeError where it is asked for.

  Raises:
    Exception: that a client raised, with its place in the message.
  """
  stop = stop or Stop()
  round_ = _Round(work, num_clients, 2 * num_threads)
  with stop.told_to(round_.stop):
    ends = [threads.start(round_.run) for _ in range(min(num_threads, num_clients))]
    try:
      for index in range(num_clients):
        yield round_.take(index)
    finally:
      round_.stop()
      for ended in ends:
        ended.wait(_PATIENCE_SECONDS)
  stop.check()


class _Round:
  """Clients of a round that are under way, done and taken."""

  def __init__(self, work: Work, num_clients: int, window: int):
    self._work, self._num_clients, self._window = work, num_clients, window
    self._changed = threading.Condition()
    self._next, self._taken, self._stopped = 0, 0, False
    # Clients before this one are begun; a failure leaves out those after it.
    self._end = num_clients
    self._under_way: dict[int, cancellation.CancellationManager] = {}
    self._done: dict[int, tuple[Any, BaseException | None]] = {}

  def run(self) -> None:
    """Trains clients until none are left; the task of a thread."""
    while (index := self._begin()) is not None:
      try:
        outcome: tuple[Any, BaseException | None] = self._work(index, self._under_way[index]), None
      except BaseException as error:
        outcome = None, error
      with self._changed:
        del self._under_way[index]
        self._done[index] = outcome
        if outcome[1] is not None:
          self._end = min(self._end, index)
        self._changed.notify_all()
      del outcome

  def _begin(self) -> int | None:
    with self._changed:
      while not self._stopped and self._next < self._end:
        if self._next < self._taken + self._window:
          self._next += 1
          self._under_way[self._next - 1] = cancellation.CancellationManager()
          return self._next - 1
        self._changed.wait()
    return None

  def take(self, index: int) -> Any:
    with self._changed:
      while index not in self._done and not self._stopped:
        self._changed.wait()
      if self._stopped:  # First: what was under way has failed because of it.
        raise RuntimeError('the round was stopped')
      result, error = self._done.pop(index)
      self._taken = index + 1
      self._changed.notify_all()
    if error is not None:
      raise failures.placed(error, f'client {index}, counted from 0, of {self._num_clients}')
    return result

  def stop(self) -> None:
    """Begins no other client, and cancels those that are under way."""
    with self._changed:
      self._stopped = True
      under_way = list(self._under_way.values())
      self._changed.notify_all()
    for manager in under_way:
      with contextlib.suppress(Exception):
        manager.start_cancel()
