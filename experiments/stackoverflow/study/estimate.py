"""How long a study takes on this machine, from a few timed rounds."""

import csv
import dataclasses
import datetime
import pathlib
import shutil
import statistics

from experiments.stackoverflow import machines as machines_lib
from experiments.stackoverflow.study import cells as cells_lib
from experiments.stackoverflow.study import runner, study_file

TIMING_NAME = 'timing'
_ROUNDS = 4


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """Time that a study takes.

  Attributes:
    num_cells: number of runs.
    num_rounds: rounds of a run.
    num_evaluations: evaluations of a run.
    start_seconds: seconds before the first round, and after the last.
    round_seconds: seconds a round, with the processors of one job.
    evaluation_seconds: seconds an evaluation.
    jobs: runs at the same time.
  """

  num_cells: int
  num_rounds: int
  num_evaluations: int
  start_seconds: float
  round_seconds: float
  evaluation_seconds: float
  jobs: int

  @property
  def cell_seconds(self) -> float:
    return (
      self.start_seconds
      + self.num_rounds * self.round_seconds
      + self.num_evaluations * self.evaluation_seconds
    )

  @property
  def seconds(self) -> float:
    return self._seconds(self.num_cells)

  def _seconds(self, num_cells: int) -> float:
    return -(-num_cells // self.jobs) * self.cell_seconds

  def text(self, study: study_file.Study) -> str:
    """Returns a few lines: the time, and what to cut where it is too much."""
    whole = datetime.timedelta(seconds=round(self.seconds))
    rates = max(len(setting.server_learning_rates) for setting in study.settings)
    longest = datetime.timedelta(seconds=round(self._seconds(self.num_cells + num_further(study))))
    further = (
      f'; {longest} with {num_further(study)} more, the most where best rates are at the ends of'
      ' their grids'
    )
    lines = [
      f'{self.num_cells} runs of {self.num_rounds} rounds, {self.round_seconds:.3g} s a round,'
      f' {self.jobs} at a time: about {whole}' + (further if num_further(study) else ''),
      f'  fewer seeds ({len(study.seeds)} now), learning rates (up to {rates} a setting) or'
      f' settings ({len(study.settings)}) take less time, as do a smaller --num_rounds and'
      ' --report_goal, for which noise is calibrated again',
    ]
    return '\n'.join(lines)


def num_cells(study: study_file.Study) -> int:
  """Returns the number of runs of a whole study."""
  tuned = sum(len(setting.server_learning_rates) for setting in study.settings)
  others = len(study.settings) * (len(study.seeds) - study.tuning_seeds)
  return tuned * study.tuning_seeds + others


def num_further(study: study_file.Study) -> int:
  """Returns the most runs that grids may be extended by."""
  grids = sum(len(setting.server_learning_rates) > 1 for setting in study.settings)
  return grids * study.extend_rates * study.tuning_seeds


def measure(
  study: study_file.Study,
  folder: pathlib.Path,
  *,
  jobs: int,
  machines: machines_lib.Machines = machines_lib.Machines(),
) -> Estimate:
  """Times a few rounds of the study's first setting, without noise.

  Raises:
    ValueError: with the reason, where the run fails: flags that do not fit, or
      data that are missing.
  """
  setting = dataclasses.replace(
    study.settings[0],
    mechanism=None,
    epsilon=None,
    effective_noise_multiplier=None,
    noise_multiplier=None,
  )
  hparams = cells_lib.base_flags(study, setting)
  timers = [] if hparams.timer_hours is not None else ['--timer_rounds=1']
  flags = [*timers, f'--num_rounds={_ROUNDS}', f'--rounds_per_evaluation={_ROUNDS}']
  cell = cells_lib.Cell(
    setting=setting,
    noise=None,
    flags=(*study.flags, *setting.flags, *flags),
    server_learning_rate=setting.server_learning_rates[0],
    seed=study.seeds[0],
  )
  within = folder / TIMING_NAME
  shutil.rmtree(within, ignore_errors=True)
  within.mkdir()
  progress = runner.Progress(total=1, jobs=1, say=lambda line: None)
  try:
    failed = runner.run(
      [cell], within, jobs=1, num_threads=runner.threads(jobs), machines=machines, progress=progress
    )
    if failed:
      raise ValueError(failed[cell.name])
    path = within / cells_lib.CELLS_NAME / cell.name / 'metrics.csv'
    with path.open(newline='') as stream:
      seconds = [float(row['seconds']) for row in csv.DictReader(stream)]
  finally:
    shutil.rmtree(within, ignore_errors=True)
  usual = statistics.median(seconds[1:-1])
  evaluation = max(0.0, seconds[-1] - usual)
  return Estimate(
    num_cells=num_cells(study),
    num_rounds=hparams.num_rounds,
    num_evaluations=-(-hparams.num_rounds // hparams.rounds_per_evaluation),
    start_seconds=max(0.0, sum(progress.seconds) - sum(seconds[1:])),
    round_seconds=usual,
    evaluation_seconds=evaluation,
    jobs=jobs,
  )
