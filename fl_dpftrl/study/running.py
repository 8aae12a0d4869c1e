"""Training of cells, each in a process of its own."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Sequence
from multiprocessing import connection
from typing import Any

from fl_dpftrl.study.cells import Cell, Run
from fl_dpftrl.support import signals
from fl_dpftrl.support.text import messages

_LOG_NAME, _MISTAKE = 'log.txt', 107  # The second is an exit status.


def check(run: Run) -> None:
  """Raises ValueError for a function that other processes cannot import."""
  if getattr(multiprocessing.current_process(), '_inheriting', False):  # As Python finds out.
    os._exit(1)  # The script starts a study as it is imported: the study's process says so.
  try:
    portable = b'__main__' not in pickle.dumps(run) or hasattr(sys.modules['__main__'], '__file__')
  except (AttributeError, TypeError, pickle.PicklingError):
    portable = False
  if not portable:
    raise ValueError(
      'each cell is a process of its own, so the function that trains it must be one of a module:'
      ' move it into one, or give jobs=0 to train in this process'
    )


def trained(run: Run, cells: Sequence[Cell], jobs: int) -> Generator[tuple[Cell, str], None, None]:
  """Trains cells, so many at a time, each in a process; yields each as it ends, and why it failed.

  With no jobs it trains one after another in this process, where an error ends the study.
  """
  for cell in [] if jobs else cells:
    cell.train(run)
    yield cell, ''
  context = multiprocessing.get_context('spawn')
  waiting, running = list(cells if jobs else []), dict[Any, tuple[Any, Cell]]()
  try:
    while waiting or running:
      while waiting and len(running) < jobs:
        cell = waiting.pop(0)
        cell.home.mkdir(parents=True, exist_ok=True)
        (cell.home / _LOG_NAME).unlink(missing_ok=True)
        process = context.Process(target=_train, args=(run, cell), name=f'cell {cell.name}')
        with signals.hidden_from_children():
          process.start()
        running[process.sentinel] = process, cell
      for ready in connection.wait(list(running)):
        process, cell = running.pop(ready)
        process.join()
        yield cell, _reason(process.exitcode, cell)
  finally:
    for process, _ in running.values():
      process.terminate()
    for process, _ in running.values():
      process.join(15.0)  # It may end by itself.
      process.kill()
      process.join()


def _reason(status: int | None, cell: Cell) -> str:
  """Returns why a cell failed, by its exit status and the last line of its output."""
  if status == 0:
    return '' if cell.ended() else 'it ended without a result'
  if status is not None and status < 0:
    return f'ended by signal {-status}'
  path = cell.home / _LOG_NAME
  if not path.exists():
    raise ValueError(
      'each cell is a process that imports the script which started the study, and this one could'
      " not: put its call of study under if __name__ == '__main__':, or give jobs=0"
    )
  lines = path.read_text('utf-8', 'replace').split('\n')
  output = [f'exit status {status}', *filter(str.strip, lines)]
  if status == _MISTAKE:
    raise ValueError(f'{path}: {messages.one_line(output[-1], limit=200)}')
  return messages.one_line(output[-1])


def _train(run: Run, cell: Cell) -> None:
  """Trains a cell in its own process, whose output is its log."""
  os.setsid()  # A terminal's Ctrl-C is for the study, which then stops its cells.
  threading.Thread(target=_end_with_study, daemon=True).start()
  with (cell.home / _LOG_NAME).open('wb') as log:
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
  try:
    cell.train(run)
  except (RuntimeError, OSError, MemoryError):
    raise  # The cell has failed. Other errors are mistakes, such as a mapping without the metric.
  except Exception:
    traceback.print_exc()
    sys.exit(_MISTAKE)


def _end_with_study() -> None:
  """Ends this process where the study's has ended without stopping it."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
