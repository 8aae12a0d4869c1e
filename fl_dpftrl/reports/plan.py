"""HTML page of a plan, which contains no guarantee."""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl.drawing import bars
from fl_dpftrl.planning import planner, recommendation
from fl_dpftrl.reports import page
from fl_dpftrl.text import rounding

_FAR = 3.0  # loss relative to the recommended one; larger losses are not drawn


def report(
  plan: planner.Plan, *, embedded: Mapping[str, Any], setting: Mapping[str, str], command: str
) -> str:
  """Returns the self-contained page of a plan.

  Args:
    plan: the plan.
    embedded: its JSON object, for programs.
    setting: labels and values of the planned setting.
    command: command line that repeats the plan.
  """
  return page.render(
    'plan.html',
    title='Plan of a run with differential privacy',
    kind='plan',
    plan=plan,
    setting=setting,
    figures={
      'participation': _participation(plan),
      'strategies': strategies(plan),
      'far': _far(plan),
    },
    embedded=embedded,
    command=command,
  )


def _participation(plan: planner.Plan) -> list[bars.Figure]:
  """Draws the participation in the first simulation."""
  closer = plan.forecast.closer
  if closer is None:
    return []
  drawn = [
    bars.histogram(
      closer.participations, title='Devices by participations', x_label='participations of a device'
    ),
    bars.columns(
      [minutes or 0.0 for minutes in closer.round_minutes],
      title='Minutes of a round (median)',
      x_label='hour of the day (UTC) in which it starts',
      unit='minutes',
    ),
  ]
  if closer.separations:
    least = closer.separations[0][0]
    first = bars.histogram(
      closer.separations,
      title='Rounds between participations',
      x_label='rounds between two participations of a device',
      mark=(least, f'b = {least:,}'),
    )
    drawn.insert(0, first)
  return drawn


def _far(plan: planner.Plan) -> list[recommendation.Option]:
  return [o for o in plan.best.options if _loss(plan, o) > _FAR * plan.best.loss]


def _loss(plan: planner.Plan, option: recommendation.Option) -> float:
  return option.candidate.loss(plan.planned)


def strategies(plan: planner.Plan) -> bars.Figure:
  """Draws the loss of each strategy against its memory."""
  points, least, far = [], float('inf'), _far(plan)
  near = [(o.candidate.memory_copies, _loss(plan, o), o) for o in plan.best.options if o not in far]
  for copies, loss, option in sorted(near, key=lambda item: item[:2]):
    label, is_best = option.candidate.label, option.candidate is plan.best.candidate
    points.append(
      bars.Point(
        copies,
        loss,
        f'{label}: loss {rounding.up(loss)}, {copies} copies',
        label if is_best or loss < least else '',
        'best' if is_best else '' if option.fits else 'beyond',
      )
    )
    least = min(loss, least)
  return bars.scatter(
    points,
    title=f'Loss ({plan.objective}) against memory',
    x_label='copies of the model that the noise stores',
    limit=(plan.max_copies, f'at most {plan.max_copies:,}'),
  )
