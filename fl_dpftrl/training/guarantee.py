"""The noise of a run, and the guarantee that follows from it: before, during and after."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fl_dpftrl.accounting import arithmetic as arithmetic_lib
from fl_dpftrl.accounting import run_noise
from fl_dpftrl.families import base
from fl_dpftrl.logs import keys, metric_names, noise_record
from fl_dpftrl.participation import schemas
from fl_dpftrl.rounds import admission, budget

if TYPE_CHECKING:
  from fl_dpftrl.training import loop  # Loads TensorFlow.


def void_reason(
  aggregator: Any, unprotected: str | None = None, *, shows_errors: bool = False
) -> str | None:
  """Returns why a run guarantees nothing; None if it does."""
  own = noise_record.void_reason(aggregator.noise_multiplier, aggregator.noise_seed)
  shown = 'show_client_errors prints values of clients, for debugging' if shows_errors else None
  return '; '.join(filter(None, (own, unprotected, shown))) or None


def log_metadata(
  run: 'loop.TrainingRun',
  *,
  declared: schemas.MinSep | None = None,
  not_private: Sequence[str] = (),
  trusted: Sequence[str] = (),
) -> dict[str, str]:
  """Returns the log's metadata about a run, apart from participation.

  Args:
    declared: schema that timers enforce, of all rounds that the run may have; None if not known.
    not_private: names of metrics that the guarantee does not cover.
    trusted: names of operations that the process has and `check_process` does not pass.
  """
  noise = run.aggregator
  return {
    **noise_record.run_metadata(
      noise.strategy, noise.noise_multiplier, clip_norm=noise.clip_norm, arithmetic=run.arithmetic
    ),
    **({} if declared is None else keys.of_schema(declared)),
    **({} if run.void_reason is None else {keys.VOID_KEY: run.void_reason}),
    **metric_names.metadata(not_private),
    **metric_names.metadata(trusted, metric_names.TRUSTED_KEY),
  }


def allowed_rounds(
  strategy: base.Strategy,
  noise_multiplier: float,
  schema: schemas.MinSep,
  arithmetic: arithmetic_lib.Arithmetic,
  *,
  delta: float,
  max_epsilon: float,
) -> int:
  """Returns the number of rounds whose ε, by the declared schema, stays within a budget."""
  noise = run_noise.RunNoise(schema.num_rounds, strategy, noise_multiplier, arithmetic=arithmetic)
  return budget.Budget(noise, schema, delta=delta, max_epsilon=max_epsilon).max_rounds


def admitted(rounds: Iterator[schemas.Cohort], schema: schemas.MinSep) -> Iterator[schemas.Cohort]:
  """Yields the cohorts, of the devices that keep to a schema."""
  gate = admission.Gate(schema)
  for cohort in rounds:
    device_ids = gate.check(cohort.device_ids).device_ids
    gate.record(device_ids)
    yield cohort._replace(device_ids=device_ids)
