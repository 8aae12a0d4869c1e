"""Canaries: made-up devices, whose secret coins say which of their updates enter the sums."""

import dataclasses
import hashlib
from typing import Any

import numpy as np

from fl_dpftrl.support import checks

NEED = 'canaries need noise, and a MinSep of devices without a population'
"""What a run with canaries needs."""

_BITS = 22  # of an id, for the number of a canary


@dataclasses.dataclass(frozen=True)
class Canaries:
  """Made-up devices beside the cohorts of a run, by which `audit_run` measures what releases show.

  Half of them, by secret fair coins, send an update as long as the clip norm, in a direction of
  their own; the others send zeros. They take part as the schema allows, are charged in the log like
  any device, and stand for no person in any count.

  Attributes:
    number: how many, at most the largest power of 2 within the model's parameters.
    norm: length of their updates in clip norms; 1 but for rehearsals, where 1000 tests the clipping
      and spoils the model if that fails.

  Source: docs/canaries.md.
  """

  number: int
  norm: float = 1.0

  def __post_init__(self):
    object.__setattr__(self, 'number', checks.whole(1, 1 << _BITS, canaries=self.number))
    object.__setattr__(self, 'norm', checks.between(1e-3, 1e6, canaries_norm=self.norm))

  def numbers(self, t: int, schema: Any) -> np.ndarray:
    """Returns the canaries whose turn round t is, by numbers from 0; the gate may allow fewer."""
    period = schema.min_sep
    if schema.num_rounds is not None:
      period *= max(1, schema.num_rounds // (period * schema.participations))
    return np.arange(t % period, self.number, period)

  def ids(self, run: str, kind: Any) -> Any:
    """Returns the ids of all canaries, which no device of the run may have.

    Args:
      run: random identity of the run, in hexadecimal: another run has other ids.
      kind: type of the ids in its log, whole numbers or text.
    """
    import pyarrow as pa  # Slow to load, and no account of noise needs it.

    from fl_dpftrl.logs import id_spellings

    if not pa.types.is_integer(kind):
      names = [f'{id_spellings.CANARY}{run}-{j}' for j in range(self.number)]
      return pa.array(names, pa.string() if pa.types.is_null(kind) else kind)
    digest = hashlib.sha256(f'canaries {run}'.encode()).digest()
    first = (int.from_bytes(digest[:8], 'big') >> _BITS << _BITS) - (1 << 63)
    return pa.array(first + np.arange(self.number, dtype=np.int64))
