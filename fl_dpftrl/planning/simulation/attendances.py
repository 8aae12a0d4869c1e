"""Running totals of cohorts: participations, min-sep, time, and a timer in rounds."""

import bisect

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation.counts import seen
from fl_dpftrl.planning.simulation import servers
from fl_dpftrl.support.files import json_files

_DAY = 86400.0


class Attendance(seen.Seen):
  """Counter of cohorts, which are added in the order of their rounds."""

  def __init__(self):
    super().__init__(numbered=True)
    self.started: list[int] = []
    self.closed: list[int] = []

  def __repr__(self) -> str:
    totals = ', '.join(f'{name}={value}' for name, value in self.to_json().items())
    return f'Attendance({totals})'

  def add_cohort(self, cohort: schemas.Cohort) -> None:
    """Adds a cohort."""
    if cohort.round != self.num_rounds:
      raise ValueError(f'the next round is {self.num_rounds}, got {cohort.round}')
    self.add(cohort.device_ids)
    self.started.append(cohort.started)
    self.closed.append(cohort.closed)

  @property
  def days(self) -> float:
    """Days from the start of the first round to the end of the last."""
    if not self.closed:
      return 0.0
    return (self.closed[-1] - self.started[0]) / _DAY

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

  def timer(self, kind: servers.Timer) -> json_files.Object:
    """Returns a timer and, for one in hours, its effect in rounds; B² of a meter, and its life."""
    if isinstance(kind, servers.Meter):
      square = kind.budget.square(kind.strategy)
      return {'loss_budget': square, 'life': kind.budget.most_participations(kind.strategy)}
    if isinstance(kind, servers.RoundTimer):
      return {'rounds': kind.rounds}
    return {'hours': kind.hours, 'in_rounds': self.timed(kind.seconds)}

  def timed(self, seconds: float) -> json_files.Object | None:
    """Returns the fewest, usual and most rounds that a timer lasts; None if it outlasts the run."""
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
    return {
      'fewest': fewest,
      'first_round': rounds.index(fewest),
      'usual': float(np.median(rounds)),
      'most': max(rounds),
    }
