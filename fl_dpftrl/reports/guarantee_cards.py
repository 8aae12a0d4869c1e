"""The guarantees of a report, each shown with its assumptions."""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl.reports import page

_NAMES = {
  'worst_case': 'Worst case of what was observed',
  'declared': 'What was declared',
  'observed': 'What occurred, exactly',
  'amplified': 'Amplified by secret draws',
  'shuffled': 'Of shuffled batches',
}
_ALWAYS = ('worst_case', 'declared')
_NUMBERS = {2: 'Two', 3: 'Three', 4: 'Four'}


def heading(statement: Mapping[str, Any]) -> str:
  number = _NUMBERS[len(_parts(statement))]
  return f'{number} guarantees, each with what it assumes'


def cards(statement: Mapping[str, Any], void: str | None) -> page.Html:
  """Returns one box for each guarantee that the statement may show."""
  return page.side_by_side(*(_card(statement, p, void) for p in _parts(statement)))


def _parts(statement: Mapping[str, Any]) -> list[str]:
  return [p for p in _NAMES if p in _ALWAYS or p in statement]


def _card(statement: Mapping[str, Any], part: str, void: str | None) -> page.Html:
  name = page.element('h3', _NAMES[part])
  if part not in statement:
    return page.card(
      name,
      page.quiet(
        'Nothing was declared before the run, so that no guarantee here'
        ' holds where participation reacts to released models.'
      ),
    )
  fails = not statement[part].get('holds', True)
  shown = lambda field, up=True: page.figure(statement, f'{part}.{field}', up=up)
  kind = statement[part]['sensitivity_kind'].replace('_', ' ')
  epsilons = [(statement['delta'], shown('epsilon'))]
  for index, point in enumerate(statement[part].get('curve', [])[1:], 1):
    epsilons.append((point['delta'], shown(f'curve.{index}.epsilon')))
  return page.card(
    name,
    page.definitions(
      *((page.join('ε at δ = ', page.power_of_ten(delta)), value) for delta, value in epsilons),
      ('ρ (zCDP)', shown('rho')),
      (f'sensitivity ({kind})', shown('sensitivity')),
      ('noise multiplier / sensitivity', shown('effective_noise_multiplier', up=False)),
    ),
    *map(page.quiet, _WORDS[part](statement)),
    kind=('bad ' if fails else '') + ('void' if fails or void else ''),
  )


def _worst_case(statement: Mapping[str, Any]) -> list[str]:
  if 'runs' in statement:
    covered = (
      'For every device that in each run kept to the most participations k'
      ' and the min-sep b that its log shows, in whatever rounds within them.'
    )
  else:
    covered = (
      f'For every device, in whatever rounds: at most'
      f' {statement["max_participations"]:,} (k) of'
      f' {statement["num_rounds"]:,} (n), any two at least'
      f' {statement["min_sep"]:,} (b) apart, the extremes of the log.'
    )
  return [
    covered,
    'Assumes that n, k and b would be the same whatever a device holds, and'
    ' that who takes part reacts neither to data nor to released models: they'
    ' were read from the log afterwards.',
  ]


def _declared(statement: Mapping[str, Any]) -> list[str]:
  declared = statement['declared']
  if 'runs' in statement:
    announced = (
      'For every device that in each run keeps to what was announced for it:'
      f' in none more than {declared["max_participations"]:,} participations'
      f' or less than {declared["min_sep"]:,} rounds apart.'
    )
  else:
    announced = (
      f'For every device that keeps to at most'
      f' {declared["max_participations"]:,} participations, any two at least'
      f' {declared["min_sep"]:,} rounds apart, as announced before the run.'
    )
  kept = 'It was kept to.' if declared['holds'] else 'It was NOT kept to: void.'
  return [
    f'{announced} {kept}',
    'The only one that holds even when participation reacts to released'
    ' models. Assumes that devices enforce it themselves.',
  ]


def _observed(statement: Mapping[str, Any]) -> list[str]:
  whose = (
    'the most exposed device'
    if statement['group_size'] == 1
    else f'the {statement["group_size"]} most exposed devices together'
  )
  return [
    f'For {whose}, in the rounds that the log lists for each.',
    'Assumes that each device would have been in these very rounds whatever'
    ' it holds and whatever was released. It says what the run spent; it'
    ' promises nothing to anyone in advance.',
  ]


def _amplified(statement: Mapping[str, Any]) -> list[str]:
  amplified = statement['amplified']
  return [
    f'For every example, as one of {amplified["num_examples"]:,}: in each'
    f' turn of its part, {amplified["compositions"]:,} at most, drawn with'
    f' probability {amplified["sampling_probability"]:.6g}.'
    f' {_refuted(amplified)}',
    f'Assumes that {amplified["assumption"]}. No log shows that, and this one'
    ' has to stay secret, with what was counted from it: it tells whose'
    ' examples were drawn.',
  ]


def _shuffled(statement: Mapping[str, Any]) -> list[str]:
  shuffled = statement['shuffled']
  apart = (
    'each exactly {:,} after the last'
    if shuffled['separation'] == 'fixed'
    else 'any two at least {:,} apart'
  ).format(shuffled['min_sep'])
  most = shuffled['max_participations']
  covered = f'at most {most:,} rounds, {apart}' if most > 1 else 'one round'
  return [
    f'For every example, in {covered}. {_refuted(shuffled)}',
    f'Assumes that {shuffled["assumption"]}.',
  ]


def _refuted(drawn: Mapping[str, Any]) -> str:
  return 'The log does not contradict it.' if drawn['holds'] else 'The log CONTRADICTS it: void.'


_WORDS = {
  'worst_case': _worst_case,
  'declared': _declared,
  'observed': _observed,
  'amplified': _amplified,
  'shuffled': _shuffled,
}
