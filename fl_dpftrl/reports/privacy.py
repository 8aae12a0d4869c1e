"""Privacy report as one self-contained HTML page.

The page separates what is proven, assumed and not covered. Each figure is in
the page to the last digit, in a <data> element that names the statement's
field. The statement itself is embedded as JSON. The page of a publishable
statement holds no more than that statement.
"""

import os

from fl_dpftrl import files, rounding
from fl_dpftrl.centralized import drawn as drawn_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.reports import checklist, guarantee_cards, mechanism, page, participants
from fl_dpftrl.reports import setting as setting_lib

Setting = setting_lib.Setting
Deployment = setting_lib.Deployment


def write_report(
  path: str | os.PathLike[str], statement: statement_lib.Statement, *, setting: Setting
) -> None:
  """Writes the report of a run, in one durable step.

  A report that is not for publication can be read by its owner only.

  Args:
    path: the HTML file; its folder must exist.
    statement: result of `replay`, or of `publishable`.
    setting: other information about the run.

  Raises:
    ValueError: if the setting's noise multiplier is not the statement's.
    OSError: if it cannot be written.
  """
  files.write_durably(path, report(statement, setting).encode(), private=statement.confidential)


def report(statement: statement_lib.Statement, setting: Setting) -> str:
  """Returns the page that `write_report` writes."""
  if setting.noise_multiplier != statement.noise_multiplier:
    raise ValueError(
      f'noise_multiplier is {setting.noise_multiplier!r} in the setting, but'
      f' {statement.noise_multiplier!r} in the statement'
    )
  if not statement.confidential:
    setting = setting.publishable()
  void = _void_reason(statement, setting)
  title = ': '.join(filter(None, ('Privacy report', setting.run)))
  several = statement.several
  return page.document(
    title,
    _readers(statement),
    _headline(statement, setting, void),
    *_alarms(statement, void),
    page.element('h2', guarantee_cards.heading(statement)),
    guarantee_cards.cards(statement, void),
    *participants.fared(statement, void),
    *_hypothetical(setting),
    page.element('h2', 'The runs' if several else 'The mechanism'),
    mechanism.mechanism(statement, setting),
    page.element('h2', 'Participation'),
    participants.attendance(statement, setting),
    page.element('h2', 'Checklist'),
    checklist.checklist(statement, setting, void),
    page.element('h2', 'Outside the guarantee'),
    checklist.outside(statement, setting),
    page.element('h2', 'To check it'),
    checklist.provenance(statement, setting),
    page.embedded_json('statement', statement.to_json()),
  )


def _void_reason(statement: statement_lib.Statement, setting: Setting) -> str | None:
  reason = setting.void_reason or statement.void_reason
  if reason is None and statement.worst_case.epsilon is None:
    reason = 'no noise was added'
  return reason


def _readers(statement: statement_lib.Statement) -> page.Html:
  """States first of all for which readers the page is meant."""
  if statement.confidential:
    return page.card(
      page.element('strong', 'Confidential'),
      ': has figures of single devices from the private log; there is a version for publication.',
      kind='warn',
    )
  return page.card(
    page.element(
      'p',
      page.element('strong', 'For publication.'),
      ' Left out, as counted from single devices: what occurred exactly'
      ' (“observed”), how those who took part fared, the times between'
      ' participations, how often devices took part, sizes of cohorts and'
      ' rounds that were short, and how many devices and participations'
      ' there were. Left out, too, are names, places and digests of files.',
    ),
    page.quiet(
      'The most participations k and the min-sep b are as in the log, and'
      ' so is whether what was declared holds, because the guarantee is'
      ' stated in them; they are not protected by it.'
    ),
  )


def _headline(statement: statement_lib.Statement, setting: Setting, void: str | None) -> page.Html:
  several = statement.several
  if void is not None:
    crossed_out = page.quiet(
      'Figures below are crossed out: they would hold for a run that differs'
      ' from this one in that alone.'
    )
    return page.card(
      page.element('p', 'No guarantee', class_='figure'),
      page.element(
        'p',
        f'These runs together guarantee nothing: {void}.'
        if several
        else f'This run guarantees nothing: {void}.',
      ),
      *([crossed_out] if statement.worst_case.rho is not None else []),
      kind='headline bad',
    )
  return page.card(
    page.element(
      'p',
      'ε = ',
      page.figure(statement.worst_case.epsilon, 'worst_case.epsilon'),
      ' at δ = ',
      page.delta(statement.delta, 'delta'),
      class_='figure',
    ),
    page.element(
      'p',
      'Also ρ = ',
      page.figure(statement.worst_case.rho, 'worst_case.rho'),
      ' of zero-concentrated differential privacy (zCDP). Adjacency: ',
      page.element('strong', checklist.adjacency_name(statement)),
      f'. Unit of privacy: {checklist.unit(statement, setting)}.',
    ),
    page.quiet(
      *(_covered_by_all(statement) if several else _covered(statement)), ' Figures are rounded up.'
    ),
    kind='headline',
  )


