"""Reasons why a run guarantees nothing, whatever its participation."""

from collections.abc import Iterator, Sequence

from fl_dpftrl.logs import keys, noise_record
from fl_dpftrl.logs import layout as layout_lib
from fl_dpftrl.participation import schemas
from fl_dpftrl.replaying import runs as runs_lib
from fl_dpftrl.strategies import document


def reason(runs: Sequence[runs_lib.Run]) -> str | None:
  """Returns why runs guarantee nothing; None if nothing voids them.

  A guarantee is void if a log says so, or if what was said of a run is not what its log records.
  """
  of_run = [f'run {i}: ' if len(runs) > 1 else '' for i in range(1, len(runs) + 1)]
  reasons = [(name, _reasons(run)) for name, run in zip(of_run, runs)]
  return '; '.join(name + '; '.join(own) for name, own in reasons if own) or None


def _reasons(run: runs_lib.Run) -> list[str]:
  stated = run.log.metadata.get(keys.VOID_KEY)
  recorded = _contradictions(run) if noise_record.stated(run.log.metadata) else ()
  return [*([stated] if stated else []), *recorded, *_declared(run)]


def _contradictions(run: runs_lib.Run) -> Iterator[str]:
  """Yields what was said of a run whose log records its noise, and records otherwise."""
  metadata, noise = run.log.metadata, run.noise
  multiplier = noise_record.read(metadata).noise_multiplier
  if multiplier not in (None, noise.noise_multiplier):
    yield (
      f'the log is of a run with the noise multiplier {multiplier}, not {noise.noise_multiplier}'
    )
  digest, own = metadata.get(keys.STRATEGY_KEY), document.strategy_digest(noise.strategy)
  if digest not in (None, own):
    yield (f'the log is of a run with another strategy, of digest {digest[:12]}…, not {own[:12]}…')
  if run.log.layout.first_round:
    yield (
      'the log records its noise, so its rounds are counted from 0, and they were counted from'
      f' {run.log.layout.first_round}'
    )
  elif keys.VERSION_KEY in metadata and run.log.layout != layout_lib.PLAIN:
    yield 'the log records its noise, so it has columns of its own, and others were named'


def _declared(run: runs_lib.Run) -> Iterator[str]:
  """Yields a schema that was said to be declared, and allows less than the recorded one."""
  own, recorded = run.declared_schema, keys.declared_schema(run.log.metadata)
  if own is None or recorded is None:
    return
  if (
    own.num_rounds < recorded.num_rounds
    or own.min_sep > recorded.min_sep
    or own.participations < recorded.participations
  ):
    yield (
      f'the log is of a run whose declared schema allows {_allowed(recorded)}, and it was said to'
      f' allow {_allowed(own)}'
    )


def _allowed(schema: schemas.MinSep) -> str:
  return (
    f'at most {schema.participations} of {schema.num_rounds} rounds, at least'
    f' {schema.min_sep} apart'
  )
