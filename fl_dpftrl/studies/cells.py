"""Cells of a study: one run each, with its strategy and calibrated noise."""

import dataclasses
import pathlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from fl_dpftrl import error as error_lib
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl import workloads
from fl_dpftrl.accounting import arithmetic, calibration, gaussian
from fl_dpftrl.centralized import sampling as sampling_lib
from fl_dpftrl.comparison import candidates
from fl_dpftrl.families import base, identity
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import metric as metric_lib
from fl_dpftrl.studies import strategy_files

if TYPE_CHECKING:
  from fl_dpftrl.aggregators import CorrelatedNoiseFactory  # Loads TensorFlow.
  from fl_dpftrl.rounds.aggregator import PrivateAggregator

STRATEGIES_NAME = 'strategies'
CELLS_NAME = 'cells'
SUMMARY_NAME = 'summary.json'
ROUNDS_NAME = 'rounds'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Conditions:
  """Conditions under which the runs of a setting train, and for which noise is calibrated.

  Attributes:
    schema: participation that each run keeps to; its rounds are those of a run.
    clip_norm: L2 bound on a device's update.
    report_goal: fixed divisor of the sum of a round.
    delta: δ at which target ε are stated.
    workload: momentum and learning-rate schedule of the server.
    deployment_report_goal: report goal of a hypothetical deployment; None without one.
    rounds_per_evaluation: number of rounds between two evaluations.
    simulated: True if the schema is that of simulated cohorts, which no timer enforces.
    sampling: scheme by which batches are drawn, with parts for each strategy; None without. The
      schema is then of one participation, in a turn of an example's part.

  Raises:
    ValueError: naming the field and its value.
  """

  schema: schemas.MinSep
  clip_norm: float
  report_goal: int
  delta: float = 1e-6
  workload: workloads.Workload = workloads.Workload()
  deployment_report_goal: int | None = None
  rounds_per_evaluation: int = 10
  simulated: bool = False
  sampling: sampling_lib.Sampled | None = None

  def __post_init__(self):
    gaussian.check_positive('clip_norm', self.clip_norm)
    schemas.positive_integer('report_goal', self.report_goal)
    gaussian.check_delta(self.delta)
    goal = self.deployment_report_goal
    if goal is not None and goal < self.report_goal:
      raise ValueError(
        f'deployment_report_goal={goal} must be at least report_goal={self.report_goal}'
      )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """Training that a study repeats.

  Attributes:
    conditions: returns the conditions of a setting; raises ValueError where it does not fit.
    train: trains a cell in its folder. Returns its summary, as `Trained.summary` does, or None
      if it has written summary.json itself.
    timed: returns a cell of the same work with so many rounds, and an evaluation after the
      last; None if it cannot be timed beforehand.
    preload: modules that the processes of cells share, where cells have processes.
  """

  conditions: Callable[[design_lib.Setting], Conditions]
  train: 'Train'
  timed: Callable[['Cell', int], 'Cell'] | None = None
  preload: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Noise:
  """Noise of a setting.

  The last three say how much noise to expect in the model, before any training:
  the standard deviation of the noise in the mean update, summed as the server
  sums updates, for a learning rate of 1. Each is loss × effective noise
  multiplier × clip_norm / report_goal.

  Attributes:
    strategy: path of the strategy file.
    noise_multiplier: std(Z) / clip norm, of the run.
    rms: root mean square over all prefix sums.
    max: that of the worst prefix sum.
    optimiser: root mean square over the models of the actual momentum and
      learning-rate schedule.
    num_bands: bands of the strategy, where batches are drawn from as many parts; None otherwise.
  """

  strategy: str
  noise_multiplier: float
  rms: float
  max: float
  optimiser: float
  num_bands: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """One run of a study.

  Attributes:
    setting: mechanism and level of noise.
    conditions: conditions of the setting.
    noise: noise of the setting; None without noise.
    flags: flags of the design and of the setting.
    server_learning_rate: rate of the run.
    seed: seed of the run's data, cohorts and initial weights; not of its noise.
    study: folder of the study.
    metric: what the study compares, and `train` returns.
  """

  setting: design_lib.Setting
  conditions: Conditions
  noise: Noise | None
  flags: tuple[str, ...]
  server_learning_rate: float
  seed: int
  study: pathlib.Path
  metric: metric_lib.Metric = metric_lib.Metric()

  @property
  def name(self) -> str:
    """Name of the run's folder."""
    level = '' if self.setting.epsilon is None else f'-epsilon{self.setting.epsilon:g}'
    rate = f'{self.server_learning_rate:.6g}'
    return f'{strategy_files.slug(self.setting.label)}{level}-rate{rate}-seed{self.seed}'

  @property
  def folder(self) -> pathlib.Path:
    """Folder of the run."""
    return self.study / CELLS_NAME / self.name

  @property
  def num_rounds(self) -> int:
    """Number of rounds of the run."""
    return self.conditions.schema.num_rounds

  @property
  def arguments(self) -> dict[str, Any]:
    """Arguments of `train` that a study sets: folder, num_rounds, timer_rounds, delta and seed."""
    return {
      'folder': self.folder,
      'num_rounds': self.num_rounds,
      'timer_rounds': self.conditions.schema.min_sep,
      'delta': self.conditions.delta,
      'seed': self.seed,
    }

  @property
  def noise_multiplier(self) -> float:
    """std(Z) / clip norm, for the strategy as stored; 0 without noise."""
    return 0.0 if self.noise is None else self.noise.noise_multiplier

  @property
  def strategy(self) -> base.Strategy:
    """Strategy of the noise; the identity without noise."""
    return identity.Identity() if self.noise is None else files.load_strategy(self.noise.strategy)

  @property
  def sampling(self) -> sampling_lib.Sampled | None:
    """Scheme that draws the run's batches, with a part for each band; None for a schema."""
    scheme, bands = self.conditions.sampling, self.noise and self.noise.num_bands
    return scheme and dataclasses.replace(scheme, num_parts=bands or 1)

  def aggregator(self, **options: Any) -> 'CorrelatedNoiseFactory':
    """Returns an aggregator for `train` that bounds updates and adds the noise of the run.

    Args:
      **options: further arguments of `CorrelatedNoiseFactory`.
    """
    from fl_dpftrl.aggregators import factory  # Loads TensorFlow.

    return factory.CorrelatedNoiseFactory(
      self.strategy,
      noise_multiplier=self.noise_multiplier,
      clip_norm=self.conditions.clip_norm,
      report_goal=self.conditions.report_goal,
      **options,
    )

  def private_aggregator(self, template: Any) -> 'PrivateAggregator':
    """Returns a `PrivateAggregator` of updates like the template, for a loop of one's own.

    The study takes noise, participation and ε from its log. What an interrupted run left of it is
    removed: a new model must not go on with those rounds.
    """
    from fl_dpftrl.rounds import aggregator

    conditions, scheme = self.conditions, self.sampling
    folder = self.folder / ROUNDS_NAME
    shutil.rmtree(folder, ignore_errors=True)
    return aggregator.PrivateAggregator(
      self.strategy,
      template=template,
      noise_multiplier=self.noise_multiplier,
      clip_norm=conditions.clip_norm,
      report_goal=conditions.report_goal,
      folder=folder,
      schema=conditions.schema if scheme is None else None,
      sampling=scheme,
      delta=conditions.delta,
    )


