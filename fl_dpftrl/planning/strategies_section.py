"""Strategies side by side, as a plan's page shows them."""

from typing import Any, Mapping

from fl_dpftrl import rounding
from fl_dpftrl.logs import page
from fl_dpftrl.planning import figures

_FAR = 3.0  # times the loss of the recommended: more is not drawn


def section(statement: Mapping[str, Any]) -> list[page.Html]:
  """Loss against memory, how to read it, and the table."""
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
  options = sorted(
      [own, *statement['alternatives']], key=lambda option: option['loss']
  )
  rows = [
      [
          page.element('strong', o['strategy'], ', recommended')
          if o is own else o['strategy'],
          page.join(
              str(o['memory_copies']),
              '' if o['fits'] else ' (more than allowed)',
          ),
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
    points.append(figures.Point(
        o['memory_copies'],
        o['loss'],
        f'{o["strategy"]}: loss {rounding.up(o["loss"])}, {o["memory_copies"]} copies',
        o['strategy'] if is_front or o is own else '',
        'best' if o is own else '' if o['fits'] else 'beyond',
    ))
  most = statement['max_copies']
  drawn = page.card(
      figures.scatter(
          points,
          title=f'Loss ({statement["objective"]}) against memory',
          x_label='copies of the model that noise keeps',
          limit=(most, f'at most {most:,}'),
      ),
      page.quiet(
          'Lower is better. Named are the recommended one and those that none'
          ' with as few copies beats.',
          *(f' Far above: {o["strategy"]}.' for o in far),
      ),
  )
  words = page.card(
      page.element('h3', 'How they are compared'),
      page.element(
          'p',
          'Loss is sensitivity × error: the noise in the model at the same ε is'
          ' in proportion to it. Each ε is at the noise in the model that the'
          ' recommended one has; each noise multiplier at its ε.',
      ),
      page.quiet(
          'All under the participation that is planned for. Recommended is the'
          ' one with the least regret over what was simulated and what is'
          ' planned for, among those that may keep as many copies.'
      ),
      *_skipped(statement),
  )
  head = [
      'strategy', 'copies', 'loss', 'noise at the same ε',
      'ε at the same noise', 'noise multiplier',
  ]
  return [page.side_by_side(drawn, words), page.card(page.table(head, rows))]


def percent(ratio: float) -> str:
  """By how much noise differs, as −13.9 %."""
  text = f'{100.0 * (ratio - 1.0):+,.1f} %'
  return text.replace('-', '−')


def _skipped(statement: Mapping[str, Any]) -> list[page.Html]:
  if not statement['skipped']:
    return []
  items = [f'{s["label"]}: {s["reason"]}' for s in statement['skipped']]
  return [page.element('h3', 'Left out'), page.bullets(items)]
