"""Section of a plan's page for other report goals and numbers of rounds."""

from fl_dpftrl import rounding
from fl_dpftrl.planning import planner
from fl_dpftrl.reports import page, plan_figures


def section(plan: planner.Plan) -> list[page.Html]:
  """Returns a figure of ε against days, an explanation and a table."""
  first = plan.forecast.outcomes[0]
  is_plan = lambda s: (s.report_goal, s.num_rounds) == (first.report_goal, first.num_rounds)
  found = plan.possible()
  rows = [
    [
      page.join(
        page.element('span', 'report goal ', class_='name'),
        page.element('strong', f'{s.report_goal:,}, planned')
        if is_plan(s)
        else f'{s.report_goal:,}',
      ),
      f'{s.num_rounds:,}',
      f'{s.days:.1f}',
      f'{s.schema.min_sep:,}',
      f'{s.schema.participations:,}',
      rounding.up(s.noise_multiplier),
      rounding.up(s.epsilon),
    ]
    for s in found
  ]
  lines = []
  goal, rounds = (lambda s: s.report_goal), (lambda s: s.num_rounds)
  for kind, same, varying, words in (
    ('main', rounds, goal, 'goal {:,}'),
    ('', goal, rounds, '{:,} rounds'),
  ):
    line = sorted((s for s in found if same(s) == same(first)), key=varying)
    lines.append(
      (
        kind,
        [
          plan_figures.Point(
            s.days,
            s.epsilon,
            f'report goal {s.report_goal:,}, {s.num_rounds:,} rounds',
            'planned' if is_plan(s) else words.format(varying(s)),
            'best' if is_plan(s) else '',
          )
          for s in line
        ],
      )
    )
  missing = [
    f'report goal {s.report_goal:,}, {s.num_rounds:,} rounds: {s.reason}' for s in plan.missing()
  ]
  drawn = []
  if len(found) > 1:
    drawn.append(
      page.card(plan_figures.paths(lines, title='Predicted ε against days', x_label='days'))
    )
  return [
    page.side_by_side(
      *drawn,
      page.card(
        page.element('h3', 'At the same noise in the model'),
        page.element(
          'p',
          'Doubling devices and noise leaves the noise on the mean'
          ' unchanged. Each setting has the noise multiplier that gives'
          ' the model the planned noise.',
        ),
        page.quiet(
          'The strategy is optimised for each setting. ',
          *_simulated(plan.forecast.nearby.scale),
          ' That accuracy is then the same is a hypothesis.',
        ),
        *([page.bullets(missing)] if missing else []),
      ),
    ),
    page.card(
      page.table(
        ['report goal', 'rounds', 'days', 'b planned', 'k planned', 'noise multiplier', 'ε'], rows
      )
    ),
  ]


def _simulated(scale: int) -> list[str]:
  if scale == 1:
    return ['Each setting has one simulation and the same margins as above.']
  return [
    f'Each setting has one simulation, with 1/{scale} of the devices and report'
    ' goal. Its b, k and days are corrected by the difference between the'
    ' planned run at full and at this size; the margins are the same as above.'
  ]
