"""Exposure of each device to the noise of several runs.

Rounds are numbered across the runs, each run following on the one before. X = CᵀC is then block
diagonal, with a block for each run, divided by the squared ratio of its noise multiplier to the
first one.
"""

from collections.abc import Sequence

import numpy as np

from fl_dpftrl import claims
from fl_dpftrl.sensitivities import kinds as sensitivity_base
from fl_dpftrl.sensitivities import patterns


class Exposure:
  """The squared sensitivity of devices, in units of the first noise multiplier.

  The squared sensitivity over the squared noise multiplier is 2ρ of zCDP. The ρ of independent runs
  add up.

  Attributes:
    claims: those of the runs.
    starts: number of rounds before each run, int64.
  """

  def __init__(
    self,
    claims: Sequence[claims.Claim],
    num_rounds: Sequence[int],
    charged: Sequence[Sequence[int]] = (),
  ):
    """Takes for each run the places of those that its loss budget counted as earlier runs."""
    self.claims, self._charged = claims, charged or ((),) * len(claims)
    self.starts = np.cumsum([0, *num_rounds[:-1]])
    self._entries = [_entries(c, n) for c, n in zip(claims, num_rounds, strict=True)]
    multipliers = np.array([claim.noise_multiplier for claim in claims])
    # Without noise there is no unit; squares are then those of each run.
    self._unit = multipliers[0] if multipliers.all() else 0.0
    weights = self._unit / multipliers if self._unit else np.ones(len(claims))
    self._weights = weights**2

  def squares(self, rounds: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns each square, and if all are exact or else upper bounds; rounds go by device."""
    return patterns.pattern_squares(self._of_rounds, rounds, sizes)

  def places(self, rounds: np.ndarray) -> np.ndarray:
    """Returns the place of the run that each round is of."""
    return np.searchsorted(self.starts, rounds, side='right') - 1

  def lost(self, place: int, rounds: np.ndarray, owners: np.ndarray) -> np.ndarray | None:
    """Returns what each device lost in the runs that one was charged, in its units; None if none.

    Args:
      place: of the run.
      rounds, owners: of all participations, whose devices have the numbers from 0.
    """
    if not self._charged[place]:
      return None
    losses = np.zeros(owners.max(initial=-1) + 1)
    which = np.isin(self.places(rounds), self._charged[place])
    devices, sizes = np.unique(owners[which], return_counts=True)
    losses[devices] = self.squares(rounds[which], sizes)[0] * self.in_units(self.claims[place])
    return losses

  def in_units(self, claim: claims.Claim) -> float:
    """Returns the factor from squares here to those in units of a claim's noise multiplier."""
    return (claim.noise_multiplier / self._unit) ** 2 if self._unit else 1.0

  def _of_rounds(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns entries of X, each times the weight of its run."""
    if len(self._entries) == 1:
      return self._entries[0](rows, columns)
    rows, columns = np.broadcast_arrays(rows, columns)
    row_runs, column_runs = self.places(rows), self.places(columns)
    total = np.zeros(rows.shape)
    for i, (start, entries) in enumerate(zip(self.starts, self._entries)):
      which = (row_runs == i) & (column_runs == i)
      total[which] = self._weights[i] * entries(rows[which] - start, columns[which] - start)
    return total


def _entries(claim: claims.Claim, num_rounds: int) -> sensitivity_base.Entries:
  """Returns entries of X; over all rows for ever where the run is without an end."""
  if claim.answers.num_rounds is not None:
    return claim.strategy.gram_entries(num_rounds)
  gram = claim.strategy.endless_gram().tabulated(num_rounds)
  return lambda rows, columns: gram.entries(np.minimum(rows, columns), np.maximum(rows, columns))
