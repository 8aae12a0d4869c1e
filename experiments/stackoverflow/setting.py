"""The devices, timers, planned schema and strategy that a run's flags set."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator

from experiments.stackoverflow import configuration
from fl_dpftrl import adaptive_clipping, catalogue, participation
from fl_dpftrl.accounting import calibration, run_noise
from fl_dpftrl.families import base
from fl_dpftrl.guarding import admission, budget
from fl_dpftrl.optimization import registry
from fl_dpftrl.simulation import cohorts, scenario

STRATEGY_NAME = 'strategy.json'
_MECHANISM, _OBJECTIVE = 'blt', 'max'


def simulation(hparams: configuration.Hparams, num_clients: int) -> cohorts.Simulation:
  """The devices, of which number i has the data of client i, and their rounds.

  Raises:
    ValueError: if the data have fewer clients than the population, or the
      flags do not fit each other.
  """
  num_devices = num_clients
  if hparams.population is not None:
    if hparams.population > num_clients:
      raise ValueError(
        f'--population={hparams.population} is more than the {num_clients}'
        f' training clients of {hparams.dataset}'
      )
    num_devices = hparams.population
  if hparams.report_goal > num_devices:
    raise ValueError(
      f'--report_goal={hparams.report_goal} is more than the {num_devices}'
      f' devices of {hparams.dataset}'
    )
  timers = min(hparams.timer_rounds or 1, hparams.num_rounds)
  if timers * hparams.report_goal > num_devices:
    raise ValueError(
      f'--timer_rounds={hparams.timer_rounds} with'
      f' --report_goal={hparams.report_goal} needs'
      f' {timers * hparams.report_goal} devices and there are {num_devices}:'
      ' a round would find too few whose timer has run; a timer of'
      f' {num_devices // hparams.report_goal} would do'
    )
  return scenario.Scenario(
    population=num_devices,
    report_goal=hparams.report_goal,
    timer_hours=hparams.timer_hours,
    timer_rounds=hparams.timer_rounds,
    seed=hparams.seed,
    availability=hparams.availability,
    clients_per_round=hparams.clients_per_round or hparams.report_goal,
    dropout=hparams.dropout,
    devices={
      'check_ins_per_hour': hparams.check_ins_per_hour,
      'report_minutes': hparams.report_minutes,
    },
  ).simulation()


def planned_schema(hparams: configuration.Hparams, num_devices: int) -> participation.MinSep:
  """The participation that a strategy is optimised for, before the run.

  A timer in rounds says what min-sep is. For one in hours it is what the
  population allows at best, as production systems guess it.
  """
  if hparams.timer_hours is not None:
    min_sep = num_devices // hparams.report_goal
  else:
    min_sep = hparams.timer_rounds or 1
  return participation.MinSep(
    num_rounds=hparams.num_rounds, min_sep=min(max(min_sep, 1), hparams.num_rounds)
  )


def declared_schema(hparams: configuration.Hparams) -> participation.MinSep | None:
  """Returns the schema that the devices' timers enforce, if known in rounds."""
  if hparams.timer_rounds is None:
    return None
  return participation.MinSep(num_rounds=hparams.num_rounds, min_sep=hparams.timer_rounds)


def num_rounds(
  hparams: configuration.Hparams, found: base.Strategy, say: Callable[[str], None]
) -> int:
  """Returns the rounds that the privacy budget allows: all without one.

  Raises:
    ValueError: if the budget is too small for one round.
  """
  if hparams.max_epsilon is None:
    return hparams.num_rounds
  try:
    allowed = budget.Budget(
      run_noise.RunNoise.of(hparams.num_rounds, found, hparams.noise_multiplier),
      declared_schema(hparams),
      delta=hparams.delta,
      max_epsilon=hparams.max_epsilon,
    ).max_rounds
  except ValueError as error:
    raise ValueError(f'--{error}') from error
  if allowed < hparams.num_rounds:
    say(
      f'--max_epsilon={hparams.max_epsilon:g} allows {allowed} of {hparams.num_rounds} rounds: the'
      ' run ends there; more --noise_multiplier would allow more'
    )
  return allowed


