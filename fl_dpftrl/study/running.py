"""Training of cells in other processes."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Generator, Sequence
from multiprocessing import connection
from typing import Any, NamedTuple

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
      'cells are trained in other processes, so the function that trains them must be one of a'
      ' module: move it into one, or give jobs=0 to train in this process'
    )


def trained(
  run: Run, cells: Sequence[Cell], jobs: int, *, may_fail: bool = False
) -> Generator[tuple[Cell, str], None, None]:
  """Trains cells in so many processes; yields each as it ends, and why it failed.

  A process trains one cell after another, so that it is started and compiles once, and ends with a
  cell that fails. With no jobs all are trained in this process, where an error ends the study,
  unless cells may fail.
  """
  for cell in [] if jobs else cells:
    reason = ''
    try:
      cell.train(run)
    except Exception:
      if not may_fail:
        raise
      reason = 'the run failed'
    yield cell, reason
  waiting, running = list(cells if jobs else []), dict[Any, tuple[_Worker, Cell]]()
  idle = list[_Worker]()
  try:
    while waiting or running:
      while waiting and len(running) < jobs:
        worker, cell = idle.pop() if idle else _started(run), waiting.pop(0)
        running[worker.pipe] = worker, cell
        cell.home.mkdir(parents=True, exist_ok=True)
        (cell.home / _LOG_NAME).unlink(missing_ok=True)
        with contextlib.suppress(BrokenPipeError):  # It has ended, as is seen below.
          worker.pipe.send(cell)
      # A process may end while one that it made has its end of the pipe.
      ends = {worker.process.sentinel: pipe for pipe, (worker, _) in running.items()}
      for pipe in {ends.get(ready, ready) for ready in connection.wait([*running, *ends])}:
        worker, cell = running.pop(pipe)
        try:
          if not worker.pipe.poll():
            raise EOFError
          worker.pipe.recv()
          idle.append(worker)
          status: int | None = 0
        except (EOFError, ConnectionResetError):
          worker.process.join()
          status = worker.process.exitcode
        yield cell, _reason(status, cell)
  finally:
    for worker in idle:
      worker.pipe.close()
    for worker, _ in running.values():
      worker.process.terminate()
    for worker in (*idle, *(worker for worker, _ in running.values())):
      worker.process.join(15.0)  # It may end by itself.
      worker.process.kill()
      worker.process.join()


class _Worker(NamedTuple):
  """A process that trains cells, and the pipe by which it gets them and says that one has ended."""

  process: Any
  pipe: connection.Connection


def _started(run: Run) -> _Worker:
  context = multiprocessing.get_context('spawn')
  pipe, its_end = context.Pipe()
  process = context.Process(target=_work, args=(run, its_end), name='cells')
  with signals.hidden_from_children():
    process.start()
  its_end.close()  # So that the pipe ends with the process.
  return _Worker(process, pipe)


def _reason(status: int | None, cell: Cell) -> str:
  """Returns why a cell failed, by its exit status and the last line of its output."""
  if status == 0:
    return '' if cell.ended() else 'it ended without a result'
  if status is not None and status < 0:
    return f'ended by signal {-status}'
  path = cell.home / _LOG_NAME
  if not path.exists():
    raise ValueError(
      'cells are trained in processes that import the script which started the study, and this one'
      " could not: put its call of study under if __name__ == '__main__':, or give jobs=0"
    )
  lines = path.read_text('utf-8', 'replace').split('\n')
  output = [f'exit status {status}', *filter(str.strip, lines)]
  if status == _MISTAKE:
    raise ValueError(f'{path}: {messages.one_line(output[-1], limit=200)}')
  return messages.one_line(output[-1])


def _work(run: Run, pipe: connection.Connection) -> None:
  """Trains the cells that a pipe brings in this process; the output of each is its log."""
  os.setsid()  # A terminal's Ctrl-C is for the study, which then stops its cells.
  threading.Thread(target=_end_with_study, daemon=True).start()
  while True:
    try:
      cell = pipe.recv()
    except EOFError:
      return
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
    sys.stdout.flush()
    sys.stderr.flush()
    pipe.send(None)


def _end_with_study() -> None:
  """Ends this process where the study's has ended without stopping it."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
