"""Counts a large log by the statement for warehouses, and by `replay`: the figures are the same.

    python -m benchmarks replay-counted

The statement runs in DuckDB. The log has 47.5 million rows, and stays in benchmarks/.cache.
"""

import json
import pathlib
import sys

from benchmarks import pages, process, sides
from benchmarks.replay import cases, run

CASE = cases.COUNTED
_OF_THE_LOG = ('log', 'assumptions', 'from_counts')  # which log was counted, and how
_STATEMENT = """
import pathlib, sys
import duckdb
log, text, gram, result = sys.argv[1:]
with duckdb.connect(config={'threads': 2}) as engine:
  engine.execute(f"CREATE VIEW participation AS SELECT * FROM read_parquet('{log}')")
  engine.execute(f"CREATE TABLE gram AS SELECT * FROM read_parquet('{gram}')")
  text = pathlib.Path(text).read_text().strip().rstrip(';')
  engine.execute(f"COPY ({text}) TO '{result}' (FORMAT parquet)")
"""


def measure(log: pathlib.Path, folder: pathlib.Path) -> list[tuple[str, process.Finished, int]]:
  """Returns each step with its process and the bytes of what it made.

  Raises:
    ValueError: for a step that failed, and figures that differ.
  """
  text, gram, result = (folder / name for name in ('replay.sql', 'gram.parquet', 'result.parquet'))
  program = pathlib.Path(sys.executable).with_name('fl-dpftrl')
  made_for = [f'--strategy={CASE.strategy}', f'--num_rounds={CASE.num_rounds}']
  steps = {
    'replay of the log': (run.command(CASE, log), log),
    'sql': (
      [str(program), 'sql', *made_for, '--dialect=duckdb', f'--output={text}', f'--gram={gram}'],
      gram,
    ),
    'the statement in DuckDB': (
      [sys.executable, '-c', _STATEMENT, *map(str, (log, text, gram, result))],
      result,
    ),
    'replay of its result': (
      [str(program), 'replay', f'--counted={result}', *made_for, *run.FLAGS],
      result,
    ),
  }
  found, said = [], []
  for name, (arguments, made) in steps.items():
    done = process.run(arguments, timeout=1800.0, threads=run.CORES)
    if done.failure:
      raise ValueError(f'{name}: {done.failure}')
    print(f'{name}: {done.seconds:.1f} s', file=sys.stderr)
    found.append((name, done, made.stat().st_size))
    if name.startswith('replay'):
      said.append({k: v for k, v in json.loads(done.output).items() if k not in _OF_THE_LOG})
  if said[0] != said[1]:
    differing = [name for name in said[0] if said[0][name] != said[1].get(name)]
    raise ValueError(f'figures differ: {", ".join(differing)}')
  return found


def main() -> int:
  folder = pathlib.Path('benchmarks/.cache/replay')
  try:
    log = run.generated(CASE, folder)
    about = {
      **pages.machine(run.CORES),
      'versions': pages.versions(sys.executable, 'duckdb', 'pyarrow', 'numpy'),
    }
    found = measure(log, folder)
  except (OSError, ValueError) as problem:
    print(f'bench: {problem}', file=sys.stderr)
    return 2
  rows = [
    (name, f'{done.seconds:.1f}', f'{done.peak_mebibytes:,.0f}', f'{size:,}')
    for name, done, size in found
  ]
  page = '\n'.join(
    [
      '# Counting a log in a warehouse',
      '',
      f'{CASE.num_participations:,} rows of {CASE.num_devices:,} devices. The figures of `replay'
      ' --counted` were those of `replay` to the last digit.',
      '',
      f'{about["date"]}, {about["processor"]}, {about["cores"]} cores.'
      f' {pages.said(about["versions"])}.',
      '',
      sides.table(('step', 'seconds', 'MiB', 'bytes of the file read or written'), rows),
      '',
    ]
  )
  pages.write(pathlib.Path('benchmarks/results'), 'replay-counted', page, about)
  print(page)
  return 0


if __name__ == '__main__':
  sys.exit(main())