def rounds(
  hparams: configuration.Hparams, given: Iterator[participation.Cohort]
) -> Iterator[participation.Cohort]:
  """Yields the cohorts; with a privacy budget, of the devices that keep to the schema."""
  if hparams.max_epsilon is None:
    yield from given
    return
  gate = admission.Gate(declared_schema(hparams))
  for cohort in given:
    admitted = gate.check(cohort.device_ids).device_ids
    gate.record(admitted)
    yield cohort._replace(device_ids=admitted)


def strategy(
  hparams: configuration.Hparams, folder: pathlib.Path, num_devices: int, say: Callable[[str], None]
) -> base.Strategy:
  """The run's strategy: that of the run in the folder, if there is one.

  Raises:
    ValueError: if the file or name is unknown, of another mechanism, or made
      for fewer rounds.
  """
  path = folder / STRATEGY_NAME
  if path.exists():
    return catalogue.load_strategy(path)
  schema = planned_schema(hparams, num_devices)
  if hparams.strategy is not None:
    found = catalogue.load_strategy(hparams.strategy)
    if hparams.mechanism not in (None, found.family):
      raise ValueError(
        f'--mechanism={hparams.mechanism} but --strategy={hparams.strategy} is'
        f' of the family {found.family}; leave one of the two out'
      )
    base.check_num_rounds(found, hparams.num_rounds)
  else:
    found = _optimised(hparams.mechanism or _MECHANISM, schema, say)
  return found


def clip_norm(hparams: configuration.Hparams) -> float | adaptive_clipping.AdaptiveClipping:
  """Returns the run's clip norm, or the rule that it follows."""
  if hparams.clip_quantile is None:
    return hparams.clip_norm
  return adaptive_clipping.AdaptiveClipping(
    hparams.clip_norm, target_quantile=hparams.clip_quantile, rounds=hparams.clip_rounds
  )


def calibrated(hparams: configuration.Hparams, found: base.Strategy) -> configuration.Hparams:
  """Returns the flags with the noise multiplier that a target ε asks for.

  The noise is calibrated for the participation that the timers enforce, for the
  run itself or for its hypothetical deployment. A noise multiplier that is
  given, or was recorded by the run's first start, stays as it is.

  Raises:
    ValueError: if no noise multiplier meets the target.
  """
  if hparams.noise_multiplier is not None:
    return hparams
  target, ratio = hparams.epsilon, 1.0
  if target is None:
    target = hparams.deployment_epsilon
    ratio = hparams.report_goal / hparams.deployment_report_goal
  guarantee = calibration.calibrate(
    found, enforced_schema(hparams), epsilon=target, delta=hparams.delta
  )
  return dataclasses.replace(hparams, noise_multiplier=ratio * guarantee.noise_multiplier)


def enforced_schema(hparams: configuration.Hparams) -> participation.MinSep:
  """Returns the participation that timers in rounds, or none, enforce."""
  min_sep = min(hparams.timer_rounds or 1, hparams.num_rounds)
  return participation.MinSep(num_rounds=hparams.num_rounds, min_sep=min_sep)


def record_strategy(
  hparams: configuration.Hparams, folder: pathlib.Path, num_devices: int, found: base.Strategy
) -> None:
  """Keeps the run's strategy in its folder, from the first round on."""
  if not (folder / STRATEGY_NAME).exists():
    catalogue.save_strategy(
      folder / STRATEGY_NAME,
      found,
      schema=planned_schema(hparams, num_devices),
      objective=_OBJECTIVE,
    )


def _optimised(
  mechanism: str, schema: participation.MinSep, say: Callable[[str], None]
) -> base.Strategy:
  registry.check_family(mechanism)
  if mechanism not in registry.OPTIMIZERS:
    raise ValueError(
      f'--mechanism={mechanism} is unknown; known are {", ".join(registry.OPTIMIZERS)}'
    )
  if mechanism not in catalogue.parameter_free():
    say(f'optimising {mechanism} for {schema.num_rounds} rounds with min-sep {schema.min_sep}')
  return registry.optimize(mechanism, schema, objective=_OBJECTIVE)
