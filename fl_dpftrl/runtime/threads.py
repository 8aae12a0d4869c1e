"""Threads that go from one round to the next.

TensorFlow keeps some memory for each thread that has called it, for as long as the
process lives. New threads in each round would take more and more.
"""

import os
import queue
import threading
from collections.abc import Callable
from typing import Any

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
