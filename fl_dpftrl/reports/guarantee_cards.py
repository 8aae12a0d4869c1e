"""The guarantees of a report, each shown with its assumptions."""

from fl_dpftrl import rounding
from fl_dpftrl.centralized import drawn as drawn_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.reports import page

_NAMES = {
  'worst_case': 'Worst case of the observed schema',
  'declared': 'Declared schema',
  'observed': 'Observed participation',
  'amplified': 'Sampled batches, amplified',
  'shuffled': 'Shuffled batches',
}
_NUMBERS = {2: 'Two', 3: 'Three', 4: 'Four'}


def heading(statement: statement_lib.Statement) -> str:
  undeclared = statement.declared is None  # It has a card, too.
  number = _NUMBERS[len(statement.parts()) + undeclared]
  return f'{number} guarantees, each with what it assumes'


def cards(statement: statement_lib.Statement, void: str | None) -> page.Html:
  """Returns one box for each guarantee that the statement may show."""
  found = {part.name: _card(statement, part, void) for part in statement.parts()}
  found.setdefault('declared', _undeclared())
  return page.side_by_side(*(found[name] for name in _NAMES if name in found))


def _undeclared() -> page.Html:
  return page.card(
    page.element('h3', _NAMES['declared']),
    page.quiet(
      'Nothing was declared before the run, so that no guarantee here'
      ' holds where participation reacts to released models.'
    ),
  )


def _card(
  statement: statement_lib.Statement, part: statement_lib.Part, void: str | None
) -> page.Html:
  loss = part.loss
  shown = lambda value, field, text=None: page.figure(value, f'{part.name}.{field}', text)
  kind = loss.sensitivity_kind.replace('_', ' ')
  epsilons = [
    (point.delta, shown(point.epsilon, f'curve.{index}.epsilon' if index else 'epsilon'))
    for index, point in enumerate(loss.curve)
  ]
  # Rounding up would overstate the noise.
  noise = loss.effective_noise_multiplier
  return page.card(
    page.element('h3', _NAMES[part.name]),
    page.definitions(
      *((page.join('ε at δ = ', page.power_of_ten(delta)), value) for delta, value in epsilons),
      ('ρ (zCDP)', shown(loss.rho, 'rho')),
      (f'sensitivity ({kind})', shown(loss.sensitivity, 'sensitivity')),
      (
        'noise multiplier / sensitivity',
        shown(noise, 'effective_noise_multiplier', rounding.down(noise)),
      ),
    ),
    *map(page.quiet, _WORDS[part.name](statement)),
    kind=('' if part.holds else 'bad ') + ('' if part.holds and not void else 'void'),
  )


def _worst_case(statement: statement_lib.Statement) -> list[str]:
  if statement.several:
    covered = (
      'For every device that in each run kept to the most participations k'
      ' and the min-sep b that its log shows, in whatever rounds within them.'
    )
  else:
    covered = (
      f'For every device, in whatever rounds: at most'
      f' {statement.max_participations:,} (k) of'
      f' {statement.num_rounds:,} (n), any two at least'
      f' {statement.min_sep:,} (b) apart, the extremes of the log.'
    )
  return [
    covered,
    'Assumes that n, k and b would be the same whatever a device holds, and'
    ' that who takes part reacts neither to data nor to released models: they'
    ' were read from the log afterwards.',
  ]


def _declared(statement: statement_lib.Statement) -> list[str]:
  declared = statement.declared
  if statement.several:
    announced = (
      'For every device that in each run keeps to what was announced for it:'
      f' in none more than {declared.max_participations:,} participations'
      f' or less than {declared.min_sep:,} rounds apart.'
    )
  else:
    announced = (
      f'For every device that keeps to at most'
      f' {declared.max_participations:,} participations, any two at least'
      f' {declared.min_sep:,} rounds apart, as announced before the run.'
    )
  kept = 'It was kept to.' if declared.holds else 'It was NOT kept to: void.'
  return [
    f'{announced} {kept}',
    'The only one that holds even when participation reacts to released'
    ' models. Assumes that devices enforce it themselves.',
  ]


def _observed(statement: statement_lib.Statement) -> list[str]:
  whose = (
    'the most exposed device'
    if statement.group_size == 1
    else f'the {statement.group_size} most exposed devices together'
  )
  return [
    f'For {whose}, in the rounds that the log lists for each.',
    'Assumes that each device would have been in these very rounds whatever'
    ' it holds and whatever was released. It says what the run spent; it'
    ' promises nothing to anyone in advance.',
  ]


def _amplified(statement: statement_lib.Statement) -> list[str]:
  drawn = statement.drawn
  return [
    f'For every example, as one of {drawn.scheme.num_examples:,}: in each'
    f' turn of its part, {drawn.scheme.compositions:,} at most, drawn with'
    f' probability {drawn.scheme.sampling_probability:.6g}.'
    f' {_refuted(drawn)}',
    f'Assumes that {drawn.assumption}. No log shows that, and this one'
    ' has to stay secret, with what was counted from it: it tells whose'
    ' examples were drawn.',
  ]


def _shuffled(statement: statement_lib.Statement) -> list[str]:
  drawn = statement.drawn
  schema = drawn.scheme.schema
  apart = (
    'each exactly {:,} after the last' if drawn.fixed_separation else 'any two at least {:,} apart'
  ).format(schema.min_sep)
  most = schema.participations
  covered = f'at most {most:,} rounds, {apart}' if most > 1 else 'one round'
  return [
    f'For every example, in {covered}. {_refuted(drawn)}',
    f'Assumes that {drawn.assumption}.',
  ]


def _refuted(drawn: drawn_lib.Drawn) -> str:
  return 'The log does not contradict it.' if drawn.holds else 'The log CONTRADICTS it: void.'


_WORDS = {
  'worst_case': _worst_case,
  'declared': _declared,
  'observed': _observed,
  'amplified': _amplified,
  'shuffled': _shuffled,
}
