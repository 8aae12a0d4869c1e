"""The mechanism section of a report, for one run or several side by side."""

from collections.abc import Sequence

from fl_dpftrl import rounding
from fl_dpftrl.logs import log as log_lib
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.reports import page
from fl_dpftrl.reports import setting as setting_lib

_UNKNOWN = 'not recorded'
_LISTED = 3


def mechanism(statement: statement_lib.Statement, setting: setting_lib.Setting) -> page.Html:
  """Shows strategy, noise and norms; for several runs, the common ones."""

  def known(value: str | float | None) -> str:
    if value is None:
      return _UNKNOWN
    if isinstance(value, int):
      return f'{value:,}'
    return value if isinstance(value, str) else rounding.exact(value)

  items = [('data', known(setting.dataset)), ('one device stands for', setting.unit)]
  if statement.confidential:
    items.append(('population', known(setting.population)))
  items.append(('report goal, divisor of each sum', known(setting.report_goal)))
  run = None if statement.several else statement.runs[0]
  if run is not None:
    items += [
      *([('strategy', known(setting.strategy))] if statement.confidential else []),
      ('family', run.strategy.family),
      ('noise multiplier, std(Z) / clip norm', _multipliers(run)),
      ('noise restarted', _restarts(run)),
    ]
  clip_norm = known(setting.clip_norm)
  if run is not None and run.clip_norm is not None:
    clip_norm = _history('clip_norm', run.clip_norm, 'clip_norm_changes', run.clip_norm_changes)
  items += [('clip norm (L2)', clip_norm), ('zeroing norm (L∞)', known(setting.zeroing_norm))]
  return page.join(
    *([_runs(statement)] if statement.several else []),
    page.card(page.definitions(*items), *_of_parts(statement)),
  )


def _runs(statement: statement_lib.Statement) -> page.Html:
  rows = []
  for index, run in enumerate(statement.runs):
    prefix = f'runs.{index}.'
    shown = lambda value, field, prefix=prefix: page.figure(value, prefix + field)
    rows.append(
      (
        f'Run {index + 1}',
        shown(run.num_rounds, 'num_rounds'),
        *([shown(run.counted.num_devices, 'num_devices')] if run.counted else []),
        shown(run.max_participations, 'max_participations'),
        shown(run.min_sep, 'min_sep'),
        run.strategy.family,
        _multipliers(run, prefix),
        _restarts(run, prefix),
        *([] if run.log is None else [_files(run.log)]),
      )
    )
  first = statement.runs[0]
  head = (
    '',
    'rounds n',
    *(['devices'] if first.counted else []),
    'most k',
    'min-sep b',
    'strategy',
    'noise multiplier',
    'begun anew',
    *([] if first.log is None else ['log']),
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


def _files(files: Sequence[log_lib.LogFile]) -> str:
  names = [file.name for file in files[:_LISTED]]
  more = len(files) - len(names)
  return ', '.join(names) + (f' and {more:,} more' if more else '')


def _multipliers(run: statement_lib.RunFacts, prefix: str = '') -> page.Html:
  """Shows the noise multiplier, and each change with its round."""
  return _history('noise_multiplier', run.noise_multiplier, 'changes', run.changes, prefix)


def _history(
  name: str, first: float, name_of_changes: str, changes: statement_lib.Changes, prefix: str = ''
) -> page.Html:
  """Shows a number of a run, and each change with its round."""
  parts = [page.figure(first, f'{prefix}{name}', rounding.exact(first))]
  for index, (round_index, value) in enumerate(changes):
    field = f'{prefix}{name_of_changes}.{index}'
    parts.append(
      page.join(
        page.figure(value, f'{field}.1', rounding.exact(value)),
        ' from round ',
        page.figure(round_index, f'{field}.0'),
      )
    )
  return page.join(*parts, by=', ')


def _restarts(run: statement_lib.RunFacts, prefix: str = '') -> page.Html | str:
  if not run.restarts:
    return 'never'
  rounds = (page.figure(t, f'{prefix}restarts.{index}') for index, t in enumerate(run.restarts))
  return page.join('at round ', page.join(*rounds, by=', '))


def _of_parts(statement: statement_lib.Statement) -> list[page.Html]:
  """Explains how restarts and changes of the noise are accounted for."""
  words = []
  if any(run.restarts for run in statement.runs):
    words.append(
      'Where the noise began anew, worst case and declared take a device to'
      ' have all of its participations in each part.'
    )
  if any(run.changes for run in statement.runs):
    words.append(
      'Where the noise multiplier changed, they take all of them to be at the smallest.'
      if words
      else 'Where the noise multiplier changed, worst case and declared take'
      ' all participations of a device to be at the smallest.'
    )
  if any(run.clip_norm_changes for run in statement.runs):
    words.append(
      'Where the clip norm changed, noise and updates changed alike: the noise'
      ' of a round is its noise multiplier times its clip norm, so that the'
      ' guarantee is the same.'
    )
  if not words:
    return []
  if statement.confidential:
    words.append('What occurred has each round with its own noise.')
  return [page.quiet(' '.join(words))]
