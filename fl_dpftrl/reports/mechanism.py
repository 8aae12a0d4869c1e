"""The mechanism section of a report, for one run or several side by side."""

from collections.abc import Mapping
from typing import Any

from fl_dpftrl import rounding
from fl_dpftrl.reports import page
from fl_dpftrl.reports import setting as setting_lib

_UNKNOWN = 'not recorded'
_LISTED = 3


def mechanism(statement: Mapping[str, Any], setting: setting_lib.Setting) -> page.Html:
  """Shows strategy, noise and norms; for several runs, the common ones."""

  def known(value: str | float | None) -> str:
    if value is None:
      return _UNKNOWN
    if isinstance(value, int):
      return f'{value:,}'
    return value if isinstance(value, str) else rounding.exact(value)

  items = [('data', known(setting.dataset)), ('one device stands for', setting.unit)]
  if statement.get('confidential', True):
    items.append(('population', known(setting.population)))
  items.append(('report goal, divisor of each sum', known(setting.report_goal)))
  several = 'runs' in statement
  if not several:
    items += [
      *([('strategy', known(setting.strategy))] if statement.get('confidential', True) else []),
      ('family', statement['strategy']['family']),
      ('noise multiplier, std(Z) / clip norm', _multipliers(statement, statement)),
      ('noise begun anew', _restarts(statement, statement)),
    ]
  items += [
    (
      'clip norm (L2)',
      _history(statement, statement, 'clip_norm', 'clip_norm_changes')
      if 'clip_norm' in statement
      else known(setting.clip_norm),
    ),
    ('zeroing norm (L∞)', known(setting.zeroing_norm)),
  ]
  return page.join(
    *([_runs(statement)] if several else []),
    page.card(page.definitions(*items), *_of_parts(statement)),
  )


def _runs(statement: Mapping[str, Any]) -> page.Html:
  counted = 'num_devices' in statement['runs'][0]
  rows = []
  for index, facts in enumerate(statement['runs']):
    prefix = f'runs.{index}.'
    shown = lambda field, prefix=prefix: page.figure(statement, prefix + field)
    rows.append(
      (
        f'Run {index + 1}',
        shown('num_rounds'),
        *([shown('num_devices')] if counted else []),
        shown('max_participations'),
        shown('min_sep'),
        facts['strategy']['family'],
        _multipliers(statement, facts, prefix),
        _restarts(statement, facts, prefix),
        *([_files(facts['log'])] if 'log' in facts else []),
      )
    )
  head = (
    '',
    'rounds n',
    *(['devices'] if counted else []),
    'most k',
    'min-sep b',
    'strategy',
    'noise multiplier',
    'begun anew',
    *(['log'] if 'log' in statement['runs'][0] else []),
  )
  return page.card(
    page.table(head, rows, class_='runs'),
    page.quiet(
      'The guarantees above are of all of these runs together: over noise'
      ' that is independent from run to run, ρ adds up. Sensitivity is in'
      ' units of the first noise multiplier σ: ρ of all runs together is'
      ' (sensitivity / σ)² / 2.'
    ),
  )


def _files(files: list[Mapping[str, Any]]) -> str:
  names = [file['name'] for file in files[:_LISTED]]
  more = len(files) - len(names)
  return ', '.join(names) + (f' and {more:,} more' if more else '')


def _multipliers(
  statement: Mapping[str, Any], facts: Mapping[str, Any], prefix: str = ''
) -> page.Html:
  """Shows the noise multiplier, and each change with its round."""
  return _history(statement, facts, 'noise_multiplier', 'changes', prefix)


def _history(
  statement: Mapping[str, Any], facts: Mapping[str, Any], name: str, changes: str, prefix: str = ''
) -> page.Html:
  """Shows a number among a run's facts, and each change with its round."""
  parts = [page.figure(statement, f'{prefix}{name}', text=rounding.exact(facts[name]))]
  for index, (_, value) in enumerate(facts.get(changes, ())):
    field = f'{prefix}{changes}.{index}'
    parts.append(
      page.join(
        page.figure(statement, f'{field}.1', text=rounding.exact(value)),
        ' from round ',
        page.figure(statement, f'{field}.0'),
      )
    )
  return page.join(*parts, by=', ')


def _restarts(
  statement: Mapping[str, Any], facts: Mapping[str, Any], prefix: str = ''
) -> page.Html | str:
  restarts = facts.get('restarts', ())
  if not restarts:
    return 'never'
  rounds = (page.figure(statement, f'{prefix}restarts.{index}') for index in range(len(restarts)))
  return page.join('at round ', page.join(*rounds, by=', '))


def _of_parts(statement: Mapping[str, Any]) -> list[page.Html]:
  """Explains how restarts and changes of the noise are accounted for."""
  runs = statement.get('runs', [statement])
  words = []
  if any('restarts' in facts for facts in runs):
    words.append(
      'Where the noise began anew, worst case and declared take a device to'
      ' have all of its participations in each part.'
    )
  if any('changes' in facts for facts in runs):
    words.append(
      'Where the noise multiplier changed, they take all of them to be at the smallest.'
      if words
      else 'Where the noise multiplier changed, worst case and declared take'
      ' all participations of a device to be at the smallest.'
    )
  if any('clip_norm_changes' in facts for facts in runs):
    words.append(
      'Where the clip norm changed, noise and updates changed alike: the noise'
      ' of a round is its noise multiplier times its clip norm, so that the'
      ' guarantee is the same.'
    )
  if not words:
    return []
  if statement.get('confidential', True):
    words.append('What occurred has each round with its own noise.')
  return [page.quiet(' '.join(words))]