Train: TypeAlias = Callable[[Cell], Mapping[str, Any] | None]


def check(design: design_lib.Design, task: Task) -> dict[design_lib.Setting, Conditions]:
  """Checks what can be checked before anything is trained or optimised.

  Returns:
    The conditions of each setting.

  Raises:
    ValueError: naming an argument that does not fit, or an unknown mechanism.
  """
  by_setting = {setting: task.conditions(setting) for setting in design.settings}
  for setting, conditions in by_setting.items():
    if design.epsilon_of == design_lib.DEPLOYMENT and not conditions.deployment_report_goal:
      raise ValueError(
        f'epsilon_of={design_lib.DEPLOYMENT!r} needs deployment_report_goal to be given'
      )
    if setting.mechanism is not None:
      try:
        candidates.named([setting.mechanism.mechanism])
      except ValueError as problem:
        raise ValueError(f'{setting.label}: {problem}') from None
  return by_setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cells:
  """Cells of a study, as far as results tell which there are.

  Attributes:
    design: design of the study.
    conditions: conditions of each setting.
    noises: noise of each setting; None without noise.
    folder: folder of the study.
  """

  design: design_lib.Design
  conditions: Mapping[design_lib.Setting, Conditions]
  noises: Mapping[design_lib.Setting, Noise | None]
  folder: pathlib.Path

  def cell(self, setting: design_lib.Setting, rate: float, seed: int) -> Cell:
    """Returns the cell of a setting with a rate and a seed."""
    return Cell(
      setting=setting,
      conditions=self.conditions[setting],
      noise=self.noises[setting],
      flags=(*self.design.flags, *setting.flags),
      server_learning_rate=rate,
      seed=seed,
      study=self.folder,
      metric=self.design.metric,
    )

  def tuning(self) -> Iterator[Cell]:
    """Yields the cells that choose a learning rate, or are the only ones."""
    for seed in self.design.seeds[: self.design.tuning_seeds]:
      for setting in self.design.settings:
        for rate in setting.server_learning_rates:
          yield self.cell(setting, rate, seed)

  def extended(self, rates: Mapping[design_lib.Setting, float]) -> Iterator[Cell]:
    """Yields the tuning cells of one further rate of each of these settings."""
    for seed in self.design.seeds[: self.design.tuning_seeds]:
      for setting, rate in rates.items():
        yield self.cell(setting, rate, seed)

  def final(self, rates: Mapping[design_lib.Setting, float]) -> Iterator[Cell]:
    """Yields the cells of each setting's chosen learning rate, for the other seeds."""
    for seed in self.design.seeds[self.design.tuning_seeds :]:
      for setting in self.design.settings:
        if setting in rates:
          yield self.cell(setting, rates[setting], seed)


