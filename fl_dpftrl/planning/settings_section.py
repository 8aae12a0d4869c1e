"""Other report goals and numbers of rounds, as a plan's page shows them."""

from typing import Any, Mapping

from fl_dpftrl import rounding
from fl_dpftrl.logs import page
from fl_dpftrl.planning import figures


def section(statement: Mapping[str, Any]) -> list[page.Html]:
  """ε against days, how to read it, and the table."""
  first = statement['simulations'][0]
  is_plan = lambda s: all(
      s[name] == first[name] for name in ('report_goal', 'num_rounds')
  )
  found = [s for s in statement['settings'] if 'epsilon' in s]
  rows = [
      [
          page.join(
              page.element('span', 'report goal ', class_='name'),
              page.element('strong', f'{s["report_goal"]:,}, planned')
              if is_plan(s) else f'{s["report_goal"]:,}',
          ),
          f'{s["num_rounds"]:,}',
          f'{s["days"]:.1f}',
          f'{s["min_sep"]:,}',
          f'{s["max_participations"]:,}',
          rounding.up(s['noise_multiplier']),
          rounding.up(s['epsilon']),
      ]
      for s in found
  ]
  lines = []
  for kind, same, varying in (
      ('main', 'num_rounds', 'report_goal'), ('', 'report_goal', 'num_rounds')
  ):
    line = sorted(
        (s for s in found if s[same] == first[same]),
        key=lambda s: s[varying],
    )
    words = 'goal {:,}' if varying == 'report_goal' else '{:,} rounds'
    lines.append((kind, [
        figures.Point(
            s['days'],
            s['epsilon'],
            f'report goal {s["report_goal"]:,}, {s["num_rounds"]:,} rounds',
            'planned' if is_plan(s) else words.format(s[varying]),
            'best' if is_plan(s) else '',
        )
        for s in line
    ]))
  missing = [
      f'report goal {s["report_goal"]:,}, {s["num_rounds"]:,} rounds:'
      f' {s["reason"]}'
      for s in statement['settings'] if 'reason' in s
  ]
  drawn = []
  if len(found) > 1:
    drawn.append(page.card(figures.paths(
        lines, title='Predicted ε against days', x_label='days'
    )))
  return [
      page.side_by_side(
          *drawn,
          page.card(
              page.element('h3', 'At the same noise in the model'),
              page.element(
                  'p',
                  'With twice the devices in a round, twice the noise on their'
                  ' sum is as much on its mean. Each setting has the noise'
                  ' multiplier that gives the model as much noise as planned.',
              ),
              page.quiet(
                  'The strategy is found anew for each. ',
                  *_simulated(statement['settings_scale']),
                  ' That accuracy is then the same is a hypothesis.',
              ),
              *([page.bullets(missing)] if missing else []),
          ),
      ),
      page.card(page.table(
          [
              'report goal', 'rounds', 'days', 'b planned', 'k planned',
              'noise multiplier', 'ε',
          ],
          rows,
      )),
  ]


def _simulated(scale: int) -> list[str]:
  if scale == 1:
    return ['One simulation each, and as much in hand as above.']
  return [
      f'One simulation each, with a {scale}th of devices and report goal; b, k'
      ' and days are then changed as the planned run differs from its own small'
      ' one, and have as much in hand as above.'
  ]
