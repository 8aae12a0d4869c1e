"""Reasons why a run guarantees nothing, whatever its participation.

A log that records anything of its noise records all changes and restarts of it: one that it
does not record did not happen. Whatever is said of such a run must be what the log records, since
a change or restart that never happened gives too small an ε.
"""

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
  recorded = noise_record.read(metadata).until(run.log.num_rounds)
  multiplier = recorded.parts[0].noise_multiplier
  if multiplier not in (None, noise.noise_multiplier):
    yield (
      f'the log is of a run with the noise multiplier {multiplier}, not {noise.noise_multiplier}'
    )
  if recorded.multiplier_changes != noise.multiplier_changes:
    yield (
      f'the log is of a run whose noise multiplier {_changed(recorded.multiplier_changes)}, and it'
      f' was said that it {_changed(noise.multiplier_changes)}'
    )
  if recorded.restarts != noise.restarts:
    yield (
      f'the log is of a run whose noise {_restarted(recorded.restarts)}, and it was said'
      f' that it {_restarted(noise.restarts)}'
    )
  elif _digests(recorded.later_strategies) != _digests(noise.later_strategies):
    yield 'the log is of a run that restarted with another strategy than was said'
  digest, own = metadata.get(keys.STRATEGY_KEY), document.strategy_digest(noise.strategy)
  if digest not in (None, own):
    yield (f'the log is of a run with another strategy, of digest {digest[:12]}…, not {own[:12]}…')
  # The rounds of changes and restarts are counted from 0, as in a file of this format.
  if run.log.layout.first_round:
    yield (
      'the log records its noise, so its rounds are counted from 0, and they were counted from'
      f' {run.log.layout.first_round}'
    )
  elif keys.VERSION_KEY in metadata and run.log.layout != layout_lib.PLAIN:
    yield 'the log records its noise, so it has columns of its own, and others were named'


def _declared(run: runs_lib.Run) -> Iterator[str]:
  """Yields a schema that was said to be declared, and allows less than the recorded one."""
  own, recorded = run.declared_schema, keys.planned_schema(run.log.metadata)
  if own is None or recorded is None:
    return
  allowed = min(recorded.participations, run.log.num_rounds)
  fewer = own.participations < min(allowed, _fitting(own.num_rounds, recorded.min_sep))
  if type(own) is not schemas.MinSep or own.min_sep > recorded.min_sep or fewer:
    yield (
      f'the log is of a run whose declared schema allows rounds at least {recorded.min_sep} apart'
      f' and at most {recorded.participations} of them, and it was said to allow at least'
      f' {own.min_sep} and at most {own.participations}'
    )


def _fitting(num_rounds: int, min_sep: int) -> int:
  return schemas.MinSep(num_rounds=num_rounds, min_sep=min_sep).participations


def _digests(strategies):
  return [(t, document.strategy_digest(strategy)) for t, strategy in strategies]


def _restarted(rounds: Sequence[int]) -> str:
  if not rounds:
    return 'never restarted'
  more = f' and {len(rounds) - 3} more' if len(rounds) > 3 else ''
  return f'restarted at round {", ".join(map(str, rounds[:3]))}{more}'


def _changed(changes: Sequence[tuple[int, float]]) -> str:
  if not changes:
    return 'never changed'
  listed = [f'to {multiplier:g} at round {t}' for t, multiplier in changes[:3]]
  more = f' and {len(changes) - 3} more times' if len(changes) > 3 else ''
  return f'changed {", ".join(listed)}{more}'
