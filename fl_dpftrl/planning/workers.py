"""Parallel simulations in separate processes.

The results do not depend on the number of processes.
"""

import multiprocessing
import pickle
from collections.abc import Callable, Sequence
from multiprocessing import connection, process
from typing import Any

from fl_dpftrl import signals
from fl_dpftrl.planning import trial

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
  done = 0

  def count(more: int) -> None:
    nonlocal done
    done += more
    progress(done / of_all)

  if num_workers == 1 or len(tasks) == 1 or of_all < _WORTHWHILE:
    return [trial.run(task, count) for task in tasks]
  return _in_processes(tasks, num_workers, count)


def _in_processes(
  tasks: Sequence[trial.Task], num_workers: int, count: Callable[[int], None]
) -> list[trial.Trial]:
  """Runs each task in a process of its own, the longest tasks first."""
  context = multiprocessing.get_context('spawn')
  waiting = sorted(range(len(tasks)), key=lambda index: tasks[index].participations)
  running: dict[Any, tuple[int, process.BaseProcess]] = {}
  trials: dict[int, trial.Trial] = {}
  try:
    while len(trials) < len(tasks):
      while waiting and len(running) < num_workers:
        index = waiting.pop()
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=_work, args=(tasks[index], sender), daemon=True)
        with signals.kept_from_children():
          child.start()
        sender.close()  # so that this process notices the end of the other
        running[receiver] = index, child
      for receiver in connection.wait(list(running)):
        index, child = running[receiver]
        message = _received(receiver, child)
        if isinstance(message, int):
          count(message)
          continue
        del running[receiver]
        child.join()
        if isinstance(message, Exception):
          raise message
        trials[index] = message
  finally:
    for _, child in running.values():
      child.terminate()
  return [trials[index] for index in range(len(tasks))]


def _received(receiver: Any, child: process.BaseProcess) -> int | Exception | trial.Trial:
  try:
    # Not by recv(), whose buffer can outlive its owner in a traceback (Python 3.12.1).
    return pickle.loads(receiver.recv_bytes())
  except EOFError:
    child.join()
    raise ChildProcessError(
      f'a simulation ended without a result (exit status {child.exitcode}); use num_workers=1 to'
      ' give it all the memory'
    ) from None


def _work(task: trial.Task, sender: Any) -> None:
  unsaid = 0

  def count(more: int) -> None:
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
