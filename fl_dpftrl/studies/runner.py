"""Runs cells: one after another in this process, or side by side, each in a process of its own.

TensorFlow takes longer to import than a small run takes. A server process imports what a task
preloads once and computes nothing; each cell's process is a fork of it.
"""

import contextlib
import dataclasses
import datetime
import glob
import json
import math
import multiprocessing
import os
import pathlib
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any

from fl_dpftrl import signals
from fl_dpftrl.files import durable
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.studies import kept
from fl_dpftrl.studies import metric as metric_lib
from fl_dpftrl.text import messages

_BYTES_A_JOB = 3 * 2**30
_POLL_SECONDS = 0.5
_PATIENCE_SECONDS = 15.0
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


@dataclasses.dataclass(kw_only=True)
class Progress:
  """Progress lines of a study.

  Attributes:
    total: number of cells of the study.
    jobs: cells that run at the same time.
    say: takes lines.
    done: number of cells that have ended.
    seconds: how long each cell took that has ended here.
  """

  total: int
  jobs: int
  say: Callable[[str], None]
  done: int = 0
  seconds: list[float] = dataclasses.field(default_factory=list)

  def ended(self, text: str, seconds: float) -> None:
    """Notes that a cell has ended here, and says how much time is left."""
    self.done += 1
    self.seconds.append(seconds)
    left = round(statistics.fmean(self.seconds) * (self.total - self.done) / self.jobs)
    self.say(f'{self.done}/{self.total} cells | {text} | {datetime.timedelta(seconds=left)} left')


def run(
  cells: Sequence[cells_lib.Cell],
  task: cells_lib.Task,
  *,
  jobs: int | None,
  progress: Progress,
  told: Callable[[cells_lib.Cell], str] = lambda cell: cell.name,
) -> dict[str, str]:
  """Runs the cells that are not finished, and waits for all.

  A cell that fails is a line of progress; the others go on. In this process an exception other
  than RuntimeError, OSError and MemoryError is no failure of a cell, and ends the study.

  Args:
    cells: cells of a study.
    task: trains them.
    jobs: cells that run at the same time, each in a process; None for this process.
    progress: told of each cell that ends.
    told: what the progress says of a finished cell.

  Returns:
    The reason for each cell that failed, by its name.

  Raises:
    KeyboardInterrupt: on a signal that raises it, once the cells have stopped.
    ValueError: for a script that starts the study again in each process.
  """
  waiting = []
  for cell in cells:
    if _is_finished(cell):
      progress.done += 1
    else:
      waiting.append(cell)
  if not waiting:
    return {}
  (waiting[0].study / cells_lib.CELLS_NAME).mkdir(exist_ok=True)
  if jobs is not None:
    with _environment(jobs):
      return _Pool(waiting[0].study, task, jobs).run(waiting, progress, told)
  failed = {}
  for cell in waiting:
    began = time.monotonic()
    try:
      _train(task.train, cell)
      text = told(cell)
    except (RuntimeError, OSError, MemoryError) as error:
      failed[cell.name] = messages.one_line(str(error) or type(error).__name__)
      text = f'{cell.name} failed: {failed[cell.name]}'
    progress.ended(text, time.monotonic() - began)
  return failed


def _is_finished(cell: cells_lib.Cell) -> bool:
  return (cell.folder / cells_lib.SUMMARY_NAME).exists()


def _train(train: cells_lib.Train, cell: cells_lib.Cell) -> None:
  """Trains a cell, and writes its summary if the task has not.

  Raises:
    ValueError: if the summary lacks the metric of the study.
  """
  began = time.monotonic()
  summary: Any = train(cell)
  if summary is None and _is_finished(cell):
    return
  measured = {part: _measured(summary, part, cell.metric) for part in ('validation', 'test')}
  content: dict[str, Any] = {'diverged_since_round': None, 'seconds': time.monotonic() - began}
  content |= {**summary, **measured, **kept.proved(cell)}
  text = json.dumps(content, indent=2, allow_nan=False, default=str)
  cell.folder.mkdir(parents=True, exist_ok=True)
  path = cell.folder / cells_lib.SUMMARY_NAME
  durable.write_durably(path, (text + '\n').encode(), private=True)


def _measured(summary: Any, part: str, metric: metric_lib.Metric) -> dict[str, float | None]:
  """Returns the metrics of a part of a summary; None where they are not finite."""
  values = summary.get(part) if isinstance(summary, Mapping) else None
  if not (isinstance(values, Mapping) and metric.name in values):
    such = {'validation': {metric.name: 0.4}, 'test': {metric.name: 0.3}}
    raise ValueError(
      f'train must return a mapping such as {such} for metric={metric.name!r}, as Trained.summary'
      f' does, got {messages.quoted(summary)}'
    )
  value = values[metric.name]
  if metric.is_accuracy and value is not None and math.isfinite(value) and not 0.0 <= value <= 1.0:
    raise ValueError(f'{part} accuracy must be between 0 and 1, got {value:g}')
  return {
    name: float(value) if value is not None and math.isfinite(value) else None
    for name, value in values.items()
  }


