"""Runs cells: one after another in this process, or side by side, each in a process of its own."""

import contextlib
import dataclasses
import datetime
import functools
import json
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from fl_dpftrl.files import durable
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.studies import kept, processes
from fl_dpftrl.studies import metric as metric_lib
from fl_dpftrl.text import messages


class Pool(Protocol):
  """Processes that train cells, within the block that opened them."""

  def start(self, cell: cells_lib.Cell) -> None:
    """Starts to train a cell in a process of its own."""

  def ended(self) -> list[tuple[cells_lib.Cell, str]]:
    """Waits a while, and returns the cells that ended, each with the reason if it failed."""
    raise NotImplementedError


class Pools(Protocol):
  """A machine or a cluster that has processes for cells.

  Attributes:
    jobs: cells that it trains at the same time.
  """

  @property
  def jobs(self) -> int:
    raise NotImplementedError

  def opened(
    self, train: Callable[[cells_lib.Cell], None], folder: pathlib.Path
  ) -> contextlib.AbstractContextManager[Pool]:
    """Opens processes for the study in a folder; leaving the block ends cells that still run."""
    raise NotImplementedError


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
  machines: Pools | None = None,
  progress: Progress,
  told: Callable[[cells_lib.Cell], str] = lambda cell: cell.name,
) -> dict[str, str]:
  """Runs the cells that are not finished, and waits for all.

  A cell that fails is a line of progress; the others go on. In this process an exception other
  than RuntimeError, OSError and MemoryError is no failure of a cell, and ends the study.

  Args:
    cells: cells of a study.
    task: trains them.
    jobs: cells that run at the same time, each in a process of this machine; None for this process.
    machines: cluster that runs the cells instead.
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
  if machines is None and jobs is not None:
    machines = processes.Processes(jobs=jobs, preload=task.preload)
  if machines is not None:
    train = functools.partial(_train, task.train)
    with machines.opened(train, waiting[0].study) as pool:
      return _side_by_side(pool, machines.jobs, waiting, progress, told)
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


def _side_by_side(
  pool: Pool,
  jobs: int,
  waiting: list[cells_lib.Cell],
  progress: Progress,
  told: Callable[[cells_lib.Cell], str],
) -> dict[str, str]:
  """Runs cells, so many at a time, and returns the reasons of those that failed."""
  failed: dict[str, str] = {}
  began: dict[str, float] = {}
  while waiting or began:
    while waiting and len(began) < jobs:
      cell = waiting.pop(0)
      began[cell.name] = time.monotonic()
      pool.start(cell)
    for cell, reason in pool.ended():
      if _is_finished(cell):
        text = told(cell)
      else:
        failed[cell.name] = reason
        text = f'{cell.name} failed: {reason}'
      progress.ended(text, time.monotonic() - began.pop(cell.name))
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