def _covered(statement: statement_lib.Statement) -> list[page.Html | str]:
  return [
    'It covers every device that took part in at most ',
    page.figure(statement.max_participations, 'max_participations'),
    ' of ',
    page.figure(statement.num_rounds, 'num_rounds'),
    ' rounds, any two of them at least ',
    page.figure(statement.min_sep, 'min_sep'),
    ' apart, as the participation log shows for all devices.',
  ]


def _covered_by_all(statement: statement_lib.Statement) -> list[page.Html | str]:
  return [
    f'It is of {len(statement.runs)} runs together, ',
    page.figure(statement.num_rounds, 'num_rounds'),
    ' rounds, and covers everyone who kept in each of them to the most'
    ' participations and the min-sep that its log shows of every device.',
  ]


def _alarms(statement: statement_lib.Statement, void: str | None) -> list[page.Html]:
  alarms = []
  if statement.declared is not None and not statement.declared.holds:
    words = _violation(statement)
    if void is None:
      words += (
        ' The worst case and what occurred rest on the log, and stand.'
        if statement.observed is not None
        else ' The worst case rests on the log, and stands.'
      )
    alarms.append(
      page.card(
        page.element('h3', 'The declared participation was violated'),
        page.element('p', words),
        kind='bad',
      )
    )
  drawn = statement.drawn
  if drawn is not None and not drawn.holds:
    alarms.append(
      page.card(
        page.element('h3', 'The log contradicts the stated sampling'),
        page.element('p', _refuted(drawn, void)),
        kind='bad',
      )
    )
  if statement.warnings:
    alarms.append(
      page.card(page.element('h3', 'Of the log'), page.bullets(statement.warnings), kind='warn')
    )
  return alarms


def _violation(statement: statement_lib.Statement) -> str:
  if statement.several:
    return 'Not every run kept to its declared schema. The declared guarantee is void.'
  declared = statement.declared
  return (
    f'Declared were a min-sep of {declared.min_sep} and at most'
    f' {declared.max_participations} participations; the log has'
    f' {statement.min_sep} and {statement.max_participations}. What was'
    ' declared is void.'
  )


def _refuted(drawn: drawn_lib.Drawn, void: str | None) -> str:
  words = (
    f'Batches were said to be drawn by {drawn.name}, of'
    f' {drawn.scheme.num_examples:,} examples in {drawn.scheme.num_parts:,} parts and'
    f' {drawn.scheme.batch_size:g} in a round'
  )
  if drawn.reason:
    words += f', but {drawn.reason}'
  words += '. What was to follow from the draws is not guaranteed.'
  if void is None:
    words += ' The worst case takes the rounds of the log as given, and stands.'
  return words


def _hypothetical(setting: Setting) -> list[page.Html]:
  deployment = setting.hypothetical
  if deployment is None:
    return []
  shown = lambda value, field, text=None: page.figure(value, f'hypothetical.{field}', text)
  population = []
  if deployment.population is not None:
    population.append(('implied population', shown(deployment.population, 'population')))
  return [
    page.element('h2', 'Hypothetical deployment'),
    page.card(
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
        ('report goal', shown(deployment.report_goal, 'report_goal')),
        *population,
        (
          'noise multiplier',
          shown(
            deployment.noise_multiplier,
            'noise_multiplier',
            rounding.up(deployment.noise_multiplier, digits=6),
          ),
        ),
        ('sensitivity', shown(deployment.sensitivity, 'sensitivity')),
        ('ρ (zCDP)', shown(deployment.rho, 'rho')),
        (
          page.join('ε at δ = ', page.delta(deployment.delta, 'hypothetical.delta')),
          shown(deployment.epsilon, 'epsilon'),
        ),
      ),
      kind='dashed',
    ),
  ]
