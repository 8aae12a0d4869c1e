"""A privacy report that stands alone in one HTML page.

What is proven, what is assumed and what is not covered are kept apart. Each
figure is in the page to the digit, in a <data> element that names the
statement's field, and the statement itself is embedded as JSON.
"""

import os
from typing import Any, Mapping

from fl_dpftrl import files
from fl_dpftrl.logs import checklist
from fl_dpftrl.logs import page
from fl_dpftrl.logs import setting as setting_lib

Setting = setting_lib.Setting

_UNKNOWN = 'not recorded'
_PARTS = {
    'worst_case': 'Worst case of what was observed',
    'observed': 'What occurred, exactly',
    'declared': 'What was declared',
}


def write_report(
    path: str | os.PathLike[str],
    statement: Mapping[str, Any],
    *,
    setting: Setting,
) -> None:
  """Writes the report of a run, in one durable step.

  Args:
    path: the HTML file; its folder must exist.
    statement: what `replay` returned.
    setting: what else is known of the run.

  Raises:
    ValueError: where the setting's noise multiplier is not the statement's.
    OSError: where it cannot be written.
  """
  files.write_durably(path, report(statement, setting).encode())


def report(statement: Mapping[str, Any], setting: Setting) -> str:
  """The page that `write_report` writes."""
  if setting.noise_multiplier != statement['noise_multiplier']:
    raise ValueError(
        f'noise_multiplier is {setting.noise_multiplier!r} in the setting, but'
        f' {statement["noise_multiplier"]!r} in the statement'
    )
  void = _void_reason(statement, setting)
  title = f'Privacy report: {setting.run}'
  body = page.element(
      'main',
      page.element('h1', title),
      _headline(statement, setting, void),
      *_alarms(statement, void),
      page.element('h2', 'Three guarantees of one run'),
      _guarantees(statement, void),
      *_hypothetical(setting),
      page.element('h2', 'Who took part'),
      _participation(statement, setting),
      page.element('h2', 'The mechanism'),
      _mechanism(statement, setting),
      page.element('h2', 'Checklist'),
      checklist.checklist(statement, setting, void),
      page.element('h2', 'Outside the guarantee'),
      checklist.outside(setting),
      page.element('h2', 'To check it'),
      checklist.provenance(statement, setting),
      page.embedded_json('statement', dict(statement)),
  )
  head = page.element(
      'head',
      page.element('meta', charset='utf-8'),
      page.element(
          'meta', name='viewport', content='width=device-width, initial-scale=1'
      ),
      page.element('title', title),
      page.element('style', page.Html(page.STYLE)),
  )
  whole = page.element('html', head, page.element('body', body), lang='en')
  return f'<!DOCTYPE html>\n{whole}\n'


def _void_reason(
    statement: Mapping[str, Any], setting: Setting
) -> str | None:
  reason = setting.void_reason or statement['void_reason']
  if reason is None and statement['worst_case']['epsilon'] is None:
    reason = 'no noise was added'
  return reason


def _headline(
    statement: Mapping[str, Any], setting: Setting, void: str | None
) -> page.Html:
  shown = lambda field: page.figure(statement, field)
  if void is not None:
    return page.element(
        'section',
        page.element('p', 'No guarantee', class_='figure'),
        page.element('p', f'This run guarantees nothing: {void}.'),
        *(
            [
                page.element(
                    'p',
                    'Figures below are crossed out: they would hold for a run'
                    ' that differs from this one in that alone.',
                    class_='quiet',
                )
            ]
            if statement['worst_case']['epsilon'] is not None
            else []
        ),
        class_='card headline bad',
    )
  return page.element(
      'section',
      page.element(
          'p',
          'ε = ',
          shown('worst_case.epsilon'),
          ' at δ = ',
          shown('delta'),
          class_='figure',
      ),
      page.element(
          'p',
          'Also ρ = ',
          shown('worst_case.rho'),
          ' of zero-concentrated differential privacy (zCDP). Adjacency: ',
          page.element('strong', checklist.adjacency_name(statement)),
          f'. Unit of privacy: {checklist.unit(statement, setting)}.',
      ),
      page.element(
          'p',
          'It covers everyone who took part in at most ',
          shown('max_participations'),
          ' of ',
          shown('num_rounds'),
          ' rounds, any two of them at least ',
          shown('min_sep'),
          ' apart, as the participation log shows of every device. Figures are'
          ' rounded up.',
          class_='quiet',
      ),
      class_='card headline',
  )


def _alarms(
    statement: Mapping[str, Any], void: str | None
) -> list[page.Html]:
  alarms = []
  if not statement.get('declared', {'holds': True})['holds']:
    declared = statement['declared']
    alarms.append(
        page.element(
            'section',
            page.element('h3', 'The declared participation was violated'),
            page.element(
                'p',
                f'Declared were a min-sep of {declared["min_sep"]} and at most'
                f' {declared["max_participations"]} participations; the log has'
                f' {statement["min_sep"]} and'
                f' {statement["max_participations"]}. What was declared is'
                ' void.'
                + (
                    ' The other two guarantees rest on the log, and stand.'
                    if void is None
                    else ''
                ),
            ),
            class_='card bad',
        )
    )
  if statement['warnings']:
    alarms.append(
        page.element(
            'section',
            page.element('h3', 'Of the log'),
            page.bullets(statement['warnings']),
            class_='card warn',
        )
    )
  return alarms


