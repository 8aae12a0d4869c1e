"""Explanation of a simulated min-sep."""

from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import timer as timer_lib


def explain(timer: timer_lib.Timer, attendance: attendance_lib.Attendance) -> str:
  """Explains the min-sep in a few sentences."""
  b = attendance.min_sep
  if attendance.max_participations < 2:
    return 'No device took part twice, so min-sep is the number of rounds.'
  if isinstance(timer, timer_lib.RoundTimer):
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
