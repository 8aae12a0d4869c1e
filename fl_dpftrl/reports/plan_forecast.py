"""Participation section of a plan's page."""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl import rounding
from fl_dpftrl.planning import trial
from fl_dpftrl.reports import charts, page

_FIELDS = {'min_sep': 'min-sep b', 'max_participations': 'maximum per device k', 'days': 'days'}


def section(statement: Mapping[str, Any], closer: trial.Closer) -> list[page.Html]:
  """Returns tables of the forecast and simulations, and figures of the first."""
  planned = statement['planned']
  rows = []
  for field, name in _FIELDS.items():
    low, high = statement['range'][field]
    rows.append(
      [
        name,
        _expected(field, statement['expected'][field]),
        ' to '.join(dict.fromkeys([_number(low), _number(high)])),
        page.figure(planned, field) if field in planned else '–',
      ]
    )
  count = len(statement['simulations'])
  of_each = page.table(
    ['seed', *_FIELDS.values()],
    [
      [
        page.join(page.element('span', 'seed ', class_='name'), str(run['seed'])),
        *(_number(run[field]) for field in _FIELDS),
      ]
      for run in statement['simulations']
    ],
  )
  drawn = [
    charts.histogram(
      closer.participations,
      title='Devices by number of participations',
      x_label='participations of a device',
    ),
    charts.columns(
      [minutes or 0.0 for minutes in closer.round_minutes],
      title='Minutes of a round (median)',
      x_label='hour of the day (UTC) in which the round starts',
      unit='minutes',
    ),
  ]
  if closer.separations:
    drawn.insert(
      0,
      charts.histogram(
        closer.separations,
        title='Rounds between participations',
        x_label='rounds apart',
        mark=(closer.separations[0][0], f'b = {closer.separations[0][0]:,}'),
      ),
    )
  return [
    page.side_by_side(
      page.card(
        page.element('h3', 'Forecast'),
        page.table(['', 'expected', 'range', 'planned for'], rows),
        page.quiet(
          f'Based on {count} simulation{"s" * (count > 1)} of all devices.'
          ' The planned values are worse than all of them, because a run'
          ' draws anew: k is raised by the spread between simulations (at'
          ' least 1), b is lowered by twice its spread (at least 1 %).'
        ),
      ),
      page.card(page.element('h3', 'Simulations'), of_each),
    ),
    page.side_by_side(*map(page.card, drawn)),
    page.quiet(f'The figures show the simulation with seed {statement["simulations"][0]["seed"]}.'),
  ]


def _expected(field: str, mean: float) -> str:
  """Rounds a mean over simulations; min-sep is rounded down, all else up."""
  shown = rounding.down if field == 'min_sep' else rounding.up
  return shown(float(mean))


def _number(value: float) -> str:
  return f'{value:,}' if isinstance(value, int) else f'{value:,.1f}'
