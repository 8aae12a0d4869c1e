"""Running totals of cohorts: participations, min-sep and time."""

import bisect
from typing import NamedTuple

import numpy as np

from fl_dpftrl.files import json_files
from fl_dpftrl.participation import counts, schemas

_DAY = 86400.0


class Timed(NamedTuple):
  """Length of a timer in hours, counted in rounds.

  Attributes:
    fewest: smallest min-sep that rounds of these lengths allow: the minimum number of rounds
      from the start of one to the first that closes at least a timer later.
    first_round: round at which the minimum occurs.
    usual: median over the rounds.
    most: maximum over the rounds.
  """

  fewest: int
  first_round: int
  usual: float
  most: int


class Attendance:
  """Counter of cohorts, which are added in the order of their rounds.

  Attributes:
    num_rounds: number of rounds added.
    num_participations: number of participations of all devices.
    started: start of each round, in UTC seconds.
    closed: end of each round, in UTC seconds.
  """

  def __init__(self):
    self.num_rounds = 0
    self.num_participations = 0
    self.started: list[int] = []
    self.closed: list[int] = []
    self._last = np.zeros(0, np.int32)
    self._times = np.zeros(0, np.int32)
    self._separations = np.zeros(1, np.int64)

  def add(self, cohort: schemas.Cohort) -> None:
    """Adds a cohort.

    Raises:
      ValueError: if it is not the cohort of the next round.
    """
    if cohort.round != self.num_rounds:
      raise ValueError(f'the next round is {self.num_rounds}, got {cohort.round}')
    ids = cohort.device_ids
    if ids.size and ids[-1] >= self._last.size:
      self._grow(int(ids[-1]) + 1)
    last = self._last[ids]
    apart = np.bincount(cohort.round - last[last >= 0])
    if apart.size > self._separations.size:
      more = apart.size - self._separations.size
      self._separations = np.pad(self._separations, (0, more))
    self._separations[: apart.size] += apart
    self._last[ids] = cohort.round
    self._times[ids] += 1
    self.num_rounds += 1
    self.num_participations += ids.size
    self.started.append(cohort.started)
    self.closed.append(cohort.closed)

  @property
  def num_devices(self) -> int:
    """Number of devices that participated."""
    return int(np.count_nonzero(self._times))

  @property
  def min_sep(self) -> int:
    """b; num_rounds if no device participated twice."""
    found = np.flatnonzero(self._separations)
    return int(found[0]) if found.size else self.num_rounds

  @property
  def max_participations(self) -> int:
    """k, the maximum number of participations of a device."""
    return int(self._times.max(initial=0))

  @property
  def days(self) -> float:
    """Days from the start of the first round to the end of the last."""
    if not self.closed:
      return 0.0
    return (self.closed[-1] - self.started[0]) / _DAY

  @property
  def separations(self) -> counts.Counts:
    """Number of successive participations by their distance in rounds."""
    values = np.flatnonzero(self._separations)
    return counts.Counts(values, self._separations[values])

  @property
  def participations(self) -> counts.Counts:
    """Number of devices by their number of participations."""
    return counts.Counts.of(self._times[self._times > 0])

  def to_json(self) -> json_files.Object:
    """Returns the totals."""
    return {
      'num_rounds': self.num_rounds,
      'num_devices': self.num_devices,
      'num_participations': self.num_participations,
      'min_sep': self.min_sep,
      'max_participations': self.max_participations,
      'simulated_days': self.days,
    }

  def timed(self, seconds: float) -> Timed | None:
    """Returns a timer's length in rounds; None if it outlasts the run."""
    rounds = []
    for t, started in enumerate(self.started):
      # Times of cohorts are whole seconds, rounded outwards. A round may be
      # longer than the timer, but no device is in one round twice.
      again = max(bisect.bisect_left(self.closed, started + seconds), t + 1)
      if again == self.num_rounds:
        break
      rounds.append(again - t)
    if not rounds:
      return None
    fewest = min(rounds)
    return Timed(fewest, rounds.index(fewest), float(np.median(rounds)), max(rounds))

  def _grow(self, size: int) -> None:
    size = max(size, 2 * self._last.size)
    more = size - self._last.size
    self._last = np.pad(self._last, (0, more), constant_values=-1)
    self._times = np.pad(self._times, (0, more))
