"""Exposure of each device to the noise of several runs.

Rounds are numbered across the runs, each run following on the one before. X = CᵀC is then block
diagonal, with a block for each run, divided by the squared ratio of its noise multiplier to the
first one.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fl_dpftrl import claims
from fl_dpftrl.accounting import guarantees
from fl_dpftrl.files import json_files
from fl_dpftrl.sensitivities import kinds as sensitivity_base
from fl_dpftrl.sensitivities import patterns


class Exposure:
  """The squared sensitivity of devices, in units of the first noise multiplier.

  The squared sensitivity over the squared noise multiplier is 2ρ of zCDP. The ρ of independent runs
  add up.

  Attributes:
    ends: number of rounds up to the end of each run, int64.
  """

  def __init__(self, claims: Sequence[claims.Claim], num_rounds: Sequence[int]):
    self.ends = np.cumsum(num_rounds)
    self._starts = np.append(0, self.ends[:-1])
    self._entries = [_entries(c, n) for c, n in zip(claims, num_rounds, strict=True)]
    multipliers = np.array([claim.noise_multiplier for claim in claims])
    # Without noise there is no unit; squares are then those of each run.
    self._unit = multipliers[0] if multipliers.all() else 0.0
    weights = self._unit / multipliers if self._unit else np.ones(len(claims))
    self._weights = weights**2

  def squares(self, rounds: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, bool]:
    """Returns each square, and if all are exact or else upper bounds; rounds go by device."""
    return patterns.pattern_squares(self._of_rounds, rounds, sizes)

  def in_units(self, claim: claims.Claim) -> float:
    """Returns the factor from squares here to those in units of a claim's noise multiplier."""
    return (claim.noise_multiplier / self._unit) ** 2 if self._unit else 1.0

  def _of_rounds(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Returns entries of X, each times the weight of its run."""
    if len(self._entries) == 1:
      return self._entries[0](rows, columns)
    rows, columns = np.broadcast_arrays(rows, columns)
    row_devices, column_devices = (
      np.searchsorted(self._starts, rounds, side='right') - 1 for rounds in (rows, columns)
    )
    total = np.zeros(rows.shape)
    for i, (start, entries) in enumerate(zip(self._starts, self._entries)):
      which = (row_devices == i) & (column_devices == i)
      total[which] = self._weights[i] * entries(rows[which] - start, columns[which] - start)
    return total


def _entries(claim: claims.Claim, num_rounds: int) -> sensitivity_base.Entries:
  """Returns entries of X; over all rows for ever where the run is without an end."""
  if claim.answers.num_rounds is not None:
    return claim.strategy.gram_entries(num_rounds)
  gram = claim.strategy.endless_gram().tabulated(num_rounds)
  return lambda rows, columns: gram.entries(np.minimum(rows, columns), np.maximum(rows, columns))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PerDevice:
  """Privacy loss of the devices that took part, each alone.

  Attributes:
    most_exposed: the device with the largest loss.
    quantiles: shares, 0 to 1, of the devices, with the largest loss within each.
    rho_histogram: lower end, upper end and number of devices by ρ; empty without noise.
  """

  most_exposed: str | int
  quantiles: tuple[tuple[float, guarantees.Guarantee], ...]
  rho_histogram: tuple[tuple[float, float, int], ...] = ()

  def to_json(self) -> json_files.Object:
    """Returns the fields; no histogram without noise."""
    result: json_files.Object = {
      'most_exposed': self.most_exposed,
      'quantiles': [{'share': share, **loss.to_json()} for share, loss in self.quantiles],
    }
    if self.rho_histogram:
      result['rho_histogram'] = [list(bar) for bar in self.rho_histogram]
    return result


@dataclasses.dataclass(frozen=True, kw_only=True)
class Violations:
  """Consequences of a declared schema that some devices did not keep to.

  Attributes:
    num_devices: devices that did not keep to it in at least one run.
    num_rounds: rounds in which a device took part too soon, or too often.
    first_rounds: the first few of these, each as its `run`, from 1, and `round`.
    largest: the largest privacy loss of any one of these devices, from its actual rounds.
    num_complied: devices that kept to it.
    complied: privacy loss of any one device that kept to it, by the declared schema.
  """

  num_devices: int
  num_rounds: int
  first_rounds: tuple[dict[str, int], ...]
  largest: guarantees.Guarantee
  num_complied: int
  complied: guarantees.Guarantee

  MEANING = (
    'each device alone that kept to the declared schema has the loss of that schema, whatever'
    ' other devices did: its own updates entered only such rounds as the schema allows. Whether a'
    ' device is among those that kept to it is itself not protected. It must not depend on the'
    " device's data, nor, through released models, on anything computed from it"
  )

  def to_json(self, *, void: bool) -> json_files.Object:
    """Returns the counts and both losses; and what they mean, unless all is void."""
    return {
      'num_devices': self.num_devices,
      'num_rounds': self.num_rounds,
      'first_rounds': list(self.first_rounds),
      'largest': self.largest.to_json(),
      'num_complied': self.num_complied,
      'complied': self.complied.to_json(),
      **({} if void else {'meaning': self.MEANING}),
    }
