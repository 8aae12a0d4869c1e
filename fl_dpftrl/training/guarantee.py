"""The noise of a run, and the guarantee that follows from it: before, during and after."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from fl_dpftrl.accounting import gaussian, run_noise
from fl_dpftrl.families import base
from fl_dpftrl.guarding import admission, budget
from fl_dpftrl.logs import canaries as canary_ids
from fl_dpftrl.logs import keys, metric_names, noise_record
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import runs
from fl_dpftrl.reports import setting

if TYPE_CHECKING:
  from fl_dpftrl.accounting import Guarantee
  from fl_dpftrl.aggregators import factory  # Loads TensorFlow.

STRATEGY_NAME = 'strategy.json'
NO_NOISE = 'noise is off (noise_multiplier 0)'
NOISE_SEED = 'the noise seed was given, so whoever knows it can remove the noise'


def void_reason(aggregator: 'factory.CorrelatedNoiseFactory') -> str | None:
  """Returns why a run with this noise guarantees nothing; None if it does."""
  if not aggregator.noise_multiplier:
    return NO_NOISE
  return None if aggregator.noise_seed is None else NOISE_SEED


def log_metadata(
  aggregator: 'factory.CorrelatedNoiseFactory',
  void: str | None,
  *,
  num_canaries: int = 0,
  not_private: Sequence[str] = (),
) -> dict[str, str]:
  """Returns the log's metadata about the run, apart from participation.

  Args:
    aggregator: adds the noise.
    void: reason why the run guarantees nothing; None if it does.
    num_canaries: devices of the log that are canaries.
    not_private: names of metrics that the guarantee does not cover.
  """
  return {
    **noise_record.run_metadata(
      aggregator.strategy, aggregator.noise_multiplier, clip_norm=aggregator.clip_norm
    ),
    **canary_ids.metadata(num_canaries),
    **({} if void is None else {keys.VOID_KEY: void}),
    **metric_names.metadata(not_private),
  }


def account(
  aggregator: 'factory.CorrelatedNoiseFactory', schema: schemas.MinSep, *, delta: float
) -> 'Guarantee':
  """Returns the guarantee of the run's noise under a schema."""
  return gaussian.account(
    aggregator.strategy, schema, noise_multiplier=aggregator.noise_multiplier, delta=delta
  )


def replayable(
  aggregator: 'factory.CorrelatedNoiseFactory', log: log_lib.Log, declared: schemas.MinSep | None
) -> runs.Run:
  """Returns a run's log, noise and declared schema, as `replay` and bundles take them."""
  return runs.Run.of(
    log, aggregator.strategy, noise_multiplier=aggregator.noise_multiplier, declared_schema=declared
  )


def allowed_rounds(
  strategy: base.Strategy,
  noise_multiplier: float,
  schema: schemas.MinSep,
  *,
  delta: float,
  max_epsilon: float,
) -> int:
  """Returns the number of rounds whose ε, by the declared schema, stays within a budget.

  Raises:
    ValueError: naming max_epsilon, if the budget is too small for one round.
  """
  noise = run_noise.RunNoise.of(schema.num_rounds, strategy, noise_multiplier)
  return budget.Budget(noise, schema, delta=delta, max_epsilon=max_epsilon).max_rounds


def admitted(rounds: Iterator[schemas.Cohort], schema: schemas.MinSep) -> Iterator[schemas.Cohort]:
  """Yields the cohorts, of the devices that keep to a schema."""
  gate = admission.Gate(schema)
  for cohort in rounds:
    device_ids = gate.check(cohort.device_ids).device_ids
    gate.record(device_ids)
    yield cohort._replace(device_ids=device_ids)


def deployment(
  aggregator: 'factory.CorrelatedNoiseFactory',
  schema: schemas.MinSep,
  *,
  report_goal: int,
  population: int,
  delta: float,
) -> setting.Deployment | None:
  """Returns the guarantee of a larger deployment with this run's noise per device.

  A run of more devices a round, with as much more noise on the sum and the same
  participation of each device, has the same noise on the mean.

  Args:
    aggregator: aggregator of this run.
    schema: participation of this run.
    report_goal: report goal of the deployment.
    population: devices of this run.
    delta: δ at which ε is stated.

  Returns:
    None for a run without noise.
  """
  if not aggregator.noise_multiplier:
    return None
  ratio = report_goal / aggregator.report_goal
  guarantee = gaussian.account(
    aggregator.strategy, schema, noise_multiplier=aggregator.noise_multiplier * ratio, delta=delta
  )
  return setting.Deployment(
    report_goal=report_goal,
    population=round(population * ratio),
    noise_multiplier=guarantee.noise_multiplier,
    sensitivity=guarantee.sensitivity,
    rho=guarantee.rho,
    epsilon=guarantee.epsilon,
    delta=guarantee.delta,
  )
