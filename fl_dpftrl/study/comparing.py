"""Mechanisms compared by training: a study is begun, or gone on with, in a folder."""

import contextlib
import dataclasses
import datetime
import functools
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fl_dpftrl.mechanisms import workloads
from fl_dpftrl.participation.accounting.tuning import Tuning
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.study import result_tables, running, study_tables, tuned
from fl_dpftrl.study.cells import Cell, Run
from fl_dpftrl.study.designs import Condition, Design, Mechanisms
from fl_dpftrl.study.result_tables import Metric, Result, Row
from fl_dpftrl.study.study_noise import Noises, Say, prepare
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import durable, paths

if TYPE_CHECKING:
  from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Study:
  """Mechanisms compared by training, from the results of runs and sentences about all of them."""

  title: str
  metric: Metric
  results: tuple[Result, ...]
  about: tuple[str, ...] = ()

  @functools.cached_property
  def rows(self) -> list[Row]:
    """A row for each mechanism at each ε, at the learning rate that validation data chose."""
    return result_tables.rows(self.results, self.metric)

  @property
  def unfinished(self) -> tuple[Result, ...]:
    """Runs that failed, or are not run; the same call tries them again."""
    statuses = (result_tables.FAILED, result_tables.WAITING)
    return tuple(result for result in self.results if result.status in statuses)

  @property
  def table(self) -> str:
    """The comparison as text, with the notes on how to read it."""
    return study_tables.text(self.rows, self.metric, self.about)

  @functools.cached_property
  def figures(self) -> dict[str, 'Figure']:
    """Figures for which there is something to draw: accuracy_by_epsilon, difference_to_best."""
    from fl_dpftrl.study import study_figures  # Loads matplotlib.

    return study_figures.draw(self.rows, self.metric)

  @property
  def page(self) -> str:
    """The page in Markdown; its figures and results.csv are beside it."""
    return study_tables.page(self.title, self.rows, self.metric, self.about, list(self.figures))

  def write(self, folder: str | os.PathLike[str]) -> None:
    """Writes results.csv, table.txt, study.md and the figures as SVG and PNG into a folder."""
    from fl_dpftrl.support import style  # Loads matplotlib.

    folder = paths.local(folder)
    result_tables.write(folder / 'results.csv', self.results)
    for name, figure in self.figures.items():
      for kind in ('svg', 'png'):
        durable.write_durably(folder / f'{name}.{kind}', style.image(figure, kind))
    for name, text in (('table.txt', self.table + '\n'), ('study.md', self.page)):
      durable.write_durably(folder / name, text.encode())

  def __repr__(self) -> str:
    title = f'{self.title}: {len(self.results)} runs; {study_tables.CHOICE}'
    return tables.at_a_prompt(title, self.table.splitlines()[: len(self.rows) + 1])


_SEEDS = (0, 1, 2, 3, 4)


def study(
  run: Run,
  *,
  folder: str | os.PathLike[str],
  mechanisms: Mechanisms,
  epsilons: Sequence[float],
  participation: Participation,
  clip_norm: float,
  report_goal: int,
  delta: float = 1e-6,
  seeds: Sequence[int] = _SEEDS,
  server_learning_rates: Sequence[float] = (1.0,),
  deployment_report_goal: int | None = None,
  workload: workloads.Workload = workloads.Workload(),
  without_noise: bool = True,
  metric: str = 'accuracy',
  lower_is_better: bool | None = None,
  title: str = 'Study',
  jobs: int = 1,
  cell: int | None = None,
  tuning: Tuning | None = None,
  score: str | tuned.HeldOut | None = None,
  say: Say = lambda line: print(line, file=sys.stderr, flush=True),
) -> Study | tuned.Winner:
  """Compares mechanisms by training the same model with each, at equal ε.

  The noise of each mechanism is calibrated. With several learning rates the first seed tries each;
  the one with the best validation metric is then trained with the other seeds. The same call goes
  on with a study that was interrupted: runs that have ended are kept, others are run. Each ε is
  that of one run; choosing among runs by private data spends more.

  Args:
    run: trains a `study.Cell`: by `cell.private_aggregator(template)` in a loop of your own, or by
      `dpftrl.train` with `cell.aggregator()` and `cell.arguments`. Returns a mapping with
      `validation` and `test`, each with the metric by its name, such as `Trained.summary` gives. A
      run is void unless its log, or `epsilon` and `delta` in the mapping, prove its ε.
    folder: folder of the study, which gets results.csv, table.txt, study.md and the figures.
    mechanisms, epsilons: names and strategies, as of `compare`, `Mechanism`s, or a mapping from
      labels to these; target ε.
    participation: schema that each run keeps to; or secret bins, or the scheme by which runs in one
      place draw their batches in secret: `cell.participation` is it, with a part for each band.
      `identity` is then DP-SGD; `banded` and `banded_toeplitz` without a size have the number of
      bands with the least noise at each ε.
    clip_norm, report_goal: L2 bound on an update, and fixed divisor of the sum of a round.
    delta, seeds: δ at which ε is stated; seeds of the runs.
    server_learning_rates: rates to try of each mechanism without rates of its own.
    deployment_report_goal: report goal of a hypothetical deployment with the same noise on the
      mean, to which ε refer then; None for the ε of the runs.
    workload, without_noise: queries for which strategies are optimised and bands chosen; whether to
      train without noise too.
    metric: 'accuracy', from 0 to 1 and shown in percent, or the name of any other number.
    lower_is_better: True for a loss or an error, False for a score; None only for an accuracy.
    jobs: runs at the same time, each in a process of its own, for which `run` must be a function of
      a module; 0 for one after another in this process, where an error ends the study.
    cell: number of the one cell to train, in this process, for schedulers of clusters; those of the
      first seed choose rates and are first. None for all.
    tuning: law of a secret number of runs, each of a mechanism and rate that are drawn anew. Only
      the best is published, its `model.npz` and score, and all else is deleted; returns a `Winner`,
      whose ε covers the choice.
    score: with tuning: 'public', where the validation data are, or a `HeldOut`.
    title, say: title of the page; takes progress, in lines.

  Raises:
    ValueError: for an argument that does not fit, a folder of another study, what `run` returns.
  """
  names = {field.name for field in dataclasses.fields(Design)}
  fields = {name: value for name, value in locals().items() if name in names}
  design = Design(**{**fields, 'metric': Metric(metric, lower_is_better)})
  if tuning is not None or score is not None:
    law = tuned.check(design, tuning, score, jobs, has_seeds=seeds is not _SEEDS, cell=cell)
    if jobs:
      running.check(run)
    folder = paths.local(folder).absolute()
    return tuned.best(design, prepare(design, folder, say), run, folder, law, score, jobs)
  return compare(design, run, paths.local(folder), jobs=jobs, cell=cell, say=say)


