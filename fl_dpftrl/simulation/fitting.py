"""Fit of a simulated population and timer to the known figures of a run.

Production runs are published by their report goal, rounds, min-sep and participations. The
devices behind them are found by a search.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from fl_dpftrl.simulation import cohorts, recording
from fl_dpftrl.simulation import scenario as scenario_lib

DAYS = tuple(24.0 * days for days in range(1, 15))
"""Timers to try, in hours: whole numbers of days."""

_MOST = 8.0  # maximum population, relative to that of a saturated timer
_CLOSE = 0.003


class Row(NamedTuple):
  """Known figures of a run.

  Attributes:
    report_goal: number of devices per cohort.
    num_rounds: n.
    min_sep: b; num_rounds or more if no device participated twice.
    max_participations: k.
  """

  report_goal: int
  num_rounds: int
  min_sep: int
  max_participations: int

  @property
  def apart(self) -> int:
    """Min-sep, limited to the number of rounds."""
    return min(self.min_sep, self.num_rounds)


class Fit(NamedTuple):
  """Population and timer that explain a run, with their simulated figures.

  Attributes:
    num_devices: smallest population with that min-sep.
    timer_hours: timer of every device, in hours.
    min_sep: simulated b.
    max_participations: simulated k.
    days: simulated duration of the run, in days.
  """

  num_devices: int
  timer_hours: float
  min_sep: int
  max_participations: int
  days: float


def fit(
  row: Row,
  scenario: scenario_lib.Scenario,
  *,
  timers: Sequence[float] = DAYS,
  scale: int = 1,
  progress: Callable[[str], None] = lambda line: None,
) -> Fit:
  """Finds the smallest population that explains a run, and its timer.

  A population with a timer explains the row if it has the row's min-sep (to within 1 %) and
  participations. More devices shorten the rounds and raise min-sep, which allows bisection.
  Among timers that need equally many devices the shortest is taken.

  Args:
    row: known figures.
    scenario: all other settings; its population, report goal and timer are replaced.
    timers: timers to try, in hours.
    scale: divisor of population and report goal, which speeds up the search. The smallest
      separation among fewer devices is slightly larger.
    progress: called with one line per trial.

  Returns:
    The fit; its num_devices are at full size.

  Raises:
    ValueError: if no timer explains the row.
  """

  def tried(num_devices: float, hours: float) -> Fit | None:
    timed = dataclasses.replace(scenario, timer_hours=hours, timer_rounds=None)
    simulation = timed.simulation(
      num_devices=round(num_devices / scale), report_goal=round(row.report_goal / scale)
    )
    try:
      fitted = recording.record(simulation.rounds(), num_rounds=row.num_rounds)
    except cohorts.StalledRound:
      return None
    progress(
      f'timer of {hours:g} h, {num_devices:,.0f} devices: min-sep'
      f' {fitted.min_sep}, {fitted.max_participations} participations'
    )
    return Fit(round(num_devices), hours, fitted.min_sep, fitted.max_participations, fitted.days)

  fits = [_smallest(row, functools.partial(tried, hours=hours)) for hours in timers]
  fitted = [fit for fit in fits if fit is not None]
  if fitted:
    return min(fitted, key=lambda fit: fit.num_devices)
  raise ValueError(
    f'timers={tuple(timers)} of hours do not explain a min-sep of {row.min_sep} with'
    f' {row.max_participations} participations in {row.num_rounds} rounds of {row.report_goal}'
  )


def _smallest(row: Row, tried: Callable[[float], Fit | None]) -> Fit | None:
  """Returns the fit of the smallest population; None if no population fits."""
  low, best = float(row.apart * row.report_goal), None
  high = _MOST * low
  largest = tried(high)
  if largest is None or largest.min_sep < row.apart:
    return None
  while high / low > 1.0 + _CLOSE:
    middle = math.sqrt(low * high)
    fitted = tried(middle)
    if fitted is None or fitted.min_sep < row.apart:
      low = middle
    else:
      high, best = middle, fitted
  if (
    best is None
    or best.min_sep > 1.01 * row.apart
    or best.max_participations != row.max_participations
  ):
    return None
  return best
