"""Turnouts of a simulation: totals, and sentences on how its timer led to the min-sep."""

import numpy as np

from fl_dpftrl.participation import schemas
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts, server

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

  def add(self, cohort: schemas.Cohort, turnout: cohorts.Turnout) -> None:
    self.dropped += turnout.dropped
    self.late += turnout.late
    self.waiting = max(self.waiting, turnout.waiting)
    hour = cohort.started % _DAY * _HOURS // _DAY
    self.reports[cohort.closed % _DAY * _HOURS // _DAY] += cohort.device_ids.size
    self.minutes[hour] += (cohort.closed - cohort.started) / 60.0
    self.rounds[hour] += 1


def explain(timer: server.Timer, attendance: attendance_lib.Attendance) -> str:
  """Explains the min-sep in a few sentences."""
  b = attendance.min_sep
  if attendance.max_participations < 2:
    return 'No device took part twice, so min-sep is the number of rounds.'
  if isinstance(timer, server.RoundTimer):
    rounds = timer.rounds
    if b < rounds:
      return (
        f'Timers of {rounds} rounds gave a min-sep of only {b}, because devices'
        ' lost the state of their timers.'
      )
    return (
      f'Timers of {rounds} rounds keep min-sep from falling below {rounds};'
      f' the earliest device returned after {b} rounds.'
    )
  timed = attendance.timed(timer.seconds)
  if timed is None:
    return (
      f'The timer of {timer.hours:g} hours is longer than the whole run; min-sep {b} comes from'
      ' devices that lost their timer or whose clock was changed.'
    )
  words = (
    f'A timer of {timer.hours:g} hours was {timed.usual:g} rounds long in the median, {timed.most}'
    f' at most and {timed.fewest} at least, from round {timed.first_round} on: rounds are shorter'
    ' when more devices can be reached.'
  )
  if b < timed.fewest:
    return (
      f'{words} The min-sep of {b} is below that, because devices lost the'
      ' state of their timers or their clocks were changed.'
    )
  return (
    f'{words} No device can return in under {timed.fewest} rounds; the earliest returned after {b}.'
  )
