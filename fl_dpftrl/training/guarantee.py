"""Why a run guarantees nothing, and the rounds and clients that a budget allows."""

from collections.abc import Iterator
from typing import Any

from fl_dpftrl.logs import claim as claim_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.rounds import admission


def void_reason(
  aggregator: Any, unprotected: str | None = None, *, shows_errors: bool = False
) -> str | None:
  """Returns why a run guarantees nothing; None if it does."""
  own = claim_lib.void_reason(aggregator.noise_multiplier, aggregator.noise_seed)
  shown = 'show_client_errors prints values of clients, for debugging' if shows_errors else None
  return '; '.join(filter(None, (own, unprotected, shown))) or None


def admitted(rounds: Iterator[schemas.Cohort], schema: schemas.MinSep) -> Iterator[schemas.Cohort]:
  """Yields the cohorts, of the devices that keep to a schema."""
  gate = admission.Gate(schema)
  for cohort in rounds:
    device_ids = gate.check(cohort.device_ids).device_ids
    gate.record(device_ids)
    yield cohort._replace(device_ids=device_ids)
