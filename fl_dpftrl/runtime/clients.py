"""Runs the clients of a round at the same time, and takes them in their order."""

import contextlib
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from tensorflow.python.eager import cancellation

from fl_dpftrl.runtime import threads

# How long an interrupted round waits for an operation that is under way.
_PATIENCE_SECONDS = 5.0


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
  work: Callable[[int], Any], num_clients: int, num_threads: int, stop: Stop | None = None
) -> Generator[Any, None, None]:
  """Yields work(0), work(1), …, of which several are computed at the same time.

  Results that wait for an earlier one, and clients that train, are at most twice
  num_threads together, however much slower one of them is. Where one fails, or
  whoever takes the results goes away, the others are cancelled.

  Args:
    work: of one client, by TensorFlow.
    num_clients: how many.
    num_threads: that work at the same time, at least 1.
    stop: ends the round with a RuntimeError where it is asked for.
  """
  stop = stop or Stop()
  round_ = _Round(work, num_clients, 2 * num_threads)
  manager = cancellation.CancellationManager()

  def cancel():
    round_.stop()
    with contextlib.suppress(Exception):
      manager.start_cancel()

  with cancellation.CancellationManagerContext(manager), stop.told_to(cancel):
    ends = [threads.start(round_.run) for _ in range(min(num_threads, num_clients))]
    try:
      for index in range(num_clients):
        yield round_.take(index)
    except BaseException:
      cancel()
      raise
    finally:
      round_.stop()
      for ended in ends:
        ended.wait(_PATIENCE_SECONDS)
  stop.check()


class _Round:
  """Clients of a round that are under way, done and taken."""

  def __init__(self, work: Callable[[int], Any], num_clients: int, window: int):
    self._work, self._num_clients, self._window = work, num_clients, window
    self._changed = threading.Condition()
    self._next, self._taken, self._stopped = 0, 0, False
    self._done: dict[int, tuple[Any, BaseException | None]] = {}

  def run(self) -> None:
    """Trains clients until none are left; the task of a thread."""
    while (index := self._begin()) is not None:
      try:
        outcome: tuple[Any, BaseException | None] = self._work(index), None
      except BaseException as error:
        outcome = None, error
      with self._changed:
        self._done[index] = outcome
        self._changed.notify_all()
      del outcome

  def _begin(self) -> int | None:
    with self._changed:
      while not self._stopped and self._next < self._num_clients:
        if self._next < self._taken + self._window:
          self._next += 1
          return self._next - 1
        self._changed.wait()
    return None

  def take(self, index: int) -> Any:
    with self._changed:
      while index not in self._done:
        if self._stopped:
          raise RuntimeError('the round was stopped')
        self._changed.wait()
      result, error = self._done.pop(index)
      self._taken = index + 1
      self._changed.notify_all()
    if error is not None:
      raise error
    return result

  def stop(self) -> None:
    with self._changed:
      self._stopped = True
      self._changed.notify_all()
