"""The population and timer that explain a run of which little is known.

Production runs are published, or remembered, by their report goal, rounds,
min-sep and participations. Which devices stood behind them is found by trying.
"""

import dataclasses
import math
from typing import Callable, NamedTuple, Sequence

from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.simulation import timer as timer_lib

DAYS = tuple(24.0 * days for days in range(1, 15))
"""Timers that are tried, in hours: as many days."""

_MOST = 8.0  # Times the devices that a saturated timer would need.
_CLOSE = 0.003


class Row(NamedTuple):
  """What is known of a run.

  Attributes:
    report_goal: devices a cohort had.
    num_rounds: n.
    min_sep: b; num_rounds, or more, where no device took part twice.
    max_participations: k.
  """

  report_goal: int
  num_rounds: int
  min_sep: int
  max_participations: int

  @property
  def apart(self) -> int:
    """The min-sep as it is counted of rounds that there were."""
    return min(self.min_sep, self.num_rounds)


class Fit(NamedTuple):
  """A population and timer, with what they give.

  Attributes:
    num_devices: the smallest population with that min-sep.
    timer_hours: of every device.
    min_sep: simulated.
    max_participations: simulated.
    days: that the run took, simulated.
  """

  num_devices: int
  timer_hours: float
  min_sep: int
  max_participations: int
  days: float


def resized(
    simulation: cohorts.Simulation,
    *,
    num_devices: int,
    report_goal: int,
    timer: timer_lib.Timer | None = None,
) -> cohorts.Simulation:
  """The same with other numbers; as many more are chosen as before."""
  server = simulation.server
  chosen = server.clients_per_round * report_goal / server.report_goal
  return dataclasses.replace(
      simulation,
      population=dataclasses.replace(
          simulation.population, num_devices=num_devices
      ),
      server=dataclasses.replace(
          server, report_goal=report_goal, clients_per_round=math.ceil(chosen)
      ),
      timer=timer or simulation.timer,
  )


def attend(
    simulation: cohorts.Simulation, num_rounds: int
) -> attendance_lib.Attendance:
  """What so many rounds amount to."""
  attendance = attendance_lib.Attendance()
  for _, cohort in zip(range(num_rounds), simulation.rounds()):
    attendance.add(cohort)
  return attendance


def fit(
    row: Row,
    simulation: cohorts.Simulation,
    *,
    timers: Sequence[float] = DAYS,
    scale: int = 1,
    progress: Callable[[str], None] = lambda line: None,
) -> Fit:
  """The smallest population that explains a run, with the timer that it needs.

  A population explains the row with a timer if it has its min-sep (to within
  1 %) and its participations. More devices make rounds shorter, and min-sep
  longer, which is bisected. Of timers that need as many devices the shortest is
  taken.

  Args:
    row: what is known.
    simulation: everything else; its population and report goal are replaced.
    timers: hours to try.
    scale: population and report goal are divided by it, which is as much
      faster. The smallest separation among fewer devices is a little larger.
    progress: told each trial in a line.

  Returns:
    The fit; its num_devices are those of the row, not divided.

  Raises:
    ValueError: where no timer explains the row.
  """

  def tried(num_devices: float, hours: float) -> Fit | None:
    resized_ = resized(
        simulation,
        num_devices=round(num_devices / scale),
        report_goal=round(row.report_goal / scale),
        timer=timer_lib.HourTimer(hours),
    )
    try:
      found = attend(resized_, row.num_rounds)
    except cohorts.StalledRound:
      return None
    progress(
        f'timer of {hours:g} h, {num_devices:,.0f} devices: min-sep'
        f' {found.min_sep}, {found.max_participations} participations'
    )
    return Fit(
        round(num_devices), hours, found.min_sep, found.max_participations,
        found.days,
    )

  fits = [
      _smallest(row, lambda devices, h=hours: tried(devices, h))
      for hours in timers
  ]
  fits = [found for found in fits if found is not None]
  if fits:
    return min(fits, key=lambda found: found.num_devices)
  raise ValueError(
      f'timers={tuple(timers)} of hours do not explain a min-sep of'
      f' {row.min_sep} with {row.max_participations} participations in'
      f' {row.num_rounds} rounds of {row.report_goal}'
  )


def _smallest(
    row: Row, tried: Callable[[float], Fit | None]
) -> Fit | None:
  """The smallest population that explains the row; None where none does."""
  low, best = float(row.apart * row.report_goal), None
  high = _MOST * low
  largest = tried(high)
  if largest is None or largest.min_sep < row.apart:
    return None
  while high / low > 1.0 + _CLOSE:
    middle = math.sqrt(low * high)
    found = tried(middle)
    if found is None or found.min_sep < row.apart:
      low = middle
    else:
      high, best = middle, found
  if (
      best is None
      or best.min_sep > 1.01 * row.apart
      or best.max_participations != row.max_participations
  ):
    return None
  return best
