"""Work by several threads, whose results are taken in order.

TensorFlow keeps some memory for each thread that has called it, for as long as the process lives.
New threads in each round would take more and more, so they go from one round to the next.
"""

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeAlias

from tensorflow.python.eager import cancellation

Manager: TypeAlias = cancellation.CancellationManager

# How long an interrupted round waits for an operation that is under way.
_PATIENCE_SECONDS = 5.0

_Task = tuple[Callable[[], Any], threading.Event]

# Queues of the threads that have nothing to do.
_IDLE: list[queue.SimpleQueue[_Task]] = []
# A forked process has none of these threads.
os.register_at_fork(after_in_child=_IDLE.clear)


def start(task: Callable[[], Any]) -> threading.Event:
  """Runs a task in a thread of its own.

  Returns:
    An event that is set once the task has ended.
  """
  ended = threading.Event()
  try:
    tasks = _IDLE.pop()
  except IndexError:
    tasks = queue.SimpleQueue()
    threading.Thread(target=_live, args=(tasks,), name='client', daemon=True).start()
  tasks.put((task, ended))
  return ended


def _live(tasks: queue.SimpleQueue[_Task]) -> None:
  while True:
    task, ended = tasks.get()
    try:
      task()
      del task
      _IDLE.append(tasks)
    finally:
      ended.set()


class Stop:
  """Ends running and future rounds from another thread."""

  def __init__(self):
    self.is_asked = False
    self._under_way: set[Callable[[], None]] = set()

  def ask(self) -> None:
    self.is_asked = True
    for cancel in tuple(self._under_way):
      cancel()

  def check(self) -> None:
    """Raises RuntimeError if a stop was requested."""
    if self.is_asked:
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
  work: Callable[[int, Manager], Any], num: int, num_threads: int, stop: Stop | None = None
) -> Generator[Any, None, None]:
  """Yields work(0), work(1), …, of which several are computed at the same time.

  Results that wait for an earlier one, and work under way, are at most twice num_threads
  together, however much slower one of them is. Where one fails, or whoever takes the results goes
  away, the others are cancelled. What comes before one that fails is waited for: the error is
  that of the first place, each time the same.
  """
  stop = stop or Stop()
  results = _Results(work, num, 2 * num_threads)
  with stop.told_to(results.stop):
    ends = [start(results.run) for _ in range(min(num_threads, num))]
    try:
      for index in range(num):
        yield results.take(index)
    finally:
      results.stop()
      for ended in ends:
        ended.wait(_PATIENCE_SECONDS)
  stop.check()


class _Results:
  """Results that are under way, done and taken."""

  def __init__(self, work: Callable[[int, Manager], Any], num: int, window: int):
    self._work, self._window = work, window
    self._changed = threading.Condition()
    self._next, self._taken, self._stopped = 0, 0, False
    # What comes before this is begun; a failure leaves out what comes after it.
    self._end = num
    self._under_way: dict[int, Manager] = {}
    self._done: dict[int, tuple[Any, BaseException | None]] = {}

  def run(self) -> None:
    """Works until nothing is left; the task of a thread."""
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
          self._under_way[self._next - 1] = Manager()
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
      raise error
    return result

  def stop(self) -> None:
    """Begins nothing more, and cancels what is under way."""
    with self._changed:
      self._stopped = True
      under_way = list(self._under_way.values())
      self._changed.notify_all()
    for manager in under_way:
      with contextlib.suppress(Exception):
        manager.start_cancel()
