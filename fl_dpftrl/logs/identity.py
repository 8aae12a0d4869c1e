"""Metadata that tie a log to its run, and the check that they agree."""

import json
from collections.abc import Sequence

from fl_dpftrl import digests
from fl_dpftrl.accounting import sampling as sampling_lib
from fl_dpftrl.families import base
from fl_dpftrl.logs import noise_record, shards
from fl_dpftrl.logs import runs as runs_lib


def run_metadata(
  strategy: base.Strategy,
  noise_multiplier: float,
  *,
  clip_norm: float | None = None,
  changes: Sequence[tuple[int, float, float]] = (),
) -> dict[str, str]:
  """Returns the metadata of a run, which replay compares with its arguments.

  Args:
    strategy: C.
    noise_multiplier: std(Z) / clip_norm in round 0.
    clip_norm: L2 bound on one update in round 0.
    changes: (round, noise multiplier, clip norm) of each change, with the
      values from that round on, as `LogWriter.change_noise` recorded them.
  """
  return {
    **noise_record.metadata(noise_multiplier, clip_norm=clip_norm, changes=changes),
    shards.STRATEGY_KEY: digests.strategy_digest(strategy),
  }


def sampling_metadata(scheme: sampling_lib.Cyclic) -> dict[str, str]:
  """Returns the metadata about how the run's batches were drawn."""
  size = scheme.batch_size
  drawn = {
    'sampling': sampling_lib.name(scheme),
    'num_examples': scheme.num_examples,
    'batch_size': int(size) if size == int(size) else size,
    'num_parts': scheme.num_parts,
  }
  return {shards.SAMPLING_KEY: json.dumps(drawn)}


def void_reason(run: runs_lib.Run) -> str | None:
  """Returns why a run guarantees nothing; None if nothing voids it.

  A guarantee is void if the log says so, or if the log is of another run.
  """
  metadata = run.log.metadata
  own = run_metadata(run.noise.strategy, run.noise.multiplier)
  reasons = [r for r in [metadata.get(shards.VOID_KEY)] if r]
  key = shards.NOISE_MULTIPLIER_KEY
  if metadata.get(key) not in (None, own[key]):
    reasons.append(
      f'the log is of a run with the noise multiplier {metadata[key]}, not {run.noise.multiplier}'
    )
  recorded = noise_record.read(metadata)
  own_changes = runs_lib.effective_changes(run.noise)
  # Files without a clip norm are older than the record of changes.
  if recorded.clip_norm is not None and (recorded.multiplier_changes != own_changes):
    reasons.append(
      'the log is of a run whose noise multiplier changed'
      f' {_told(recorded.multiplier_changes)}, not {_told(own_changes)}'
    )
  key = shards.STRATEGY_KEY
  if metadata.get(key) not in (None, own[key]):
    reasons.append(
      'the log is of a run with another strategy, of digest'
      f' {metadata[key][:12]}…, not {own[key][:12]}…'
    )
  return '; '.join(reasons) or None


def _told(changes: Sequence[tuple[int, float]]) -> str:
  if not changes:
    return 'never'
  listed = [f'to {multiplier:g} at round {t}' for t, multiplier in changes[:3]]
  more = f' and {len(changes) - 3} more times' if len(changes) > 3 else ''
  return ', '.join(listed) + more
