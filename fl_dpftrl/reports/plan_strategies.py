"""Section of a plan's page that compares the strategies."""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl import rounding
from fl_dpftrl.reports import page, plan_figures

_FAR = 3.0  # loss relative to the recommended one; larger losses are not drawn


def section(statement: Mapping[str, Any]) -> list[page.Html]:
  """Returns a figure of loss against memory, an explanation and a table."""
  best = statement['recommended']
  own = {
    'strategy': best['strategy'],
    'memory_copies': best['memory_copies'],
    'fits': True,
    'loss': best['loss'],
    'loss_ratio': 1.0,
    'noise_multiplier': best['noise_multiplier'],
    'same_noise_epsilon': best['epsilon'],
  }
  options = sorted([own, *statement['alternatives']], key=lambda option: option['loss'])
  rows = [
    [
      page.element('strong', o['strategy'], ', recommended') if o is own else o['strategy'],
      page.join(str(o['memory_copies']), '' if o['fits'] else ' (more than allowed)'),
      rounding.up(o['loss']),
      'as recommended' if o is own else percent(o['loss_ratio']),
      rounding.up(o['same_noise_epsilon']),
      rounding.up(o['noise_multiplier']),
    ]
    for o in options
  ]
  points, least = [], float('inf')
  far = [o for o in options if o['loss'] > _FAR * best['loss']]
  for o in sorted(options, key=lambda o: (o['memory_copies'], o['loss'])):
    if o in far:
      continue
    is_front, least = o['loss'] < least, min(o['loss'], least)
    points.append(
      plan_figures.Point(
        o['memory_copies'],
        o['loss'],
        f'{o["strategy"]}: loss {rounding.up(o["loss"])}, {o["memory_copies"]} copies',
        o['strategy'] if is_front or o is own else '',
        'best' if o is own else '' if o['fits'] else 'beyond',
      )
    )
  most = statement['max_copies']
  drawn = page.card(
    plan_figures.scatter(
      points,
      title=f'Loss ({statement["objective"]}) against memory',
      x_label='copies of the model that the noise stores',
      limit=(most, f'at most {most:,}'),
    ),
    page.quiet(
      'Lower is better. Labelled are the recommended strategy and those with'
      ' the lowest loss for their number of copies.',
      *(f' Not drawn, far above: {o["strategy"]}.' for o in far),
    ),
  )
  words = page.card(
    page.element('h3', 'Basis of the comparison'),
    page.element(
      'p',
      'Loss is sensitivity × error. It is proportional to the noise in the'
      " model at the same ε. Each ε is at the recommended strategy's noise in"
      ' the model, and each noise multiplier is at its ε.',
    ),
    page.quiet(
      'All figures are under the planned participation. The recommended'
      ' strategy has the least regret over the simulated and planned schemas'
      ' among those with at most the allowed number of copies.'
    ),
    *_skipped(statement),
  )
  head = [
    'strategy',
    'copies',
    'loss',
    'noise at the same ε',
    'ε at the same noise',
    'noise multiplier',
  ]
  return [page.side_by_side(drawn, words), page.card(page.table(head, rows))]


def percent(ratio: float) -> str:
  """Formats a ratio of noise as a relative change, such as −13.9 %."""
  text = f'{100.0 * (ratio - 1.0):+,.1f} %'
  return text.replace('-', '−')


def _skipped(statement: Mapping[str, Any]) -> list[page.Html]:
  if not statement['skipped']:
    return []
  items = [f'{s["label"]}: {s["reason"]}' for s in statement['skipped']]
  return [page.element('h3', 'Left out'), page.bullets(items)]
