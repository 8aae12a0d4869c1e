"""HTML page of a simulated population: participation and its min-sep."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.reports import charts, page
from fl_dpftrl.simulation import attendance as attendance_lib
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


def explain(result: Mapping[str, Any]) -> str:
  """Explains the min-sep in a few sentences."""
  b, timer = result['min_sep'], result['timer']
  if result['max_participations'] < 2:
    return 'No device took part twice, so min-sep is the number of rounds.'
  if 'rounds' in timer:
    rounds = timer['rounds']
    if b < rounds:
      return (
        f'Timers of {rounds} rounds gave a min-sep of only {b}, because devices'
        ' lost the state of their timers.'
      )
    return (
      f'Timers of {rounds} rounds keep min-sep from falling below {rounds};'
      f' the earliest device returned after {b} rounds.'
    )
  timed = timer['in_rounds']
  if timed is None:
    return (
      f'The timer of {timer["hours"]:g} hours is longer than the whole run;'
      f' min-sep {b} comes from devices that lost their timer or whose clock'
      ' was changed.'
    )
  words = (
    f'A timer of {timer["hours"]:g} hours was {timed["usual"]:g} rounds long in'
    f' the median, {timed["most"]} at most and {timed["fewest"]} at least, from'
    f' round {timed["first_round"]} on: rounds are shorter when more devices'
    ' can be reached.'
  )
  if b < timed['fewest']:
    return (
      f'{words} The min-sep of {b} is below that, because devices lost the'
      ' state of their timers or their clocks were changed.'
    )
  return (
    f'{words} No device can return in under {timed["fewest"]} rounds; the'
    f' earliest returned after {b}.'
  )


def page_of(
  result: Mapping[str, Any],
  simulation: cohorts.Simulation,
  attendance: attendance_lib.Attendance,
  turnouts: Turnouts,
  command: str,
) -> str:
  """Returns the self-contained page.

  Args:
    result: result of the command.
    simulation: simulation of the population.
    attendance: totals of its rounds.
    turnouts: outcomes of its chosen devices.
    command: command line that repeats the simulation.
  """
  shown = lambda field: page.figure(result, field)
  title = 'Simulated population'
  server = simulation.server
  return page.document(
    title,
    page.card(
      page.element(
        'p',
        'min-sep b = ',
        shown('min_sep'),
        ', participations k = ',
        shown('max_participations'),
        class_='figure',
      ),
      page.element('p', explain(result)),
      page.quiet('This is a simulation and no guarantee: replay the log of a run for that.'),
      kind='headline',
    ),
    page.element('h2', 'Rounds'),
    page.side_by_side(
      page.card(
        page.definitions(
          ('rounds n', shown('num_rounds')),
          ('simulated days', page.figure(result, 'simulated_days')),
          ('devices', f'{simulation.population.num_devices:,}'),
          ('  that took part', shown('num_devices')),
          ('participations', shown('num_participations')),
          ('population / report goal', f'{_most(simulation):,}'),
        )
      ),
      page.card(
        page.definitions(
          ('report goal', f'{server.report_goal:,}'),
          ('chosen per round', f'{server.clients_per_round:,}'),
          ('dropped out', shown('dropped')),
          ('reported late', shown('late')),
          ('maximum waiting for timers', f'{turnouts.waiting:,}'),
        )
      ),
    ),
    page.element('h2', 'By hour of the day'),
    page.side_by_side(*map(page.card, _by_hour(turnouts))),
    page.element('h2', 'By device'),
    page.side_by_side(*map(page.card, _by_device(result, attendance))),
    page.element('h2', 'Command to repeat this simulation'),
    page.command(command),
    page.embedded_json('simulation', dict(result)),
  )


def _most(simulation: cohorts.Simulation) -> int:
  """Returns the largest min-sep of a population without turnover."""
  return simulation.population.num_devices // simulation.server.report_goal


def _by_hour(turnouts: Turnouts) -> list[page.Html]:
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


def _by_device(result: Mapping[str, Any], attendance: attendance_lib.Attendance) -> list[page.Html]:
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
        mark=(result['min_sep'], f'min-sep {result["min_sep"]}'),
      )
    )
  return drawn
