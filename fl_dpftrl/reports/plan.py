"""Self-contained HTML page of a plan, which contains no guarantee."""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl import rounding
from fl_dpftrl.planning import trial
from fl_dpftrl.reports import page, plan_figures, plan_forecast, plan_settings, plan_strategies

_STYLE = (
  plan_figures.STYLE
  + """
td data, th data { white-space: nowrap; }
main > .cards + .cards { margin-top: 14px; }
"""
)


def report(
  statement: Mapping[str, Any], closer: trial.Closer, *, setting: Mapping[str, Any], command: str
) -> str:
  """Returns the page of a plan.

  Args:
    statement: JSON object of the plan.
    closer: distribution of participations in the first simulation.
    setting: labels and values of the planned setting.
    command: command line that repeats the plan.
  """
  return page.document(
    'Plan of a run with differential privacy',
    _headline(statement),
    page.card(page.definitions(*setting.items())),
    page.element('h2', 'Expected participation'),
    *plan_forecast.section(statement, closer),
    page.element('h2', 'Strategies: memory and noise'),
    *plan_strategies.section(statement),
    page.element('h2', 'Other report goals and numbers of rounds'),
    *plan_settings.section(statement),
    page.element('h2', 'Assumptions of the prediction'),
    page.card(page.bullets(statement['assumptions'])),
    page.element('h2', 'Command to repeat this plan'),
    page.command(command),
    page.embedded_json('plan', dict(statement)),
    style=_STYLE,
  )


def _headline(statement: Mapping[str, Any]) -> page.Html:
  shown = lambda field, **kwargs: page.figure(statement, f'recommended.{field}', **kwargs)
  best = statement['recommended']
  return page.card(
    page.element(
      'p',
      f'Run {best["strategy"]}',
      ', optimised for this,' if best['optimised'] else '',
      ' with noise multiplier ',
      shown('noise_multiplier', text=rounding.up(best['noise_multiplier'], digits=6)),
      class_='figure',
    ),
    page.element(
      'p',
      'Predicted: ε = ',
      page.element('strong', shown('epsilon')),
      ' at δ = ',
      shown('delta'),
      ' under the planned participation; ',
      *_seen(best, shown),
      ' in the simulations. Adjacency: zero-out.',
    ),
    page.element(
      'p',
      page.element('strong', 'A prediction, not a guarantee.'),
      ' To get the guarantee of the run, replay its participation log.',
    ),
    page.quiet(
      'The noise stores ',
      shown('memory_copies'),
      ' copies of the model; at most ',
      page.figure(statement, 'max_copies'),
      ' were allowed. Sensitivity ',
      shown('sensitivity'),
      f' ({best["sensitivity_kind"].replace("_", " ")}). Figures are rounded up.',
    ),
    kind='headline warn',
  )


def _seen(best, shown) -> list[page.Html | str]:
  low, high = best['epsilon_range']
  if rounding.up(low) == rounding.up(high):
    return [shown('epsilon_range.1')]
  return [shown('epsilon_range.0'), ' to ', shown('epsilon_range.1')]
