"""Participation section of a plan's page."""

from fl_dpftrl import rounding
from fl_dpftrl.planning import planner
from fl_dpftrl.reports import charts, page

_FIELDS = {'min_sep': 'min-sep b', 'max_participations': 'maximum per device k', 'days': 'days'}


def section(plan: planner.Plan) -> list[page.Html]:
  """Returns tables of the forecast and simulations, and figures of the first."""
  forecast, closer = plan.forecast, plan.forecast.closer
  schema = plan.planned
  planned = {
    'min_sep': page.figure(schema.min_sep, 'min_sep'),
    'max_participations': page.figure(schema.participations, 'max_participations'),
  }
  rows = []
  for field, name in _FIELDS.items():
    low, high = forecast.range[field]
    rows.append(
      [
        name,
        _expected(field, forecast.expected[field]),
        ' to '.join(dict.fromkeys([_number(low), _number(high)])),
        planned.get(field, '–'),
      ]
    )
  count = len(forecast.outcomes)
  of_each = page.table(
    ['seed', *_FIELDS.values()],
    [
      [
        page.join(page.element('span', 'seed ', class_='name'), str(run.seed)),
        *(_number(getattr(run, field)) for field in _FIELDS),
      ]
      for run in forecast.outcomes
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
    page.quiet(f'The figures show the simulation with seed {forecast.outcomes[0].seed}.'),
  ]


def _expected(field: str, mean: float) -> str:
  """Rounds a mean over simulations; min-sep is rounded down, all else up."""
  shown = rounding.down if field == 'min_sep' else rounding.up
  return shown(float(mean))


def _number(value: float) -> str:
  return f'{value:,}' if isinstance(value, int) else f'{value:,.1f}'
