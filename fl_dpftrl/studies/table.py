"""The table of a study, as text, Markdown and cells of a page."""

import itertools
import math
from collections.abc import Sequence

from fl_dpftrl.studies import design as design_lib
from fl_dpftrl.studies import metric as metric_lib
from fl_dpftrl.studies import results, sequential
from fl_dpftrl.text import messages, rounding

# Cells that a table's title makes plain, or that say nothing.
_SAID_BY_TITLE = ('', '–', 'none', design_lib.NO_NOISE)


def head(metric: metric_lib.Metric) -> tuple[str, ...]:
  """Returns the table's head."""
  return (
    'ε',
    'mechanism',
    metric.label(f'test {metric.name}'),
    'seeds',
    metric.label(f'{metric.worse} the best', 'points'),
    'verdict',
    'server rate',
    'noise multiplier',
    'ε of the run',
    'remarks',
  )


def cells(rows: Sequence[results.Row]) -> list[tuple[str, ...]]:
  """Returns the table's cells: by ε, the best mechanism first, no noise last."""
  order = list(dict.fromkeys(row.epsilon for row in rows))
  ordered = sorted(rows, key=lambda r: (order.index(r.epsilon), -r.gain if r.tests else math.inf))
  return [
    (
      '∞' if row.setting.mechanism is None else f'{row.epsilon:g}',
      row.label,
      row.metric.number(row.mean, row.deviation) if row.tests else '–',
      str(len(row.tests)),
      '–' if row.difference is None else row.metric.difference(row.difference),
      row.verdict,
      '–' if row.server_learning_rate is None else f'{row.server_learning_rate:.4g}',
      '0' if row.noise is None else rounding.up(row.noise.noise_multiplier),
      _epsilon_of_run(row),
      '; '.join(remarks(row)),
    )
    for row in ordered
  ]


def _epsilon_of_run(row: results.Row) -> str:
  """Returns the largest ε that the log of a run proves, rounded up."""
  proven = [r.summary.get('epsilon') for r in row.results if r.summary]
  known = [epsilon for epsilon in proven if epsilon is not None]
  if row.setting.mechanism is None or not known or len(known) < len(proven):
    return 'none'
  return rounding.up(max(known))


def remarks(row: results.Row) -> list[str]:
  """Returns what a reader must know about a row."""
  texts = []
  if row.setting.published is not None:
    texts.append(f'published: {row.metric.number(row.setting.published)}')
  if row.noise is not None and row.noise.num_bands is not None:
    texts.append(f'bands: {row.noise.num_bands}')
  if row.at_edge:
    texts.append('the rate is at an end of its grid')
  for status in (results.DIVERGED, results.FAILED):
    of_status = [r for r in row.problems if r.status == status]
    if of_status:
      first = of_status[0]
      texts.append(
        f'{len(of_status)} {status}, first {first.cell.name}:'
        f' {messages.one_line(first.reason, limit=120)}'
      )
  return texts


def text(rows: Sequence[results.Row]) -> str:
  """Returns the table with columns in line."""
  lines = [head(rows[0].metric), *cells(rows)]
  widths = [max(map(len, column)) for column in zip(*lines)]
  return '\n'.join(
    '  '.join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines
  )


def lines(rows: Sequence[results.Row]) -> str:
  """Returns the table in Markdown."""
  return grid([head(rows[0].metric), *cells(rows)])


def levels(rows: Sequence[results.Row]) -> list[tuple[str, str, list[tuple[str, ...]]]]:
  """Returns a narrow table for each ε, whose equal cells are said once.

  Returns:
    For each ε a title, a line of what all its rows share, and the lines of a
    table, the first of which is the head; no lines where all cells are equal.
  """
  tables = []
  for epsilon, group in itertools.groupby(cells(rows), key=lambda row: row[0]):
    columns = list(zip(head(rows[0].metric), *group))[1:]
    shared = [column for column in columns if len(set(column[1:])) == 1]
    told = '; '.join(
      f'{name}: {value}' for name, value, *_ in shared if value not in _SAID_BY_TITLE
    )
    differing = [column for column in columns if column not in shared]
    title = 'No noise' if epsilon == '∞' else f'ε = {epsilon}'
    tables.append((title, told, list(zip(*differing))))
  return tables


def grid(lines: Sequence[Sequence[str]]) -> str:
  """Returns lines of cells, the first of which is the head, as a table in Markdown."""
  marked = [lines[0], ('---',) * len(lines[0]), *lines[1:]]
  return '\n'.join('| ' + ' | '.join(c.replace('|', '\\|') for c in line) + ' |' for line in marked)


def markdown(design: design_lib.Design, rows: Sequence[results.Row]) -> str:
  """Returns a page in Markdown: the title, the table and how to read it."""
  return (
    f'# {design.title}\n\n{lines(rows)}\n\n'
    + '\n'.join(f'- {n}' for n in notes(design, rows))
    + '\n'
  )


def notes(design: design_lib.Design, rows: Sequence[results.Row]) -> list[str]:
  """Returns sentences that say how to read the table."""
  what = (
    'the run itself'
    if design.epsilon_of == design_lib.RUN
    else 'the hypothetical deployment (same noise on the mean, same participation)'
  )
  name, worse = design.metric.name, design.metric.worse
  tuned = ', '.join(map(str, design.seeds[: design.tuning_seeds]))
  rate = (
    f'The server learning rate is the one with the best validation {name}, for seed {tuned}.'
    f' Test {name} is reported at that rate alone.'
  )
  if all(len(setting.server_learning_rates) == 1 for setting in design.settings):
    rate = 'The server learning rate is given: none was tried beside it.'
  which = 'lower' if design.metric.lower_is_better else 'higher'
  direction = '' if design.metric.is_accuracy else f'; {which} is better'
  schemes = {row.conditions.sampling for row in rows}
  by = 'the participation that the timers enforce'
  if schemes != {None}:
    by = 'batches that are drawn as stated, in secret, with a part of the examples for each band'
  simulated = (
    ' A timer in hours enforces no min-sep in rounds: there it is the participation of the'
    ' simulated cohorts, the worst over seeds.'
  )
  return [
    f'Target ε are those of {what}, for {by}.'
    + (simulated if any(row.conditions.simulated for row in rows) else ''),
    rate,
    f'Test {name} is the mean ± standard deviation over seeds{direction}.',
    f'"{worse.capitalize()} the best" is the mean difference to the best mechanism of the same ε,'
    ' paired by seed, ± half of its 95 % confidence interval (Student’s t, not corrected for the'
    ' number of comparisons). "Tied" means that the interval holds 0.',
    *sequential.sentences(rows, design),
    '"ε of the run" is the largest that the participation log of a run proves.',
  ]
