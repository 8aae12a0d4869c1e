"""Self-contained HTML page of a plan, which contains no guarantee."""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl import rounding
from fl_dpftrl.planning import planner
from fl_dpftrl.reports import page, plan_figures, plan_forecast, plan_settings, plan_strategies

_STYLE = (
  plan_figures.STYLE
  + """
td data, th data { white-space: nowrap; }
main > .cards + .cards { margin-top: 14px; }
"""
)


def report(
  plan: planner.Plan, *, embedded: Mapping[str, Any], setting: Mapping[str, str], command: str
) -> str:
  """Returns the page of a plan.

  Args:
    plan: the plan.
    embedded: its JSON object, for programs.
    setting: labels and values of the planned setting.
    command: command line that repeats the plan.
  """
  return page.document(
    'Plan of a run with differential privacy',
    _headline(plan),
    page.card(page.definitions(*setting.items())),
    page.element('h2', 'Expected participation'),
    *plan_forecast.section(plan),
    page.element('h2', 'Strategies: memory and noise'),
    *plan_strategies.section(plan),
    page.element('h2', 'Other report goals and numbers of rounds'),
    *plan_settings.section(plan),
    page.element('h2', 'Assumptions of the prediction'),
    page.card(page.bullets(plan.assumptions)),
    page.element('h2', 'Command to repeat this plan'),
    page.command(command),
    page.embedded_json('plan', embedded),
    style=_STYLE,
  )


def _headline(plan: planner.Plan) -> page.Html:
  best, guarantee = plan.best, plan.best.guarantee
  shown = lambda value, field, text=None: page.figure(value, f'recommended.{field}', text)
  noise = rounding.up(guarantee.noise_multiplier, digits=6)
  low, high = (shown(e, f'epsilon_range.{i}') for i, e in enumerate(best.epsilon_range))
  alike = len(set(map(rounding.up, best.epsilon_range))) == 1
  kind = guarantee.sensitivity_kind.replace('_', ' ')
  return page.card(
    page.element(
      'p',
      f'Run {best.candidate.label}',
      ', optimised for this,' if best.candidate.contender.optimised else '',
      ' with noise multiplier ',
      shown(guarantee.noise_multiplier, 'noise_multiplier', noise),
      class_='figure',
    ),
    page.element(
      'p',
      'Predicted: ε = ',
      page.element('strong', shown(guarantee.epsilon, 'epsilon')),
      ' at δ = ',
      page.delta(guarantee.delta, 'recommended.delta'),
      ' under the planned participation; ',
      high if alike else page.join(low, ' to ', high),
      ' in the simulations. Adjacency: zero-out.',
    ),
    page.element(
      'p',
      page.element('strong', 'A prediction, not a guarantee.'),
      ' To get the guarantee of the run, replay its participation log.',
    ),
    page.quiet(
      'The noise stores ',
      shown(best.candidate.memory_copies, 'memory_copies'),
      ' copies of the model; at most ',
      page.figure(plan.max_copies, 'max_copies'),
      ' were allowed. Sensitivity ',
      shown(guarantee.sensitivity, 'sensitivity'),
      f' ({kind}). Figures are rounded up.',
    ),
    kind='headline warn',
  )
