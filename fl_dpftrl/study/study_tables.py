"""Table and page of a study, as text and in Markdown."""

from collections.abc import Sequence

from fl_dpftrl.study import result_tables
from fl_dpftrl.study.result_tables import Metric
from fl_dpftrl.support.text import messages, roundings

CHOICE = 'each ε is that of one run; choosing among runs by private data spends more'


def cells(rows: Sequence[result_tables.Row], metric: Metric) -> list[tuple[str, ...]]:
  """Returns the lines of the table, the first of which is the head."""
  worse = metric.label(f'{"above" if metric.lower_is_better else "below"} the best', 'points')
  compared = ('ε', 'mechanism', metric.label(f'test {metric.name}'), worse, 'told apart from')
  head = (*compared, 'seeds', 'server rate', 'noise multiplier', 'ε of a run', 'remarks')
  return [head, *((*_compared(row, metric), *_run(row)) for row in rows)]


def text(rows: Sequence[result_tables.Row], metric: Metric, about: Sequence[str]) -> str:
  """Returns the table with columns in line, and the notes."""
  lines = cells(rows, metric)
  widths = [max(map(len, column)) for column in zip(*lines)]
  padded = ['  '.join(map(str.ljust, line, widths)).rstrip() for line in lines]
  return '\n'.join([*padded, *notes(rows), *about])


def notes(rows: Sequence[result_tables.Row]) -> list[str]:
  """Returns sentences that say how to read the table."""
  pairs = sum(len(row.others) for row in rows) // 2
  apart = sum(len(row.distinguished) for row in rows) // 2
  return [
    '± is half of a 95 % interval over seeds (Student’s t): of a mean, or of a difference paired by'
    ' seed.',
    f'Told apart: {apart} of {pairs} pairs of one ε, by paired t-tests that are corrected together'
    ' (Holm). At most 5 % of such studies tell an equal pair apart.',
    f'{CHOICE[0].upper()}{CHOICE[1:]}.',
  ]


def page(
  title: str,
  rows: Sequence[result_tables.Row],
  metric: Metric,
  about: Sequence[str],
  figures: list[str],
) -> str:
  """Returns the page in Markdown, which shows figures beside it by their names."""
  shown = [f'![{name.replace("_", " ")}]({name}.svg)' for name in figures]
  sentences = [*notes(rows), *about, 'Each run is a row of [results.csv](results.csv).']
  bullets = '\n'.join(f'- {line}' for line in sentences)
  lines = markdown(cells(rows, metric))
  return '\n\n'.join([f'# {title}', *shown[:1], lines, bullets, *shown[1:]]) + '\n'


def markdown(lines: Sequence[Sequence[str]]) -> str:
  """Returns lines of cells, the first of which is the head, as a table in Markdown."""
  marked = [lines[0], ('---',) * len(lines[0]), *lines[1:]]
  return '\n'.join('| ' + ' | '.join(c.replace('|', '\\|') for c in line) + ' |' for line in marked)


def _problems(row: result_tables.Row) -> list[result_tables.Result]:
  return [r for r in row.results if r.status not in (result_tables.DONE, result_tables.WAITING)]


def _compared(row: result_tables.Row, metric: Metric) -> tuple[str, ...]:
  value = difference = apart = '–'
  if row.mean is not None:
    value = metric.text(row.mean, result_tables.margin(list(row.tests.values())))
  elif statuses := [problem.status for problem in _problems(row)]:
    value = ', '.join(f'{statuses.count(status)} {status}' for status in dict.fromkeys(statuses))
  if row.others:
    apart = ', '.join(row.distinguished) or 'none'
    if len(row.distinguished) == len(row.others) > 1:
      apart = f'all {len(row.others)}'
    difference = 'best'
  if row.differences:
    mean = -metric.sign * sum(row.differences) / len(row.differences)
    difference = metric.text(mean, result_tables.margin(row.differences))
  level = '∞' if row.epsilon is None else f'{row.epsilon:g}'
  return level, row.mechanism, value, difference, apart, str(len(row.tests))


def _run(row: result_tables.Row) -> tuple[str, ...]:
  first, remarks = row.results[0], []
  rates = {r.server_learning_rate for r in row.results}
  rate = rates.pop() if len(rates) == 1 else None
  proven = [r.epsilon_of_run for r in row.results if r.status != result_tables.WAITING]
  epsilons = [epsilon for epsilon in proven if epsilon is not None]
  if first.num_parts is not None:
    remarks.append(f'bands: {first.num_parts}')
  if row.at_end:
    remarks.append('rate at an end of those tried')
  waiting = sum(r.status == result_tables.WAITING for r in row.results)
  if waiting:
    remarks.append(f'{waiting} not run')
  for problem in _problems(row)[:1]:
    reason = messages.one_line(problem.reason, limit=120)
    remarks.append(f'seed {problem.seed} {problem.status}: {reason}')
  return (
    '–' if rate is None else f'{rate:.4g}',
    '–' if first.noise_multiplier is None else roundings.up(first.noise_multiplier),
    roundings.up(max(epsilons)) if epsilons and len(epsilons) == len(proven) else 'none',
    '; '.join(remarks),
  )