@contextlib.contextmanager
def _environment(jobs: int) -> Iterator[None]:
  """Sets, within the block, what processes of cells read as they start."""
  before = dict(os.environ)
  os.environ.update({variable: str(threads(jobs)) for variable in _THREADS})
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
  try:
    yield
  finally:
    os.environ.clear()
    os.environ.update(before)


class _Pool:
  """Processes that run cells."""

  def __init__(self, folder: pathlib.Path, task: cells_lib.Task, jobs: int):
    self._task, self._jobs = task, jobs
    self._devices = sorted(glob.glob('/dev/nvidia[0-9]*'))
    self._running: dict[int, tuple[Any, cells_lib.Cell, int, float]] = {}
    # Forked processes end without removing the files of code that TensorFlow generates.
    self._temporary = tempfile.TemporaryDirectory(
      prefix=durable.TEMPORARY_PREFIX, dir=folder.resolve(), ignore_cleanup_errors=True
    )
    self._context: Any = multiprocessing.get_context(start_method())
    self._context.set_forkserver_preload(list(task.preload))  # Nothing, without a server.

  def run(
    self, waiting: list[cells_lib.Cell], progress: Progress, told: Callable[[cells_lib.Cell], str]
  ) -> dict[str, str]:
    failed = {}
    try:
      while waiting or self._running:
        while waiting and len(self._running) < self._jobs:
          self._start(waiting.pop(0))
        for ready in connection.wait(list(self._running), timeout=_POLL_SECONDS):
          process, cell, _, began = self._running.pop(ready)  # type: ignore[arg-type]
          process.join()
          if process.exitcode == _UNGUARDED and not _log(cell).exists():
            raise ValueError(_unguarded())
          if _is_finished(cell):
            text = told(cell)
          else:
            failed[cell.name] = _reason(process.exitcode, _log(cell))
            text = f'{cell.name} failed: {failed[cell.name]}'
          progress.ended(text, time.monotonic() - began)
    finally:
      self._stop()
      self._temporary.cleanup()
    return failed

  def _start(self, cell: cells_lib.Cell) -> None:
    slot = min(set(range(self._jobs)) - {slot for _, _, slot, _ in self._running.values()})
    device = str(slot % len(self._devices)) if self._devices else None
    process = self._context.Process(
      target=_train_alone,
      args=(self._task.train, cell, device, self._temporary.name),
      name=f'{_CELL}{cell.name}',
    )
    _log(cell).unlink(missing_ok=True)
    with signals.kept_from_children():
      process.start()
    self._running[process.sentinel] = process, cell, slot, time.monotonic()

  def _stop(self) -> None:
    """Ends cells that still run, between two of their steps where they can."""
    processes = [process for process, *_ in self._running.values()]
    for process in processes:
      process.terminate()
    deadline = time.monotonic() + _PATIENCE_SECONDS
    for process in processes:
      process.join(max(0.0, deadline - time.monotonic()))
      if process.is_alive():
        process.kill()
        process.join()


def _reason(status: int | None, log: pathlib.Path) -> str:
  """Returns the last line that a failed cell wrote, or how it ended."""
  try:
    with log.open('rb') as stream:
      stream.seek(max(0, log.stat().st_size - _MOST_LOG_BYTES))
      lines = stream.read().decode('utf-8', 'replace').splitlines()
  except OSError:
    lines = []
  lines = [line.strip() for line in lines if line.strip()]
  if status is not None and status < 0:
    return f'ended by signal {-status}'
  said = next((line for line in reversed(lines) if line.startswith(_SAYS)), None)
  text = said.removeprefix(_SAYS) if said else (lines or [f'exit status {status}'])[-1]
  return messages.one_line(text)


def _log(cell: cells_lib.Cell) -> pathlib.Path:
  """Returns the path of a cell's output."""
  return cell.folder.with_name(f'{cell.name}.log')


def _train_alone(
  train: cells_lib.Train, cell: cells_lib.Cell, device: str | None, temporary: str
) -> None:
  """Trains a cell, in its own process."""
  tempfile.tempdir = temporary
  os.setsid()  # A terminal's Ctrl-C is for the study, which then stops its cells.
  threading.Thread(target=_end_with_study, daemon=True).start()
  descriptor = os.open(_log(cell), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
  os.dup2(descriptor, 1)
  os.dup2(descriptor, 2)
  os.close(descriptor)
  if device is not None:
    os.environ.setdefault('CUDA_VISIBLE_DEVICES', device)
  _train(train, cell)


def _end_with_study() -> None:
  """Ends this process where the study's has ended without stopping it."""
  parent = multiprocessing.parent_process()
  if parent is not None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
