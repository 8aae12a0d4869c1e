"""Processes of this machine that train cells.

TensorFlow takes longer to import than a small run takes. A server process imports what a task
preloads once and computes nothing; each cell's process is a fork of it.
"""

import contextlib
import dataclasses
import glob
import multiprocessing
import os
import pathlib
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from fl_dpftrl import signals
from fl_dpftrl.files import durable
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.text import messages

PATIENCE_SECONDS = 15.0
"""Time for a cell to end by itself."""
POLL_SECONDS = 0.5
"""Time that a pool waits for cells at most."""
_BYTES_A_JOB = 3 * 2**30
_MOST_LOG_BYTES = 2**16
# Bytes of a folder in which `multiprocessing` can name a socket: a path has 107.
_LONGEST_FOLDER = 107 - len('/pymp-12345678/listener-12345678')
# Numbers of threads that libraries of a cell's process read.
_THREADS = ('OPENBLAS_NUM_THREADS', 'TF_NUM_INTRAOP_THREADS', 'TF_NUM_INTEROP_THREADS')
# Begins the name of a cell's process.
_CELL = 'cell '
# Exit status of a process of a cell that runs a script which starts a study as it is imported.
_UNGUARDED = 107
# Begins the line in which the training script says why it ended.
_SAYS = 'train: '


