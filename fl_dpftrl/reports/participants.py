"""Participation in the runs of a report, and the privacy loss of devices."""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl import messages, rounding
from fl_dpftrl.reports import charts, page
from fl_dpftrl.reports import setting as setting_lib


def attendance(statement: Mapping[str, Any], setting: setting_lib.Setting) -> page.Html:
  """Shows participation; for several runs, of each run."""
  if 'runs' not in statement:
    return _of_run(statement, statement, '', setting)
  together = [
    ('rounds of all runs', page.figure(statement, 'num_rounds')),
    *_counted(
      statement,
      statement,
      '',
      ('devices in at least one run', 'num_devices'),
      ('participations', 'num_participations'),
    ),
  ]
  parts = [page.card(page.definitions(*together))]
  for index, facts in enumerate(statement['runs']):
    parts += [
      page.element('h3', f'Run {index + 1}', class_='run'),
      _of_run(statement, facts, f'runs.{index}.', setting),
    ]
  return page.join(*parts)


def _counted(
  statement: Mapping[str, Any], facts: Mapping[str, Any], prefix: str, *items: tuple[str, str]
) -> list[tuple[str, page.Html]]:
  """Returns names with those figures that are among the facts."""
  return [(name, page.figure(statement, prefix + field)) for name, field in items if field in facts]


def _of_run(
  statement: Mapping[str, Any], facts: Mapping[str, Any], prefix: str, setting: setting_lib.Setting
) -> page.Html:
  """Shows participation in the run whose facts are under the prefix."""
  shown = lambda field: page.figure(statement, prefix + field)
  items = [
    ('rounds, rows of noise consumed', shown('num_rounds')),
    *_counted(
      statement, facts, prefix, ('of them without participants', 'rounds_without_participants')
    ),
  ]
  if 'rounds_short_of_report_goal' in facts:
    items.append(
      (
        page.join('of them short of the report goal of ', shown('report_goal')),
        shown('rounds_short_of_report_goal'),
      )
    )
  # A setting describes one run.
  if not prefix and statement.get('confidential', True):
    items.append(
      (
        'of them burnt: noise used up, nothing released',
        ', '.join(map(str, setting.burnt_rounds)) or 'none recorded',
      )
    )
  items += _counted(
    statement, facts, prefix, ('devices', 'num_devices'), ('participations', 'num_participations')
  )
  items += _cohorts(statement, facts, prefix)
  items += [
    ('most of one device, k', shown('max_participations')),
    ('min-sep, b', shown('min_sep')),
  ]
  if 'witness' in facts:
    items.append(('closest pair', _closest(facts['witness'])))
  return page.join(page.card(page.definitions(*items)), *_drawn(facts))


def _cohorts(
  statement: Mapping[str, Any], facts: Mapping[str, Any], prefix: str
) -> list[tuple[str, page.Html]]:
  """Shows the number of devices in a round."""
  if 'cohort_sizes' not in facts:
    return []
  field = f'{prefix}cohort_sizes.'
  mean = f'{facts["cohort_sizes"]["mean"]:,.1f}'
  return [
    (
      'devices in a round that had any: least, mean, most',
      page.join(
        page.figure(statement, f'{field}least'),
        page.figure(statement, f'{field}mean', text=mean),
        page.figure(statement, f'{field}most'),
        by=' / ',
      ),
    )
  ]


def _closest(witness: Mapping[str, Any] | None) -> str:
  if witness is None:
    return 'none'
  return (
    f'device {messages.quoted(witness["device_id"])} in rounds {witness["first_round"]:,} and'
    f' {witness["second_round"]:,}'
  )


def _drawn(facts: Mapping[str, Any]) -> list[page.Html]:
  if 'participations' not in facts:
    return []
  devices = charts.histogram(
    facts['participations'],
    title='Devices by participations',
    x_label='rounds a device took part in',
  )
  if facts['separations']:
    apart = charts.histogram(
      facts['separations'],
      title='Time between participations',
      x_label='rounds between two participations of a device',
      mark=(facts['min_sep'], f'min-sep {facts["min_sep"]:,}'),
    )
  else:
    apart = page.element('p', 'No device took part twice, so there is no time between.')
  return [
    page.side_by_side(
      page.element('figure', devices, class_='card'), page.element('figure', apart, class_='card')
    )
  ]


def fared(statement: Mapping[str, Any], void: str | None) -> list[page.Html]:
  """Shows the privacy loss of actual devices; nothing if for publication."""
  if 'per_device' not in statement:
    return []
  title = page.element('h2', 'How those who took part fared')
  if 'rho_histogram' not in statement['per_device']:
    return [title, page.element('p', 'Without noise no device was protected.')]
  return [
    title,
    page.element(
      'p',
      'What each device that took part was exposed to, alone, in the rounds'
      ' that the log lists for it. Assumes that it would have been in the'
      ' same rounds whatever its data.',
    ),
    page.element(
      'p',
      page.element('strong', 'Not a guarantee to anyone in advance'),
      ': nobody knew beforehand how often they would be called. What was guaranteed is above.',
    ),
    page.side_by_side(
      page.element('figure', _spread(statement, void), class_='card'), _shares(statement, void)
    ),
  ]


def _spread(statement: Mapping[str, Any], void: str | None) -> page.Html:
  mark = None
  if statement['group_size'] == 1:  # Others are for many devices.
    worst = statement['worst_case']['rho']
    words = 'void' if void else f'ρ = {rounding.up(worst)}'
    mark = (worst, f'worst case: {words}')
  return page.join(
    charts.spread(
      statement['per_device']['rho_histogram'],
      title='Devices by ρ',
      x_label='ρ (zCDP) of a device',
      mark=mark,
    ),
    page.element(
      'figcaption', 'Bars of very few devices are drawn higher than to scale.', class_='quiet'
    ),
  )


def _shares(statement: Mapping[str, Any], void: str | None) -> page.Html:
  """Tables the largest privacy loss within each share of the devices."""
  of_devices = statement['per_device']
  deltas = [
    point['delta']
    for point in statement['worst_case'].get('curve', [{'delta': statement['delta']}])
  ]
  fields = ['rho', 'epsilon'] + [f'curve.{i}.epsilon' for i in range(1, len(deltas))]
  rows = []
  for index, point in enumerate(of_devices['quantiles']):
    field = f'per_device.quantiles.{index}.'
    share = page.join(
      page.figure(statement, f'{field}share', text=f'{100 * point["share"]:g} %'),
      page.element('span', ' of devices', class_='name'),
    )
    rows.append((share, *(page.figure(statement, field + f) for f in fields)))
  if statement['group_size'] == 1:  # Others are for many devices.
    rows.append(('most exposed', *(page.figure(statement, f'observed.{f}') for f in fields)))
  head = [
    'share of devices',
    'ρ at most',
    *(page.join('ε at most, δ = ', page.power_of_ten(delta)) for delta in deltas),
  ]
  return page.card(
    page.table(head, rows, class_='void' if void else None),
    page.element(
      'p',
      'The most exposed device: ',
      page.element('strong', messages.quoted(of_devices['most_exposed'])),
      '.',
    ),
    page.quiet(
      'Rounded up.'
      + (
        f' Of each device alone, not of {statement["group_size"]} together.'
        if statement['group_size'] > 1
        else ''
      )
    ),
  )
