"""Exposure of each device to all noise streams of several runs.

Rounds are numbered across the runs, each run following on the one before. X = CᵀC is then block
diagonal, with a block for each stream. Each column of C is divided by the ratio of its round's
noise multiplier to the first one.
"""

from collections.abc import Sequence

import numpy as np

from fl_dpftrl.accounting import run_noise
from fl_dpftrl.sensitivity import base, given_patterns


def ends(noises: Sequence[run_noise.RunNoise]) -> np.ndarray:
  """The number of rounds up to the end of each run, int64."""
  return np.cumsum([noise.num_rounds for noise in noises])


class Exposure:
  """The squared sensitivity of devices, in units of the first noise multiplier.

  The squared sensitivity over the squared noise multiplier is 2ρ of zCDP. The ρ of several
  independent streams of noise add up.

  Args:
    noises: noise of each run, in the order in which rounds are numbered.
  """

  def __init__(self, noises: Sequence[run_noise.RunNoise]):
    self._noises = tuple(noises)
    self.ends = ends(noises)
    streams = [
      (first + stream.first_round, base.gram_entries(stream.strategy, stream.num_rounds))
      for first, noise in zip((0, *self.ends.tolist()), noises)
      for stream in noise.streams()
    ]
    self._starts = np.array([first for first, _ in streams])
    self._entries = [entries for _, entries in streams]
    multipliers = {m for noise in noises for m in noise.noise_multipliers}
    # Without noise there is no unit; squares are then those of each stream.
    self._weighted = len(multipliers) > 1 and 0.0 not in multipliers

  def squares(self, rounds: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns the square of each device, and whether all squares are exact.

    Squares that are not exact are upper bounds.

    Args:
      rounds: numbered across runs; ascending rounds, device after device.
      sizes: number of rounds of each device.
    """
    return given_patterns.pattern_squares(self._of_rounds, rounds, sizes)

  def _of_rounds(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    if len(self._entries) == 1:
      entries = self._entries[0](rows, columns)
    else:
      entries = self._of_streams(*np.broadcast_arrays(rows, columns))
    if self._weighted:
      entries = entries * self._weights(rows) * self._weights(columns)
    return entries

  def _of_streams(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    of_rows, of_columns = (
      np.searchsorted(self._starts, r, side='right') - 1 for r in (rows, columns)
    )
    total = np.zeros(rows.shape)
    for i, (start, entries) in enumerate(zip(self._starts, self._entries)):
      which = (of_rows == i) & (of_columns == i)
      total[which] = entries(rows[which] - start, columns[which] - start)
    return total

  def _weights(self, rounds: np.ndarray) -> np.ndarray:
    weights = np.empty(rounds.shape)
    places = np.searchsorted(self.ends, rounds, side='right')
    first = 0
    for i, (noise, end) in enumerate(zip(self._noises, self.ends)):
      which = places == i
      weights[which] = noise.multipliers_at(rounds[which] - first)
      first = end
    return self._noises[0].noise_multiplier / weights