def default_jobs() -> int:
  """Returns how many cells the processors and the memory of this machine allow."""
  memory = os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')
  return max(1, min(len(os.sched_getaffinity(0)), memory // _BYTES_A_JOB))


def threads(jobs: int) -> int:
  """Returns the processors of one of several jobs."""
  return max(1, len(os.sched_getaffinity(0)) // jobs)


def start_method() -> str:
  """Returns how processes of cells start: each alone where a server has no socket."""
  folder = os.fsencode(tempfile.gettempdir())
  return 'forkserver' if len(folder) <= _LONGEST_FOLDER else 'spawn'


def check_not_starting() -> None:
  """Refuses a study by a script that a process of a cell imports; that process ends.

  Raises:
    ValueError: in other processes that import the script as they start.
  """
  process = multiprocessing.current_process()
  if getattr(process, '_inheriting', False):  # As `multiprocessing` itself finds out.
    if process.name.startswith(_CELL):
      os._exit(_UNGUARDED)  # Without a traceback: the process of the study says it.
    raise ValueError(_unguarded())


def _unguarded() -> str:
  return (
    'each process of a study with jobs imports the script that started it, and this one then starts'
    " the study anew: put its call under if __name__ == '__main__':, or leave jobs out"
  )


def variables(num_threads: int) -> dict[str, str]:
  """Returns variables of the environment that a cell's process reads as it starts."""
  usual = {'TF_CPP_MIN_LOG_LEVEL': '3', 'TF_ENABLE_ONEDNN_OPTS': '0'}
  return {
    **{name: os.environ.get(name, value) for name, value in usual.items()},
    **{name: str(num_threads) for name in _THREADS},
  }


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
  """Sets variables of the environment within the block."""
  before = dict(os.environ)
  os.environ.update(values)
  try:
    yield
  finally:
    os.environ.clear()
    os.environ.update(before)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
  """Processes of this machine, for cells; `runner.Pools`.

  Attributes:
    jobs: cells that are trained at the same time.
    preload: modules that the processes share.
  """

  jobs: int
  preload: Sequence[str] = ()

  @contextlib.contextmanager
  def opened(
    self, train: Callable[[cells_lib.Cell], None], folder: pathlib.Path
  ) -> Iterator['_Pool']:
    """Opens processes for the study in a folder; leaving the block ends those that still run."""
    # Forked processes end without removing the files of code that TensorFlow generates.
    temporary = tempfile.TemporaryDirectory(
      prefix=durable.TEMPORARY_PREFIX, dir=folder.resolve(), ignore_cleanup_errors=True
    )
    context: Any = multiprocessing.get_context(start_method())
    context.set_forkserver_preload(list(self.preload))  # Nothing, without a server.
    with temporary, _environment(variables(threads(self.jobs))):
      pool = _Pool(context, train, self.jobs, temporary.name)
      try:
        yield pool
      finally:
        pool.stop()


class _Pool:
  """Processes that train cells; `runner.Pool`."""

  def __init__(
    self, context: Any, train: Callable[[cells_lib.Cell], None], jobs: int, temporary: str
  ):
    self._context, self._train, self._temporary = context, train, temporary
    self._free = list(range(jobs))  # Slots, which share out the GPUs.
    self._devices = sorted(glob.glob('/dev/nvidia[0-9]*'))
    self._running: dict[int, tuple[Any, cells_lib.Cell, int]] = {}

  def start(self, cell: cells_lib.Cell) -> None:
    slot = self._free.pop(0)
    device = str(slot % len(self._devices)) if self._devices else None
    process = self._context.Process(
      target=_train_alone,
      args=(self._train, cell, device, self._temporary),
      name=f'{_CELL}{cell.name}',
    )
    log(cell).unlink(missing_ok=True)
    with signals.kept_from_children():
      process.start()
    self._running[process.sentinel] = process, cell, slot

  def ended(self) -> list[tuple[cells_lib.Cell, str]]:
    found = []
    for ready in connection.wait(list(self._running), timeout=POLL_SECONDS):
      process, cell, slot = self._running.pop(ready)  # type: ignore[arg-type]
      self._free = sorted([*self._free, slot])
      process.join()
      if process.exitcode == _UNGUARDED and not log(cell).exists():
        raise ValueError(_unguarded())
      found.append((cell, _reason(process.exitcode, log(cell))))
    return found

  def stop(self) -> None:
    """Ends cells that still run, between two of their steps where they can."""
    running = [process for process, *_ in self._running.values()]
    for process in running:
      process.terminate()
    deadline = time.monotonic() + PATIENCE_SECONDS
    for process in running:
      process.join(max(0.0, deadline - time.monotonic()))
      if process.is_alive():
        process.kill()
        process.join()


def log(cell: cells_lib.Cell) -> pathlib.Path:
  """Returns the path of a cell's output."""
  return cell.folder.with_name(f'{cell.name}.log')


def write_to_log(cell: cells_lib.Cell) -> None:
  """Makes all output of this process that of a cell."""
  descriptor = os.open(log(cell), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
  os.dup2(descriptor, 1)
  os.dup2(descriptor, 2)
  os.close(descriptor)


def last_line(path: pathlib.Path, otherwise: str) -> str:
  """Returns the line in which a failed cell said why it ended, or the last one of its output."""
  try:
    with path.open('rb') as stream:
      stream.seek(max(0, path.stat().st_size - _MOST_LOG_BYTES))
      lines = stream.read().decode('utf-8', 'replace').splitlines()
  except OSError:
    lines = []
  lines = [line.strip() for line in lines if line.strip()]
  said = next((line for line in reversed(lines) if line.startswith(_SAYS)), None)
  text = said.removeprefix(_SAYS) if said else (lines or [otherwise])[-1]
  return messages.one_line(text)


def _reason(status: int | None, path: pathlib.Path) -> str:
  """Returns why a cell failed, by its exit status and its output."""
  if status is not None and status < 0:
    return f'ended by signal {-status}'
  return last_line(path, f'exit status {status}')


def _train_alone(
  train: Callable[[cells_lib.Cell], None], cell: cells_lib.Cell, device: str | None, temporary: str
) -> None:
  """Trains a cell, in its own process."""
  tempfile.tempdir = temporary
  os.setsid()  # A terminal's Ctrl-C is for the study, which then stops its cells.
  threading.Thread(target=_end_with_study, daemon=True).start()
  write_to_log(cell)
  if device is not None:
    os.environ.setdefault('CUDA_VISIBLE_DEVICES', device)
  train(cell)


def _end_with_study() -> None:
  """Ends this process where the study's has ended without stopping it."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
