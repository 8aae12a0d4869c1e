"""Cells of a study: one run each, with its strategy and calibrated noise."""

import dataclasses
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping

from experiments.stackoverflow import configuration
from experiments.stackoverflow.study import schemas, study_file
from fl_dpftrl import error as error_lib
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl import workloads
from fl_dpftrl.accounting import calibration
from fl_dpftrl.comparison import candidates
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.strategies import files

STRATEGIES_NAME = 'strategies'
CELLS_NAME = 'cells'


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
  """

  strategy: str
  noise_multiplier: float
  rms: float
  max: float
  optimiser: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
  """One run of a study.

  Attributes:
    setting: mechanism and level of noise.
    noise: noise of the setting; None without noise.
    flags: flags of the study and of the setting.
    server_learning_rate: rate of the run.
    seed: seed of the run.
  """

  setting: study_file.Setting
  noise: Noise | None
  flags: tuple[str, ...]
  server_learning_rate: float
  seed: int

  @property
  def name(self) -> str:
    """Returns the name of the run's folder."""
    level = '' if self.setting.epsilon is None else f'-epsilon{self.setting.epsilon:g}'
    rate = f'{self.server_learning_rate:.6g}'
    return f'{slug(self.setting.label)}{level}-rate{rate}-seed{self.seed}'

  def arguments(self, folder: pathlib.Path) -> list[str]:
    """Returns the arguments of `train` for a study in the folder."""
    if self.noise is None:
      noise = ['--mechanism=identity', '--noise_multiplier=0']
    else:
      noise = [
        f'--strategy={self.noise.strategy}',
        f'--noise_multiplier={self.noise.noise_multiplier!r}',
      ]
    return [
      *self.flags,
      *noise,
      f'--server_learning_rate={self.server_learning_rate!r}',
      f'--seed={self.seed}',
      f'--output_dir={folder / CELLS_NAME / self.name}',
      '--resume',
    ]


def slug(label: str) -> str:
  """Returns a label as a file name."""
  return re.sub(r'[^A-Za-z0-9_.]+', '_', label).strip('._') or 'unnamed'


def base_flags(study: study_file.Study, chosen: study_file.Setting) -> configuration.Hparams:
  """Returns the flags of a setting, without its noise.

  Raises:
    ValueError: for flags that do not fit.
  """
  return configuration.from_arguments(
    [*study.flags, *chosen.flags, '--mechanism=identity', '--noise_multiplier=0']
  )


def check(study: study_file.Study) -> None:
  """Checks what can be checked of a study before anything is trained or optimised.

  Raises:
    ValueError: naming a flag that does not fit, or a mechanism that there is not.
  """
  for chosen in study.settings:
    hparams = base_flags(study, chosen)
    if study.epsilon_of == study_file.DEPLOYMENT and hparams.deployment_report_goal is None:
      raise ValueError(
        f'epsilon_of={study_file.DEPLOYMENT!r} needs --deployment_report_goal among the flags'
      )
    if chosen.mechanism is not None:
      try:
        candidates.named([chosen.mechanism.mechanism])
      except ValueError as problem:
        raise ValueError(f'{chosen.label}: {problem}') from None


def prepare(
  study: study_file.Study,
  folder: pathlib.Path,
  say: Callable[[str], None] = print,
  *,
  search: bool = True,
) -> Mapping[study_file.Setting, Noise | None]:
  """Finds the strategy of each setting, and calibrates its noise.

  Strategies are kept in the folder, and not searched for again.

  Args:
    study: the study.
    folder: its folder, which exists.
    say: progress, in lines.
    search: False to write nothing: strategies must be in the folder then.

  Raises:
    ValueError: naming the setting, where no strategy or noise can be found.
  """
  check(study)
  if search:
    (folder / STRATEGIES_NAME).mkdir(exist_ok=True)
  found = {}
  for chosen in study.settings:
    try:
      found[chosen] = _noise(study, chosen, folder, say if search else None)
    except ValueError as problem:
      raise ValueError(f'{chosen.label}: {problem}') from None
  return found