def compare(
  design: Design, run: Run, path: pathlib.Path, *, jobs: int, cell: int | None, say: Say
) -> Study:
  """Runs what is left of a study, or one cell of it; see `study`."""
  num_cells, path = len(design.places()), path.absolute()
  if (path / tuned.PLAN_NAME).exists():
    raise ValueError(f'{path} holds a tuned study; name a new folder')
  for name, number, most in (('jobs', jobs, 1000), ('cell', cell or 0, num_cells - 1)):
    if type(number) is not int or not 0 <= number <= most:
      raise ValueError(f'{name} must be 0 to {most}, got {number!r}')
  if jobs and cell is None:
    running.check(run)
  cells = _Cells(design, prepare(design, path, say), path)
  if cell is not None:
    chosen = cells.all()[cell]
    if chosen.server_learning_rate is None:
      raise ValueError(f'cell={cell} has no learning rate yet: first run those of the first seed')
    say(f'{chosen.name}: {_outcome(chosen.train(run), design.metric)}')
    return cells.study()
  with durable.locked(path / 'lock'):
    durable.remove_leftovers(path)
    while remaining := cells.runnable():
      # Twice: the cells of the first seed choose rates.
      say(f'{len(remaining)} of {num_cells} runs, {jobs or 1} at a time, in {path / "cells"}')
      began = time.monotonic()
      with contextlib.closing(running.trained(run, remaining, jobs)) as trained:
        for done, (ended, reason) in enumerate(trained, 1):
          cells.failed |= {ended.name: reason} if reason else {}
          result_tables.write(path / 'results.csv', cells.study().results)
          seconds = round((time.monotonic() - began) / done * (len(remaining) - done))
          text = f'{ended.name}: {_outcome(cells.result(ended), design.metric)}'
          say(f'{done}/{len(remaining)} | {text} | {datetime.timedelta(seconds=seconds)} left')
    comparison = cells.study()
    comparison.write(path)
    return comparison


def _outcome(result: Result, metric: Metric) -> str:
  if result.test is None:
    return f'{result.status}: {result.reason}'
  return f'test {metric.label(metric.name)} {metric.text(result.test)}'


class _Cells:
  """Cells of a study in a folder, as far as they have ended, and reasons of those that failed."""

  def __init__(self, design: Design, noises: Noises, path: pathlib.Path):
    self.failed: dict[str, str] = {}
    self._design, self._noises, self._path = design, noises, path

  def all(self) -> list[Cell]:
    """Returns the cells by number, with the rates that are chosen so far."""
    cells, tried = [], dict[Condition, list[Result]]()
    for setting, rate, seed in self._design.places():
      setting_results = tried.setdefault(setting, [])
      cell = Cell(
        design=self._design,
        setting=setting,
        noise=self._noises[setting],
        server_learning_rate=rate
        or result_tables.chosen_rate(setting_results, self._design.metric),
        seed=seed,
        study=self._path,
      )
      cells.append(cell)
      setting_results.append(self.result(cell))
    return cells

  def result(self, cell: Cell) -> Result:
    """Returns the row of a cell."""
    if cell.name in self.failed:
      return cell.result(result_tables.FAILED, self.failed[cell.name])
    return cell.ended() or cell.result()

  def runnable(self) -> list[Cell]:
    """Returns the cells whose rate is chosen, and that have not ended or failed."""
    chosen = [cell for cell in self.all() if cell.server_learning_rate is not None]
    return [cell for cell in chosen if self.result(cell).status == result_tables.WAITING]

  def study(self) -> Study:
    """Returns the results so far."""
    design, of = self._design, 'the run itself'
    if design.deployment_report_goal is not None:
      of = f'a hypothetical deployment of {design.deployment_report_goal} devices a round, with the'
      of += ' same participation and the same noise on the mean'
    about = (f'Target ε are those of {of}, at δ = {design.delta:g}.', *design.flags)
    results = tuple(map(self.result, self.all()))
    return Study(title=design.title, metric=design.metric, results=results, about=about)
