"""Section of a plan's page that compares the strategies."""

from fl_dpftrl import rounding
from fl_dpftrl.planning import planner
from fl_dpftrl.reports import page, plan_figures

_FAR = 3.0  # loss relative to the recommended one; larger losses are not drawn


def section(plan: planner.Plan) -> list[page.Html]:
  """Returns a figure of loss against memory, an explanation and a table."""
  best = plan.best
  loss = lambda option: option.candidate.loss(plan.planned)
  copies = lambda option: option.candidate.memory_copies
  is_best = lambda option: option.candidate is best.candidate
  rows = [
    [
      page.element('strong', o.candidate.label, ', recommended')
      if is_best(o)
      else o.candidate.label,
      page.join(str(copies(o)), '' if o.fits else ' (more than allowed)'),
      rounding.up(loss(o)),
      'as recommended' if is_best(o) else rounding.percent(o.loss_ratio),
      rounding.up(o.same_noise_epsilon),
      rounding.up(o.noise_multiplier),
    ]
    for o in best.options
  ]
  points, least = [], float('inf')
  far = [o for o in best.options if loss(o) > _FAR * best.loss]
  for o in sorted(best.options, key=lambda o: (copies(o), loss(o))):
    if o in far:
      continue
    is_front, least = loss(o) < least, min(loss(o), least)
    label = o.candidate.label
    points.append(
      plan_figures.Point(
        copies(o),
        loss(o),
        f'{label}: loss {rounding.up(loss(o))}, {copies(o)} copies',
        label if is_front or is_best(o) else '',
        'best' if is_best(o) else '' if o.fits else 'beyond',
      )
    )
  most = plan.max_copies
  drawn = page.card(
    plan_figures.scatter(
      points,
      title=f'Loss ({plan.objective}) against memory',
      x_label='copies of the model that the noise stores',
      limit=(most, f'at most {most:,}'),
    ),
    page.quiet(
      'Lower is better. Labelled are the recommended strategy and those with'
      ' the lowest loss for their number of copies.',
      *(f' Not drawn, far above: {o.candidate.label}.' for o in far),
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
    *_skipped(plan),
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


def _skipped(plan: planner.Plan) -> list[page.Html]:
  if not plan.skipped:
    return []
  items = [f'{s.label}: {s.reason}' for s in plan.skipped]
  return [page.element('h3', 'Left out'), page.bullets(items)]