def _noise(
  study: study_file.Study,
  chosen: study_file.Setting,
  folder: pathlib.Path,
  say: Callable[[str], None] | None,
) -> Noise | None:
  hparams = base_flags(study, chosen)
  if chosen.mechanism is None:
    return None
  schema = schemas.schema(hparams, study.seeds)
  path = _strategy_file(chosen.mechanism, schema, folder / STRATEGIES_NAME, say)
  strategy = files.load_strategy(path)
  sensitivity = sensitivity_lib.sensitivity(strategy, schema).value
  if chosen.noise_multiplier is not None:
    multiplier = chosen.noise_multiplier
  elif chosen.effective_noise_multiplier is not None:
    multiplier = chosen.effective_noise_multiplier * sensitivity
  else:
    multiplier = calibration.calibrate(
      strategy, schema, epsilon=chosen.epsilon, delta=hparams.delta
    ).noise_multiplier
  if study.epsilon_of == study_file.DEPLOYMENT:
    multiplier *= hparams.report_goal / hparams.deployment_report_goal
  optimiser = workloads.Workload(
    momentum=hparams.server_momentum,
    warmup_fraction=hparams.warmup_fraction,
    cooldown_fraction=hparams.cooldown_fraction,
  )
  sums = error_lib.error(strategy, schema.num_rounds, workloads.Workload())
  models = error_lib.error(strategy, schema.num_rounds, optimiser)
  unit = multiplier * hparams.clip_norm / hparams.report_goal
  return Noise(
    strategy=str(path),
    noise_multiplier=multiplier,
    rms=unit * sums.rms,
    max=unit * sums.max,
    optimiser=unit * models.rms,
  )


def _strategy_file(
  mechanism: study_file.Mechanism,
  schema: participation.MinSep,
  folder: pathlib.Path,
  say: Callable[[str], None] | None,
) -> pathlib.Path:
  """Returns the path of a mechanism's strategy, which is found if need be.

  Raises:
    ValueError: if `say` is None, and the folder does not have it.
  """
  if mechanism.made_for_min_sep is not None:
    min_sep = min(mechanism.made_for_min_sep, schema.num_rounds)
    schema = participation.MinSep(num_rounds=schema.num_rounds, min_sep=min_sep)
  most = '' if schema.max_participations is None else f'-k{schema.max_participations}'
  path = folder / f'{slug(mechanism.label)}-n{schema.num_rounds}-b{schema.min_sep}{most}.json'
  if not path.exists():
    if say is None:
      raise ValueError(f'{path} is missing; run the study first')
    (candidate,) = candidates.named([mechanism.mechanism])
    if candidate.optimised:
      say(f'optimising {mechanism.label} for n={schema.num_rounds}, b={schema.min_sep}')
    strategy = candidate.find(
      schema, objective=mechanism.objective, workload=workloads.Workload(), progress=None
    )
    files.save_strategy(path, strategy, schema=schema, objective=mechanism.objective)
  return path


def tuning(
  study: study_file.Study, noises: Mapping[study_file.Setting, Noise | None]
) -> Iterator[Cell]:
  """Yields the cells that choose a learning rate, or are the only ones."""
  for seed in study.seeds[: study.tuning_seeds]:
    for chosen in study.settings:
      for rate in chosen.server_learning_rates:
        yield cell(study, chosen, noises[chosen], rate, seed)


def extended(
  study: study_file.Study,
  noises: Mapping[study_file.Setting, Noise | None],
  rates: Mapping[study_file.Setting, float],
) -> Iterator[Cell]:
  """Yields the tuning cells of one further rate of each of these settings."""
  for seed in study.seeds[: study.tuning_seeds]:
    for chosen, rate in rates.items():
      yield cell(study, chosen, noises[chosen], rate, seed)


def final(
  study: study_file.Study,
  noises: Mapping[study_file.Setting, Noise | None],
  rates: Mapping[study_file.Setting, float],
) -> Iterator[Cell]:
  """Yields the cells of each setting's chosen learning rate, for the other seeds."""
  for seed in study.seeds[study.tuning_seeds :]:
    for chosen in study.settings:
      if chosen in rates:
        yield cell(study, chosen, noises[chosen], rates[chosen], seed)


def cell(
  study: study_file.Study, chosen: study_file.Setting, noise: Noise | None, rate: float, seed: int
) -> Cell:
  return Cell(
    setting=chosen,
    noise=noise,
    flags=(*study.flags, *chosen.flags),
    server_learning_rate=rate,
    seed=seed,
  )
