"""How long a study takes on this machine, from a few timed rounds."""

import dataclasses
import datetime
import pathlib
import shutil
import statistics

from fl_dpftrl import metrics
from fl_dpftrl.studies import cells as cells_lib
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import runner

TIMING_NAME = 'timing'
_ROUNDS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """Time that a study takes.

  Attributes:
    design: design of the study.
    num_rounds: rounds of a run.
    num_evaluations: evaluations of a run.
    start_seconds: seconds before the first round, and after the last.
    round_seconds: seconds a round, with the processors of one job.
    evaluation_seconds: seconds an evaluation.
    jobs: runs at the same time.
  """

  design: design_lib.Design
  num_rounds: int
  num_evaluations: int
  start_seconds: float
  round_seconds: float
  evaluation_seconds: float
  jobs: int

  def seconds(self, num_cells: int) -> float:
    """Returns the time of so many runs."""
    one = (
      self.start_seconds
      + self.num_rounds * self.round_seconds
      + self.num_evaluations * self.evaluation_seconds
    )
    return -(-num_cells // self.jobs) * one

  def text(self) -> str:
    """Returns a few lines: the time, and what to cut where it is too much."""
    design = self.design
    cells, more = design.num_cells, design.num_further
    whole, longest = (
      datetime.timedelta(seconds=round(self.seconds(n))) for n in (cells, cells + more)
    )
    further = (
      f'; {longest} with {more} more, the most where best rates are at the ends of their grids'
    )
    rates = max(len(setting.server_learning_rates) for setting in design.settings)
    return (
      f'{cells} runs of {self.num_rounds} rounds, {self.round_seconds:.3g} s a round,'
      f' {self.jobs} at a time: about {whole}{further if more else ""}\n'
      f'  fewer seeds ({len(design.seeds)} now), learning rates (up to {rates} a setting) or'
      f' settings ({len(design.settings)}) take less time, as do fewer rounds and a smaller report'
      ' goal, for which noise is calibrated again'
    )


def measure(
  design: design_lib.Design, task: cells_lib.Task, folder: pathlib.Path, *, jobs: int
) -> Estimate:
  """Times a few rounds of the study's first setting, without noise.

  Raises:
    ValueError: with the reason, where the run fails, such as data that are missing, or the task
      cannot be timed.
  """
  if task.timed is None:
    raise ValueError('the time of these runs cannot be told beforehand')
  setting = dataclasses.replace(
    design.settings[0],
    mechanism=None,
    epsilon=None,
    effective_noise_multiplier=None,
    noise_multiplier=None,
  )
  conditions = task.conditions(setting)
  within = folder / TIMING_NAME
  cells = cells_lib.Cells(
    design=design, conditions={setting: conditions}, noises={setting: None}, folder=within
  )
  rate = setting.server_learning_rates[0]
  cell = task.timed(cells.cell(setting, rate, design.seeds[0]), _ROUNDS)
  shutil.rmtree(within, ignore_errors=True)
  within.mkdir()
  progress = runner.Progress(total=1, jobs=1, say=lambda line: None)
  try:
    failed = runner.run([cell], task, jobs=jobs, progress=progress)
    if failed:
      raise ValueError(failed[cell.name])
    seconds = metrics.MetricsTable(cell.folder / metrics.NAME).history()['seconds'].tolist()
  finally:
    shutil.rmtree(within, ignore_errors=True)
  usual = statistics.median(seconds[1:-1])
  num_rounds = conditions.schema.num_rounds
  return Estimate(
    design=design,
    num_rounds=num_rounds,
    num_evaluations=-(-num_rounds // conditions.rounds_per_evaluation),
    start_seconds=max(0.0, sum(progress.seconds) - sum(seconds[1:])),
    round_seconds=usual,
    evaluation_seconds=max(0.0, seconds[-1] - usual),
    jobs=jobs,
  )
