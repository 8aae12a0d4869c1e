"""Participation in the runs of a report, and the privacy loss of devices."""

from fl_dpftrl import messages, rounding
from fl_dpftrl.accounting import privacy_loss
from fl_dpftrl.logs import observed as observed_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.reports import charts, page
from fl_dpftrl.reports import setting as setting_lib


def attendance(statement: statement_lib.Statement, setting: setting_lib.Setting) -> page.Html:
  """Shows participation; for several runs, of each run."""
  if not statement.several:
    # A setting describes one run.
    burnt = ', '.join(map(str, setting.burnt_rounds)) or 'none recorded'
    return _of_run(statement.runs[0], '', burnt if statement.confidential else None)
  together = [('rounds of all runs', page.figure(statement.num_rounds, 'num_rounds'))]
  counted = statement.counted
  if counted is not None:
    together += [
      ('devices in at least one run', page.figure(counted.num_devices, 'num_devices')),
      ('participations', page.figure(counted.num_participations, 'num_participations')),
    ]
  parts = [page.card(page.definitions(*together))]
  for index, run in enumerate(statement.runs):
    parts += [
      page.element('h3', f'Run {index + 1}', class_='run'),
      _of_run(run, f'runs.{index}.', None),
    ]
  return page.join(*parts)


def _of_run(run: statement_lib.RunFacts, prefix: str, burnt: str | None) -> page.Html:
  """Shows participation in a run, which the statement has under the prefix."""
  shown = lambda value, field: page.figure(value, prefix + field)
  counted = run.counted
  items = [('rounds, rows of noise consumed', shown(run.num_rounds, 'num_rounds'))]
  if counted is not None:
    missing = counted.rounds_without_participants
    items.append(('of them without participants', shown(missing, 'rounds_without_participants')))
    if counted.rounds_short_of_report_goal is not None:
      items.append(
        (
          page.join('of them short of the report goal of ', shown(run.report_goal, 'report_goal')),
          shown(counted.rounds_short_of_report_goal, 'rounds_short_of_report_goal'),
        )
      )
  if burnt is not None:
    items.append(('of them burnt: noise used up, nothing released', burnt))
  if counted is not None:
    items += [
      ('devices', shown(counted.num_devices, 'num_devices')),
      ('participations', shown(counted.num_participations, 'num_participations')),
      ('devices in a round that had any: least, mean, most', _sizes(counted, prefix)),
    ]
  items += [
    ('most of one device, k', shown(run.max_participations, 'max_participations')),
    ('min-sep, b', shown(run.min_sep, 'min_sep')),
  ]
  if counted is None:
    return page.card(page.definitions(*items))
  items.append(('closest pair', _closest(counted.witness)))
  return page.join(page.card(page.definitions(*items)), _drawn(run.min_sep, counted))


def _sizes(counted: statement_lib.Counted, prefix: str) -> page.Html:
  sizes, field = counted.cohort_sizes, f'{prefix}cohort_sizes.'
  return page.join(
    page.figure(sizes.least, f'{field}least'),
    page.figure(sizes.mean, f'{field}mean', f'{sizes.mean:,.1f}'),
    page.figure(sizes.most, f'{field}most'),
    by=' / ',
  )


def _closest(witness: observed_lib.Witness | None) -> str:
  if witness is None:
    return 'none'
  return (
    f'device {messages.quoted(witness.device_id)} in rounds {witness.first_round:,} and'
    f' {witness.second_round:,}'
  )


def _drawn(min_sep: int, counted: statement_lib.Counted) -> page.Html:
  devices = charts.histogram(
    counted.participations,
    title='Devices by participations',
    x_label='rounds a device took part in',
  )
  if counted.separations:
    apart = charts.histogram(
      counted.separations,
      title='Time between participations',
      x_label='rounds between two participations of a device',
      mark=(min_sep, f'min-sep {min_sep:,}'),
    )
  else:
    apart = page.element('p', 'No device took part twice, so there is no time between.')
  return page.side_by_side(
    page.element('figure', devices, class_='card'), page.element('figure', apart, class_='card')
  )


def fared(statement: statement_lib.Statement, void: str | None) -> list[page.Html]:
  """Shows the privacy loss of actual devices; nothing if for publication."""
  if statement.per_device is None:
    return []
  title = page.element('h2', 'Privacy loss of actual devices')
  if not statement.per_device.rho_histogram:
    return [title, page.element('p', 'Without noise no device was protected.')]
  return [
    title,
    page.element(
      'p',
      'The privacy loss of each device that took part, from its own rounds in the'
      ' log. This assumes that the device would have been in the same rounds'
      ' whatever its data.',
    ),
    page.element(
      'p',
      page.element('strong', 'This is not a guarantee in advance'),
      ': before the run, no device knew how often it would take part. The guarantees are above.',
    ),
    page.side_by_side(
      page.element('figure', _spread(statement, void), class_='card'), _shares(statement, void)
    ),
  ]


def _spread(statement: statement_lib.Statement, void: str | None) -> page.Html:
  mark = None
  if statement.group_size == 1:  # Others are for many devices.
    worst = statement.worst_case.rho
    words = 'void' if void else f'ρ = {rounding.up(worst)}'
    mark = (worst, f'worst case: {words}')
  return page.join(
    charts.spread(
      statement.per_device.rho_histogram,
      title='Devices by ρ',
      x_label='ρ (zCDP) of a device',
      mark=mark,
    ),
    page.element('figcaption', 'Very small bars are enlarged for visibility.', class_='quiet'),
  )


def _shares(statement: statement_lib.Statement, void: str | None) -> page.Html:
  """Tables the largest privacy loss within each share of the devices."""
  rows = []
  for index, (share, loss) in enumerate(statement.per_device.quantiles):
    field = f'per_device.quantiles.{index}.'
    name = page.join(
      page.figure(share, f'{field}share', f'{100 * share:g} %'),
      page.element('span', ' of devices', class_='name'),
    )
    rows.append((name, *_losses(loss, field)))
  if statement.group_size == 1:  # Others are for many devices.
    rows.append(('most exposed', *_losses(statement.observed, 'observed.')))
  head = [
    'share of devices',
    'ρ at most',
    *(page.join('ε at most, δ = ', page.power_of_ten(delta)) for delta in statement.deltas),
  ]
  return page.card(
    page.table(head, rows, class_='void' if void else None),
    page.element(
      'p',
      'The most exposed device: ',
      page.element('strong', messages.quoted(statement.per_device.most_exposed)),
      '.',
    ),
    page.quiet(
      'Rounded up.'
      + (
        f' Of each device alone, not of {statement.group_size} together.'
        if statement.group_size > 1
        else ''
      )
    ),
  )


def _losses(loss: privacy_loss.PrivacyLoss, prefix: str) -> list[page.Html]:
  """Shows ρ, and ε at every δ."""
  return [
    page.figure(loss.rho, f'{prefix}rho'),
    *(
      page.figure(point.epsilon, f'{prefix}curve.{i}.epsilon' if i else f'{prefix}epsilon')
      for i, point in enumerate(loss.curve)
    ),
  ]
