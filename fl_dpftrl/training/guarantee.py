"""Why a run guarantees nothing, and the rounds and clients that a budget allows."""

from collections.abc import Iterator

from fl_dpftrl.participation import schemas
from fl_dpftrl.rounds import admission


def void_reason(unprotected: str | None, *, shows_errors: bool) -> str | None:
  """Returns why a run guarantees nothing, whatever its noise; None if it does."""
  shown = 'show_client_errors prints values of clients, for debugging' if shows_errors else None
  return '; '.join(filter(None, (unprotected, shown))) or None


def admitted(rounds: Iterator[schemas.Cohort], schema: schemas.MinSep) -> Iterator[schemas.Cohort]:
  """Yields the cohorts, of the devices that keep to a schema."""
  gate = admission.Gate(schema)
  for cohort in rounds:
    admitted = gate.check(cohort.device_ids)
    gate.record(admitted.column)
    device_ids = admitted.device_ids
    yield cohort._replace(device_ids=device_ids)
