"""Reasons why a run guarantees nothing, whatever its participation."""

from collections.abc import Sequence

from fl_dpftrl.logs import noise_record, shards
from fl_dpftrl.replaying import runs as runs_lib


def reason(run: runs_lib.Run) -> str | None:
  """Returns why a run guarantees nothing; None if nothing voids it.

  A guarantee is void if the log says so, or if the log is of another run.
  """
  metadata = run.log.metadata
  own = noise_record.run_metadata(run.noise.strategy, run.noise.multiplier)
  reasons = [r for r in [metadata.get(shards.VOID_KEY)] if r]
  key = shards.NOISE_MULTIPLIER_KEY
  if metadata.get(key) not in (None, own[key]):
    reasons.append(
      f'the log is of a run with the noise multiplier {metadata[key]}, not {run.noise.multiplier}'
    )
  recorded = noise_record.read(metadata).until(run.log.num_rounds)
  own_changes = runs_lib.effective_changes(run.noise)
  # Files without a clip norm are older than the record of changes.
  if recorded.clip_norm is not None and (recorded.multiplier_changes != own_changes):
    reasons.append(
      f'the log is of a run whose noise multiplier {_changed(recorded.multiplier_changes)}, and it'
      f' was said that it {_changed(own_changes)}'
    )
  # A restart that never happened would give too small an ε.
  if recorded.restart_rounds != run.noise.restarts and (
    recorded.restarts or recorded.clip_norm is not None
  ):
    reasons.append(
      f'the log is of a run whose noise {_restarted(recorded.restart_rounds)}, and it was said'
      f' that it {_restarted(run.noise.restarts)}'
    )
  key = shards.STRATEGY_KEY
  if metadata.get(key) not in (None, own[key]):
    reasons.append(
      'the log is of a run with another strategy, of digest'
      f' {metadata[key][:12]}…, not {own[key][:12]}…'
    )
  return '; '.join(reasons) or None


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
