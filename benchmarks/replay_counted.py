"""Counting a log in a warehouse.

47,500,000 rows of 10,000,000 devices, counted by the statement of `fl-dpftrl sql` in DuckDB. The
figures of `replay --from_counts` were those of `replay` to the last digit.
"""

import json
from typing import Any

from benchmarks import replay, runner
from benchmarks.runner import Side, call

CORES = 2
CASE = replay.Case(10_000_000, 2000, 23_750)
TABLE = 'step={step}|seconds={runs}|MiB={runs:MiB}|bytes of the file read or written={bytes:,}'


def measure() -> list[dict[str, Any]]:
  """Returns a row for each step; ValueError for one that failed, and figures that differ."""
  text, gram, counts = (
    replay.LOGS / name for name in ('replay.sql', 'gram.parquet', 'result.parquet')
  )
  claim = [f'--strategy={CASE.strategy}', f'--num_rounds={CASE.num_rounds}']
  sql = [*claim, '--dialect=duckdb', f'--output={text}', f'--gram={gram}']
  counting = call('duckdb', 'count', *map(str, (CASE.path, text, gram, counts)))
  steps = {
    'replay of the log': (CASE.command, CASE.path),
    'sql': ([runner.PROGRAM, 'sql', *sql], gram),
    'the statement in DuckDB': (counting, counts),
    'replay of its result': (
      [runner.PROGRAM, 'replay', f'--from_counts={counts}', *claim, *replay.FLAGS],
      counts,
    ),
  }
  rows, figures = [], []
  for step, (command, file) in steps.items():
    is_replay = step.startswith('replay')
    read = json.loads if is_replay else lambda output: None
    (runs,) = runner.turns(step, {'': Side(command, CORES, 1800.0, read)}, 1).values()
    if runs.failures:
      raise ValueError(f'{step}: {runs.failures[-1]}')
    rows.append({'step': step, 'runs': runs, 'bytes': file.stat().st_size})
    if is_replay:  # Which log was counted, and how, differs.
      figures.append(runs.results.pop() | dict.fromkeys(('log', 'assumptions', 'from_counts')))
  differing = [k for k in figures[0] | figures[1] if figures[0].get(k) != figures[1].get(k)]
  if differing:
    raise ValueError(f'figures differ: {", ".join(differing)}')
  return rows


def main(options: runner.Options) -> None:
  """Counts the log both ways and writes the page."""
  replay.generate(CASE)
  rows, about = measure(), runner.versions('duckdb', 'pyarrow', 'numpy')
  runner.write(options, __doc__, 'replay-counted', [runner.table(TABLE, rows)], rows, about)
