"""Counts of participation: how many, how far apart, and what follows for a schema."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl.mechanisms import schemas

_DENSE = 1 << 20


def _none() -> np.ndarray:
  return np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class Counts:
  """Values that occurred, ascending, with their counts: int64, of one shape."""

  values: np.ndarray = dataclasses.field(default_factory=_none)
  counts: np.ndarray = dataclasses.field(default_factory=_none)

  @classmethod
  def of(cls, occurrences: np.ndarray) -> 'Counts':
    """Counts an array of whole numbers of at least 0."""
    if not occurrences.size:
      return cls()
    if occurrences.max() < _DENSE:
      return cls.of_bins(np.bincount(occurrences))
    return cls(*np.unique(occurrences, return_counts=True))

  @classmethod
  def of_bins(cls, bins: np.ndarray) -> 'Counts':
    """Returns the counts of 0, 1, … that an array has, shape [any]."""
    values = np.flatnonzero(bins)
    return cls(values, bins[values])

  def __add__(self, other: 'Counts') -> 'Counts':
    values, places = np.unique(np.concatenate([self.values, other.values]), return_inverse=True)
    counts = np.zeros(values.size, np.int64)
    np.add.at(counts, places, np.concatenate([self.counts, other.counts]))
    return Counts(values, counts)

  @property
  def total(self) -> int:
    return int(self.counts.sum())

  def to_dict(self) -> dict[int, int]:
    return dict(zip(self.values.tolist(), self.counts.tolist()))

  def pairs(self) -> list[list[int]]:
    return [list(pair) for pair in self.to_dict().items()]


class Totals:
  """Figures that follow from the counts of a run."""

  num_rounds: int

  @property
  def separations(self) -> Counts:
    """Number of occurrences, by the difference between successive rounds of a device."""
    raise NotImplementedError

  @property
  def participations(self) -> Counts:
    """Number of devices, by how many rounds each took part in."""
    raise NotImplementedError

  @property
  def num_devices(self) -> int:
    """Number of devices that took part."""
    return self.participations.total

  @property
  def num_participations(self) -> int:
    """Number of participations of all devices."""
    return int(self.participations.values @ self.participations.counts)

  @property
  def min_sep(self) -> int:
    """b, the least difference between two rounds of one device; n if no device has two."""
    values = self.separations.values
    return int(values[0]) if values.size else self.num_rounds

  @property
  def max_participations(self) -> int:
    """k, the largest number of rounds of any device; 1 if no device took part."""
    values = self.participations.values
    return int(values[-1]) if values.size else 1

  @property
  def schema(self) -> schemas.Schema:
    """The tightest schema that every device kept to; at least one round is needed."""
    return schemas.Schema(self.num_rounds, self.min_sep, self.max_participations)


class Witness(NamedTuple):
  """Two participations of one device that are as close as any in the run."""

  device_id: str | int
  first_round: int
  second_round: int

  @property
  def order(self) -> tuple:
    """Sort key: the closest pair first, then by device and round."""
    return (self.second_round - self.first_round, *self)


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceCounts:
  """Counts of some devices in one run, which add up over different devices.

  Attributes:
    cohorts: number of devices, by round; rounds without any are left out.
    separations: number of occurrences, by the difference between successive rounds of a device.
    participations: number of devices, by how many rounds each took part in.
    witness: an example of the least separation; None if no device took part twice.
    newcomers: number of devices that take part for the first time, by round.
    id_range: the least and the largest id; None of text, and without devices.
    max_rows: most rows of one device in one round; only those of units may be more than 1.
  """

  cohorts: Counts = Counts()
  separations: Counts = Counts()
  participations: Counts = Counts()
  witness: Witness | None = None
  newcomers: Counts = Counts()
  id_range: tuple[int, int] | None = None
  max_rows: int = 1

  @classmethod
  def of_rows(
    cls, rounds: np.ndarray, owners: np.ndarray, device_id: Callable[[int], str | int]
  ) -> 'DeviceCounts':
    """Counts rows sorted by device and round; owners are numbers that tell devices apart."""
    if not rounds.size:
      return cls()
    is_next = np.append(True, (np.diff(owners) != 0) | (np.diff(rounds) != 0))
    max_rows = int(np.diff(np.flatnonzero(is_next), append=rounds.size).max())
    if max_rows > 1:  # Rows of one unit in one round.
      which = np.flatnonzero(is_next)
      by_row, rounds, owners = device_id, rounds[which], owners[which]
      device_id = lambda row: by_row(int(which[row]))
    new = np.diff(owners) != 0
    again = np.flatnonzero(~new)
    separations = np.diff(rounds)[again]
    witness = None
    if again.size:
      row = int(again[separations.argmin()])
      witness = Witness(device_id(row), int(rounds[row]), int(rounds[row + 1]))
    starts = np.append(0, np.flatnonzero(new) + 1)
    least, largest = device_id(0), device_id(rounds.size - 1)
    return cls(
      Counts.of(rounds),
      Counts.of(separations),
      Counts.of(np.diff(starts, append=rounds.size)),
      witness,
      Counts.of(rounds[starts]),
      (least, largest) if isinstance(least, int) and isinstance(largest, int) else None,
      max_rows,
    )

  def __add__(self, other: 'DeviceCounts') -> 'DeviceCounts':
    witnesses = [w for w in (self.witness, other.witness) if w is not None]
    ids = [i for ends in (self.id_range, other.id_range) if ends is not None for i in ends]
    return DeviceCounts(
      self.cohorts + other.cohorts,
      self.separations + other.separations,
      self.participations + other.participations,
      min(witnesses, key=lambda w: w.order, default=None),
      self.newcomers + other.newcomers,
      (min(ids), max(ids)) if ids else None,
      max(self.max_rows, other.max_rows),
    )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class RunCounts(DeviceCounts, Totals):
  """Counts of all devices of a run of num_rounds rounds, which are never published.

  Counts are by rounds from 0. What is shown has the log's own numbers, from first_round on.
  """

  num_rounds: int
  first_round: int = 0

  @property
  def closest(self) -> Witness | None:
    """The witness as it is shown."""
    if (pair := self.witness) is None:
      return None
    return Witness(pair.device_id, *(self.first_round + t for t in pair[1:]))

  @property
  def rounds_without_participants(self) -> int:
    """Rounds with noise but without any device."""
    return self.num_rounds - self.cohorts.values.size

  @property
  def cohort_sizes(self) -> dict[str, float] | None:
    """Least, mean and most devices of rounds that had any."""
    sizes = self.cohorts.counts
    if not sizes.size:
      return None
    mean = math.fsum(sizes) / sizes.size
    return {'least': int(sizes.min()), 'mean': mean, 'most': int(sizes.max())}

  def to_json(self) -> dict[str, Any]:
    """Returns the figures of a run."""
    return {
      'num_devices': self.num_devices,
      'num_participations': self.num_participations,
      'separations': self.separations.pairs(),
      'participations': self.participations.pairs(),
      'witness': self.closest and self.closest._asdict(),
      'rounds_without_participants': self.rounds_without_participants,
      'cohort_sizes': self.cohort_sizes,
    }

  def first_gap(self) -> tuple[int, int]:
    """Returns first and last round, as shown, of the first gap without participants; needs one."""
    present = np.concatenate([[-1], self.cohorts.values, [self.num_rounds]]) + self.first_round
    before = int(np.argmax(np.diff(present) > 1))
    return int(present[before]) + 1, int(present[before + 1]) - 1

  def rounds_short_of(self, report_goal: int) -> int:
    """Counts rounds with fewer devices than the goal, empty ones included."""
    return self.num_rounds - int((self.cohorts.counts >= report_goal).sum())

  def warnings(self) -> list[str]:
    """Returns warnings about the run for a reader, one line each."""
    missing = self.rounds_without_participants
    if not missing:
      return []
    first, last = self.first_gap()
    return [
      f'{missing} of {self.num_rounds} rounds have no participants, the first of them {first}'
      + (f' to {last}' if last > first else '')
      + ('; if rounds begin at 1, give first_round=1' if (missing, last) == (1, 0) else '')
      + '; if rows are missing from the log, every figure is too small'
    ]
