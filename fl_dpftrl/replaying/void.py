"""Reasons why a run guarantees nothing, whatever its participation."""

from collections.abc import Iterator, Sequence

from fl_dpftrl.logs import claim as claim_lib
from fl_dpftrl.logs import keys
from fl_dpftrl.participation import registry, schemas
from fl_dpftrl.replaying import runs as runs_lib


def reason(runs: Sequence[runs_lib.Run]) -> str | None:
  """Returns why runs guarantee nothing, by a claim or against a log; None if nothing voids them."""
  of_run = [f'run {i}: ' if len(runs) > 1 else '' for i in range(1, len(runs) + 1)]
  reasons = [(name, [*_reasons(run)]) for name, run in zip(of_run, runs)]
  return '; '.join(name + '; '.join(own) for name, own in reasons if own) or None


def _reasons(run: runs_lib.Run) -> Iterator[str]:
  if run.claim.void_reason:
    yield run.claim.void_reason
  yield from contradictions(run)


def contradictions(run: runs_lib.Run) -> Iterator[str]:
  """Yields what was said of a run against its log, but for schemas that allow more."""
  stated = run.stated
  if stated is None:
    return
  said = run.claim.to_json() | {'participation': stated['participation']}
  for sentence in claim_lib.differences(stated, said):
    yield f'the log is of a run with the {sentence}'
  recorded = stated['participation'] and registry.from_json(stated['participation'])
  if recorded is not None and run.claim.schema is not None and not recorded.is_drawn:
    if not _allows(run.claim.schema, recorded):
      yield (
        f'the log is of a run whose declared schema allows {_allowed(recorded)}, and it was said to'
        f' allow {_allowed(run.claim.schema)}'
      )
  if recorded is not None and run.claim.schema is not None and recorded.is_drawn:
    yield 'the log is of a run whose participation was drawn, and it was said to keep to a schema'
  if run.log.layout.first_round:
    yield (
      'the log states its claim, so its rounds are counted from 0, and they were counted from'
      f' {run.log.layout.first_round}'
    )
  elif keys.VERSION_KEY in run.log.metadata and run.log.layout.own_names:
    yield 'the log states its claim, so it has columns of its own, and others were named'


def _allows(schema: schemas.MinSep, other: schemas.MinSep) -> bool:
  """Returns whether a schema allows all that the other one does."""
  if schema.is_own or other.is_own:
    return schema == other
  return (
    schema.num_rounds >= other.num_rounds
    and schema.min_sep <= other.min_sep
    and schema.participations >= other.participations
  )


def _allowed(schema: schemas.MinSep) -> str:
  return (
    f'at most {schema.participations} of {schema.num_rounds} rounds, at least'
    f' {schema.min_sep} apart'
  )
