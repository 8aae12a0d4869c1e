"""Devices that did not keep to the schemas declared for their runs, counted."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from fl_dpftrl import counts as counts_lib
from fl_dpftrl import participation


@dataclasses.dataclass(frozen=True, eq=False)
class Breaches:
  """Counts of breaches, which add up over different devices.

  Attributes:
    num_devices: devices that did not keep to a schema in at least one run.
    rounds: number of participations in breach, by round, numbered across runs. One is in breach
      if it is too soon after the one before, or one too many in its run.
    square: largest squared sensitivity of these devices, over all runs.
  """

  num_devices: int = 0
  rounds: counts_lib.Counts = counts_lib.Counts()
  square: float = 0.0

  def __add__(self, other: 'Breaches') -> 'Breaches':
    return Breaches(
      self.num_devices + other.num_devices,
      self.rounds + other.rounds,
      max(self.square, other.square),
    )


def count(
  rounds: np.ndarray,
  owners: np.ndarray,
  logs: np.ndarray,
  squares: np.ndarray,
  declared: Sequence[participation.MinSep],
) -> Breaches:
  """Counts the breaches of some devices.

  Args:
    rounds: numbered across runs; ascending, device after device.
    owners: index of the device of each round.
    logs: index of the run of each round.
    squares: squared sensitivity of each device.
    declared: schema of each run.
  """
  apart = np.array([schema.min_sep for schema in declared])[logs]
  most = np.array([schema.participations for schema in declared])[logs]
  goes_on = np.append(False, (np.diff(owners) == 0) & (np.diff(logs) == 0))
  too_soon = goes_on & (np.append(0, np.diff(rounds)) < apart)
  places = np.arange(rounds.size)
  starts = np.maximum.accumulate(np.where(goes_on, 0, places))
  wrong = too_soon | (places - starts >= most)
  who = np.unique(owners[wrong])
  if not who.size:
    return Breaches()
  return Breaches(who.size, counts_lib.Counts.of(rounds[wrong]), float(squares[who].max()))
