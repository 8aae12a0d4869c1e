"""Running totals of the devices that rounds chose."""

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.simulation import cohorts

_HOURS = 24
_DAY = 86400


class Turnouts:
  """Totals of chosen devices and round durations.

  Attributes:
    dropped: number of devices that never reported.
    late: number of devices that reported too late.
    reports: reports of the cohorts by UTC hour of their rounds' close.
    minutes: minutes of the rounds, summed by the UTC hour of their start.
    rounds: number of rounds by the UTC hour of their start.
    waiting: maximum number of running timers at a round's close.
  """

  def __init__(self):
    self.dropped = self.late = self.waiting = 0
    self.reports = np.zeros(_HOURS)
    self.minutes = np.zeros(_HOURS)
    self.rounds = np.zeros(_HOURS)

  def add(self, cohort: participation.Cohort, turnout: cohorts.Turnout) -> None:
    self.dropped += turnout.dropped
    self.late += turnout.late
    self.waiting = max(self.waiting, turnout.waiting)
    hour = cohort.started % _DAY * _HOURS // _DAY
    self.reports[cohort.closed % _DAY * _HOURS // _DAY] += cohort.device_ids.size
    self.minutes[hour] += (cohort.closed - cohort.started) / 60.0
    self.rounds[hour] += 1
