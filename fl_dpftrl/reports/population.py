"""HTML page of a simulated population: participation and its min-sep."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpftrl.reports import charts, page
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts, explanation
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
  title = 'Simulated population'
  server = simulation.server
  return page.document(
    title,
    page.card(
      page.element(
        'p',
        'min-sep b = ',
        page.figure(attendance.min_sep, 'min_sep'),
        ', participations k = ',
        page.figure(attendance.max_participations, 'max_participations'),
        class_='figure',
      ),
      page.element('p', explanation.explain(simulation.timer, attendance)),
      page.quiet('This is a simulation and no guarantee: replay the log of a run for that.'),
      kind='headline',
    ),
    page.element('h2', 'Rounds'),
    page.side_by_side(
      page.card(
        page.definitions(
          ('rounds n', page.figure(attendance.num_rounds, 'num_rounds')),
          ('simulated days', page.figure(attendance.days, 'simulated_days')),
          ('devices', f'{simulation.population.num_devices:,}'),
          ('  that took part', page.figure(attendance.num_devices, 'num_devices')),
          ('participations', page.figure(attendance.num_participations, 'num_participations')),
          ('population / report goal', f'{_most(simulation):,}'),
        )
      ),
      page.card(
        page.definitions(
          ('report goal', f'{server.report_goal:,}'),
          ('chosen per round', f'{server.clients_per_round:,}'),
          ('dropped out', page.figure(turnouts.dropped, 'dropped')),
          ('reported late', page.figure(turnouts.late, 'late')),
          ('maximum waiting for timers', f'{turnouts.waiting:,}'),
        )
      ),
    ),
    page.element('h2', 'By hour of the day'),
    page.side_by_side(*map(page.card, _by_hour(turnouts))),
    page.element('h2', 'By device'),
    page.side_by_side(*map(page.card, _by_device(attendance))),
    page.element('h2', 'Command to repeat this simulation'),
    page.command(command),
    page.embedded_json('simulation', embedded),
  )


def _most(simulation: cohorts.Simulation) -> int:
  """Returns the largest min-sep of a population without turnover."""
  return simulation.population.num_devices // simulation.server.report_goal


def _by_hour(turnouts: turnouts_lib.Turnouts) -> list[page.Html]:
  mean = turnouts.minutes / np.maximum(turnouts.rounds, 1.0)
  return [
    charts.columns(
      turnouts.reports.tolist(), title='Reports', x_label='hour of the day, UTC', unit='reports'
    ),
    charts.columns(
      mean.tolist(),
      title='Mean minutes of a round',
      x_label='hour of the day in which it started, UTC',
      unit='minutes',
    ),
  ]


def _by_device(attendance: attendance_lib.Attendance) -> list[page.Html]:
  drawn = [
    charts.histogram(
      list(attendance.participations.to_dict().items()),
      title='Devices',
      x_label='number of participations',
    )
  ]
  apart = list(attendance.separations.to_dict().items())
  if apart:
    drawn.append(
      charts.histogram(
        apart,
        title='Returns of devices',
        x_label='rounds since the previous participation',
        mark=(attendance.min_sep, f'min-sep {attendance.min_sep}'),
      )
    )
  return drawn
