"""Whether a log is of the run that it is said to be of."""

import hashlib
import json

import numpy as np

from fl_dpftrl.accounting import sampling as sampling_lib
from fl_dpftrl.families import base
from fl_dpftrl.logs import runs as runs_lib
from fl_dpftrl.logs import shards


def run_metadata(
    strategy: base.Strategy, noise_multiplier: float
) -> dict[str, str]:
  """What a log's file says of the run, for replay to hold it against."""
  return {
      shards.NOISE_MULTIPLIER_KEY: repr(float(noise_multiplier)),
      shards.STRATEGY_KEY: strategy_digest(strategy),
  }


def sampling_metadata(scheme: sampling_lib.Cyclic) -> dict[str, str]:
  """What a log's file says of how its batches were drawn."""
  size = scheme.batch_size
  drawn = {
      'sampling': sampling_lib.name(scheme),
      'num_examples': scheme.num_examples,
      'batch_size': int(size) if size == int(size) else size,
      'num_parts': scheme.num_parts,
  }
  return {shards.SAMPLING_KEY: json.dumps(drawn)}


def strategy_digest(strategy: base.Strategy) -> str:
  """SHA-256 of a strategy's family and parameters, in hexadecimal.

  Of the family's name and, for each parameter by name, its name, shape and
  little-endian float64 values, so that it is the same for every file format.
  """
  digest = hashlib.sha256(strategy.family.encode())
  for name, value in sorted(strategy.parameters().items()):
    array = np.asarray(value, dtype='<f8')
    digest.update(json.dumps([name, array.shape]).encode())
    digest.update(array.tobytes())
  return digest.hexdigest()


def void_reason(run: runs_lib.Run) -> str | None:
  """Why a run guarantees nothing: its log says so, or is of another run."""
  metadata = run.log.metadata
  own = run_metadata(run.noise.strategy, run.noise.multiplier)
  reasons = [r for r in [metadata.get(shards.VOID_KEY)] if r]
  key = shards.NOISE_MULTIPLIER_KEY
  if metadata.get(key) not in (None, own[key]):
    reasons.append(
        f'the log is of a run with the noise multiplier {metadata[key]}, not'
        f' {run.noise.multiplier}'
    )
  key = shards.STRATEGY_KEY
  if metadata.get(key) not in (None, own[key]):
    reasons.append(
        'the log is of a run with another strategy, of digest'
        f' {metadata[key][:12]}…, not {own[key][:12]}…'
    )
  return '; '.join(reasons) or None
