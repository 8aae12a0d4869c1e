"""Reasons why a run guarantees nothing, whatever its participation."""

from collections.abc import Iterator, Sequence

from fl_dpftrl.logs import claim_json, keys
from fl_dpftrl.participation import registry
from fl_dpftrl.replaying import opened_runs


def reason(runs: Sequence[opened_runs.Run]) -> str | None:
  """Returns why runs guarantee nothing, by a claim or against a log; None if nothing voids them."""
  run_prefixes = [f'run {i}: ' if len(runs) > 1 else '' for i in range(1, len(runs) + 1)]
  reasons = [(name, [*_reasons(run)]) for name, run in zip(run_prefixes, runs)]
  return '; '.join(name + '; '.join(own) for name, own in reasons if own) or None


def _reasons(run: opened_runs.Run) -> Iterator[str]:
  if run.claim.void_reason:
    yield run.claim.void_reason
  yield from against_log(run)


def against_log(run: opened_runs.Run) -> Iterator[str]:
  """Yields what was said of a run against its log, but for schemas that allow more."""
  stated = run.stated
  if stated is None:
    return
  claim_document = run.claim.to_json() | {'participation': stated['participation']}
  for sentence in claim_json.differences(stated, claim_document):
    yield f'the log is of a run with the {sentence}'
  recorded = stated['participation'] and registry.from_json(stated['participation'])
  if recorded and run.claim.participation:
    yield from filter(None, [run.claim.answers.voided_by(recorded)])
  if run.log.layout.first_round:
    yield (
      'the log states its claim, so its rounds are counted from 0, and they were counted from'
      f' {run.log.layout.first_round}'
    )
  elif keys.VERSION_KEY in run.log.metadata and run.log.layout.own_names:
    yield 'the log states its claim, so it has columns of its own, and others were named'
