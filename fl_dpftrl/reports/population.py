"""HTML page of a simulated population: participation and its min-sep."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpftrl.drawing import bars
from fl_dpftrl.reports import page
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.simulation import turnouts as turnouts_lib


def page_of(
  simulation: cohorts.Simulation,
  attendance: attendance_lib.Attendance,
  turnouts: turnouts_lib.Turnouts,
  *,
  embedded: Mapping[str, Any],
  command: str,
) -> str:
  """Returns the self-contained page.

  Args:
    simulation: simulation of the population.
    attendance: totals of its rounds.
    turnouts: outcomes of its chosen devices.
    embedded: JSON object with the figures, for programs.
    command: command line that repeats the simulation.
  """
  return page.render(
    'population.html',
    title='Simulated population',
    kind='simulation',
    explanation=turnouts_lib.explain(simulation.timer, attendance),
    population=simulation.population,
    server=simulation.server,
    attendance=attendance,
    turnouts=turnouts,
    by_hour=_by_hour(turnouts),
    by_device=_by_device(attendance),
    embedded=embedded,
    command=command,
  )


def _by_hour(turnouts: turnouts_lib.Turnouts) -> list[bars.Figure]:
  mean = turnouts.minutes / np.maximum(turnouts.rounds, 1.0)
  return [
    bars.columns(
      turnouts.reports.tolist(), title='Reports', x_label='hour of the day (UTC)', unit='reports'
    ),
    bars.columns(
      mean.tolist(),
      title='Mean minutes of a round',
      x_label='hour of the day (UTC) in which the round started',
      unit='minutes',
    ),
  ]


def _by_device(attendance: attendance_lib.Attendance) -> list[bars.Figure]:
  drawn = [
    bars.histogram(
      list(attendance.participations.to_dict().items()),
      title='Devices by participations',
      x_label='participations of a device',
    )
  ]
  separations = list(attendance.separations.to_dict().items())
  if separations:
    drawn.append(
      bars.histogram(
        separations,
        title='Rounds between participations',
        x_label='rounds between two participations of a device',
        mark=(attendance.min_sep, f'min-sep {attendance.min_sep}'),
      )
    )
  return drawn
