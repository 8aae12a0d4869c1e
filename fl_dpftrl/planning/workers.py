"""Parallel simulations in separate processes.

The results do not depend on the number of processes.
"""

import multiprocessing
import signal
from collections.abc import Callable, Sequence
from multiprocessing import connection

from fl_dpftrl.planning import trial

_SECONDS = 1.0  # interval between progress updates
_WORTHWHILE = 1_000_000  # total participations that justify starting processes
_OFTEN = 1 << 17  # participations between a process's progress messages


def run(
  tasks: Sequence[trial.Task],
  *,
  num_workers: int = 1,
  progress: Callable[[float], None] = lambda share: None,
) -> list[trial.Trial]:
  """Returns the trials in the order of their tasks.

  Args:
    tasks: tasks to simulate.
    num_workers: number of parallel processes. With 1, or if there is little to do, all tasks
      run in this process.
    progress: called from time to time with the completed fraction.

  Raises:
    ValueError: if num_workers is below 1.
    ChildProcessError: if a process ended without a result, such as for lack of memory.
  """
  if num_workers < 1:
    raise ValueError(f'num_workers must be at least 1, got {num_workers!r}')
  of_all = sum(task.participations for task in tasks)
  report = lambda done: progress(done / of_all)
  if num_workers == 1 or len(tasks) == 1 or of_all < _WORTHWHILE:
    return _one_by_one(tasks, report)
  return _Processes(tasks, report).run(num_workers)


def _one_by_one(tasks, progress) -> list[trial.Trial]:
  done = 0

  def count(more):
    nonlocal done
    done += more
    progress(done)

  return [trial.run(task, count) for task in tasks]


class _Processes:
  """Pool that starts the longest tasks first and collects their results."""

  def __init__(self, tasks, progress):
    self._tasks, self._progress = tasks, progress
    self._context = multiprocessing.get_context('spawn')
    self._running = {}
    self._done = [0] * len(tasks)
    self._trials = [None] * len(tasks)

  def run(self, num_workers: int) -> list[trial.Trial]:
    waiting = sorted(range(len(self._tasks)), key=lambda index: self._tasks[index].participations)
    try:
      while waiting or self._running:
        while waiting and len(self._running) < num_workers:
          self._start(waiting.pop())
        for receiver in connection.wait(list(self._running), _SECONDS):
          self._receive(receiver)
        self._progress(sum(self._done))
    finally:
      for _, process in self._running.values():
        process.terminate()
    return self._trials

  def _start(self, index: int) -> None:
    receiver, sender = self._context.Pipe(duplex=False)
    process = self._context.Process(target=_work, args=(self._tasks[index], sender), daemon=True)
    process.start()
    sender.close()  # so that this process notices the end of the other
    self._running[receiver] = index, process

  def _receive(self, receiver) -> None:
    index, process = self._running[receiver]
    try:
      message = receiver.recv()
    except EOFError:
      process.join()
      raise ChildProcessError(
        'a simulation ended without a result (exit status'
        f' {process.exitcode}); use num_workers=1 to give it all the memory'
      ) from None
    if isinstance(message, int):
      self._done[index] += message
      return
    del self._running[receiver]
    process.join()
    if isinstance(message, Exception):
      raise message
    self._trials[index] = message


def _work(task: trial.Task, sender) -> None:
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process ends it
  unsaid = 0

  def count(more):
    nonlocal unsaid
    unsaid += more
    if unsaid >= _OFTEN:
      sender.send(unsaid)
      unsaid = 0

  try:
    sender.send(trial.run(task, count))
  except BrokenPipeError:
    pass  # the parent process is gone
  except Exception as e:
    sender.send(e)  # the parent process raises it again