def prepare(
  design: design_lib.Design,
  task: Task,
  folder: pathlib.Path,
  say: Callable[[str], None] | None = None,
) -> Cells:
  """Returns the cells of a study: finds the strategy of each setting, and calibrates its noise.

  Strategies are kept in the folder, and not searched for again.

  Args:
    design: design of the study.
    task: what is trained.
    folder: folder of the study, which exists.
    say: takes progress, in lines; None to write nothing: strategies must be in the folder then.

  Raises:
    ValueError: naming the setting, where no strategy or noise can be found.
  """
  conditions = check(design, task)
  if say is not None:
    (folder / STRATEGIES_NAME).mkdir(exist_ok=True)
  noises = {}
  for setting in design.settings:
    try:
      noises[setting] = _noise(design, setting, conditions[setting], folder, say)
    except ValueError as problem:
      raise ValueError(f'{setting.label}: {problem}') from None
  return Cells(design=design, conditions=conditions, noises=noises, folder=folder)


def _noise(
  design: design_lib.Design,
  setting: design_lib.Setting,
  conditions: Conditions,
  folder: pathlib.Path,
  say: Callable[[str], None] | None,
) -> Noise | None:
  if setting.mechanism is None or setting.epsilon is None:
    return None
  schema, scheme, bands = conditions.schema, conditions.sampling, None
  found = folder / STRATEGIES_NAME
  if scheme is None:
    path = strategy_files.strategy_file(setting.mechanism, schema, found, say)
    strategy = files.load_strategy(path)
  else:
    sized = [
      strategy_files.strategy_file(mechanism, schema, found, say)
      for mechanism in strategy_files.sized(setting.mechanism, scheme)
    ]
    path, strategy, guarantee = strategy_files.choose(
      sized, scheme, epsilon=setting.epsilon, delta=conditions.delta, workload=conditions.workload
    )
    bands = guarantee.sampling.num_parts
  if setting.noise_multiplier is not None:
    multiplier = setting.noise_multiplier
  elif setting.effective_noise_multiplier is not None:
    sensitivity = sensitivity_lib.sensitivity(strategy, schema).value
    multiplier = setting.effective_noise_multiplier * sensitivity
  elif scheme is not None:
    multiplier = guarantee.noise_multiplier
  else:
    multiplier = calibration.calibrate(
      strategy,
      schema,
      epsilon=setting.epsilon,
      delta=conditions.delta,
      num_coordinates=arithmetic.MANY_COORDINATES,
    ).noise_multiplier
  if design.epsilon_of == design_lib.DEPLOYMENT and conditions.deployment_report_goal:
    multiplier *= conditions.report_goal / conditions.deployment_report_goal
  sums = error_lib.error(strategy, schema.num_rounds, workloads.Workload())
  models = error_lib.error(strategy, schema.num_rounds, conditions.workload)
  unit = multiplier * conditions.clip_norm / conditions.report_goal
  return Noise(
    strategy=str(path),
    noise_multiplier=multiplier,
    rms=unit * sums.rms,
    max=unit * sums.max,
    optimiser=unit * models.rms,
    num_bands=bands,
  )
