"""Sums of rounds with their rows of noise, and the means that are released."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_dpftrl.prove.auditing import canary_records
from fl_dpftrl.run import noise_rows, release, released, structures, sums


class NoisedSums:
  """The sum of a round's updates, and its release with the row of noise of the round.

  Attributes:
    template: structure of an update.
    coordinates: coordinates of a release, and their units.
    rows: rows of noise.
    table: what rounds released beside their means.
  """

  def __init__(
    self,
    template: structures.Template,
    coordinates: 'release.Release',
    rows: noise_rows.NoiseRows,
    table: released.ReleasedTable,
    records: canary_records.CanaryRecords | None = None,
    *,
    zeroing_norm: float | None = None,
  ):
    self.template, self.coordinates, self.rows, self.table = template, coordinates, rows, table
    self._records, self._has_noise = records, bool(coordinates.claim.noise_multiplier)
    self._sum = sums.Sum(coordinates.size, unit=coordinates.unit, zeroing_norm=zeroing_norm)

  def begin(self, canaries: np.ndarray) -> float:
    """Begins the sum of a round with updates of canaries, by numbers; returns its clip norm."""
    clip_norm = self.table.clip_norm
    self._sum.begin(clip_norm)
    if self._records is not None:
      for update in self._records.updates(canaries, clip_norm):
        self._sum.add([update[None]])
    return clip_norm

  def prepare(self) -> None:
    """Makes the round's row of noise, while a loop makes the updates."""
    if self._has_noise:
      self.rows.prepare(now=True)

  def add(self, arrays: Sequence[np.ndarray], values: np.ndarray | None) -> list[str]:
    """Adds updates with their metrics, as `Release.metrics` gives them; returns the outcomes."""
    outcomes = self._sum.add(arrays)
    counts = list(map(outcomes.count, sums.OUTCOMES[1:]))
    self._sum.add_last(self.coordinates.extra(counts, values))
    return outcomes

  def release(self, t: int, like: Any) -> tuple[Any, dict[str, float]]:
    """Returns the mean and the metrics of round t; its row is used from then on.

    Args:
      t: the round.
      like: an update, whose kind of arrays the mean has; None for arrays of NumPy.
    """
    total, row = self._sum.total, None
    if self._has_noise:
      row = self.rows.integers(t)
    else:
      self.rows.skip_to(t + 1)
    clip_norm, dtype = self.table.clip_norm, max(self.template.dtypes)
    mean = self.coordinates.mean(total, row, clip_norm, dtype)
    beside = self.coordinates.beside(total, row)
    if self._records is not None:
      noised = self.coordinates.noised(total, row, slice(self.template.size))
      self._records.put(t, self.coordinates.unit.size * noised, 1.0)  # In clip norms.
    self.table.put(t, beside)
    like = self.template.empty() if like is None else like
    return self.template.packed(mean, like), beside

  def close(self) -> None:
    """Lets another process use the rows and the table."""
    try:
      self.rows.close()
    finally:
      self.table.close()