def _guarantees(
    statement: Mapping[str, Any], void: str | None
) -> page.Html:
  cards = []
  for part, name in _PARTS.items():
    if part not in statement:
      cards.append(
          page.element(
              'section',
              page.element('h3', name),
              page.element('p', 'No schema was declared.', class_='quiet'),
              class_='card',
          )
      )
      continue
    fails = not statement[part].get('holds', True)
    shown = lambda field, up=True, part=part: page.figure(
        statement, f'{part}.{field}', up=up
    )
    kind = statement[part]['sensitivity_kind'].replace('_', ' ')
    epsilons = [(statement['delta'], shown('epsilon'))]
    for index, point in enumerate(statement[part].get('curve', [])[1:], 1):
      epsilons.append((point['delta'], shown(f'curve.{index}.epsilon')))
    items = [
        *(
            (page.join('ε at δ = ', page.power_of_ten(delta)), value)
            for delta, value in epsilons
        ),
        ('ρ (zCDP)', shown('rho')),
        (f'sensitivity ({kind})', shown('sensitivity')),
        (
            'noise multiplier / sensitivity',
            shown('effective_noise_multiplier', up=False),
        ),
    ]
    cards.append(
        page.element(
            'section',
            page.element('h3', name),
            page.element('p', _part_words(statement, part), class_='quiet'),
            page.definitions(*items),
            class_='card'
            + (' bad' if fails else '')
            + (' void' if fails or void else ''),
        )
    )
  return page.element('div', *cards, class_='cards')


def _part_words(statement: Mapping[str, Any], part: str) -> str:
  if part == 'observed':
    return (
        'Assumes that each device took part in just the rounds that the log'
        ' lists for it, and would have whatever its data. The largest over the'
        ' patterns that occurred.'
    )
  values = statement if part == 'worst_case' else statement['declared']
  words = (
      f'Assumes at most {values["max_participations"]} participations,'
      f' {values["min_sep"]} rounds apart or more: '
  )
  if part == 'worst_case':
    return words + 'the extremes of the log, for any pattern within them.'
  if statement['declared']['holds']:
    return words + 'what was announced before the run. The log keeps to it.'
  return (
      words + 'what was announced before the run. The log does NOT keep to it.'
  )


def _hypothetical(setting: Setting) -> list[page.Html]:
  if setting.hypothetical is None:
    return []
  shown = lambda field: page.figure({'hypothetical': setting.hypothetical},
                                f'hypothetical.{field}')
  return [
      page.element('h2', 'Hypothetical deployment'),
      page.element(
          'section',
          page.element(
              'p',
              page.element('strong', 'This was not run.'),
              ' A larger deployment, in which each device takes part in the'
              ' same rounds as here and the noise multiplier is raised with'
              ' the report goal, has the same noise on the mean update. Its'
              ' guarantee would be that below. Nothing of it applies to the'
              ' run above.',
          ),
          page.definitions(
              ('report goal', shown('report_goal')),
              ('implied population', shown('population')),
              ('noise multiplier', shown('noise_multiplier')),
              ('sensitivity', shown('sensitivity')),
              ('ρ (zCDP)', shown('rho')),
              (page.join('ε at δ = ', shown('delta')), shown('epsilon')),
          ),
          class_='card dashed',
      ),
  ]


def _participation(
    statement: Mapping[str, Any], setting: Setting
) -> page.Html:
  shown = lambda field: page.figure(statement, field)
  devices = page.histogram(
      statement['participations'],
      title='Devices by participations',
      x_label='rounds a device took part in',
  )
  if statement['separations']:
    apart = page.histogram(
        statement['separations'],
        title='Time between participations',
        x_label='rounds between two participations of a device',
        mark=(statement['min_sep'], f'min-sep {statement["min_sep"]:,}'),
    )
    witness = statement['witness']
    closest = (
        f'device {witness["device_id"]} in rounds'
        f' {witness["first_round"]:,} and {witness["second_round"]:,}'
    )
  else:
    apart = page.element(
        'p', 'No device took part twice, so there is no time between.'
    )
    closest = 'none'
  facts = page.definitions(
      ('rounds, rows of noise consumed', shown('num_rounds')),
      ('of them without participants', shown('rounds_without_participants')),
      (
          'of them burnt: noise used up, nothing released',
          ', '.join(map(str, setting.burnt_rounds)) or 'none recorded',
      ),
      ('devices', shown('num_devices')),
      ('participations', shown('num_participations')),
      ('most of one device', shown('max_participations')),
      ('min-sep', shown('min_sep')),
      ('closest pair', closest),
  )
  return page.join(
      page.element(
          'div',
          page.element('figure', devices, class_='card', style='margin:0'),
          page.element('figure', apart, class_='card', style='margin:0'),
          class_='cards',
      ),
      page.element(
          'section', facts, class_='card', style='margin-top:14px'
      ),
  )


def _mechanism(statement: Mapping[str, Any], setting: Setting) -> page.Html:
  def known(value: str | float | None) -> str:
    if value is None:
      return _UNKNOWN
    return value if isinstance(value, str) else f'{value:,.9g}'

  return page.element(
      'section',
      page.definitions(
          ('data', known(setting.dataset)),
          ('one device stands for', setting.unit),
          ('population', known(setting.population)),
          ('report goal, divisor of each sum', known(setting.report_goal)),
          ('strategy', known(setting.strategy)),
          ('family', statement['strategy']['family']),
          (
              'noise multiplier, std(Z) / clip norm',
              page.figure(statement, 'noise_multiplier'),
          ),
          ('clip norm (L2)', known(setting.clip_norm)),
          ('zeroing norm (L∞)', known(setting.zeroing_norm)),
      ),
      class_='card',
  )


