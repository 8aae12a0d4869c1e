"""Replays logs in turn with DuckDB's bare query and writes the table.

python -m benchmarks.replay.run --only=replay-13M-text
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys

from benchmarks import pages, process, sides
from benchmarks.replay import cases, results

CORES = 2
FLAGS = ('--noise_multiplier=8', '--delta=1e-6', '--json')

_HERE = pathlib.Path(__file__).parent
_CACHE = 'benchmarks/.cache/replay'


def command(case: cases.Case, log: pathlib.Path) -> list[str]:
  """Returns the `fl-dpftrl replay` command of a log, for this environment."""
  return [
    str(pathlib.Path(sys.executable).with_name('fl-dpftrl')),
    'replay',
    f'--log={log}',
    f'--strategy={case.strategy}',
    *FLAGS,
  ]


def generated(case: cases.Case, folder: pathlib.Path) -> pathlib.Path:
  """Returns the log of a case and writes it if it does not exist.

  A separate process writes it, so that its memory does not count as that of the
  measured process.

  Raises:
    ValueError: if the log cannot be written.
  """
  path = folder / case.file_name
  if not path.exists():
    folder.mkdir(parents=True, exist_ok=True)
    status = subprocess.run(
      [sys.executable, '-m', 'benchmarks.replay.generate', case.name, str(path)]
    ).returncode
    if status:
      raise ValueError(f'{case.name}: its log could not be generated')
  return path


def measure(case: cases.Case, log: pathlib.Path, repeats: int) -> results.Row:
  """Runs both sides in turn, `repeats` times; a failed side is not repeated."""
  peer = [sys.executable, str(_HERE / 'peer.py'), str(log), str(CORES)]
  of_sides = {'ours': (command(case, log), of_ours)}
  if not case.large:
    of_sides['peer'] = (peer, of_peer)
  found = {'ours': sides.Side(), 'peer': sides.Side()}
  for repeat in range(1 if case.large else repeats):
    for name, (arguments, figures) in of_sides.items():
      if found[name].failures:
        continue
      done = process.run(arguments, timeout=case.timeout, threads=CORES)
      found[name] = judged(found[name], done, figures)
      note = found[name].note()
      print(f'{case.name} {repeat + 1} {name}: {note}', file=sys.stderr)
  return results.Row(case, **agreed(**found))


def of_ours(output: str) -> dict[str, int]:
  """Parses min_sep, which the peer finds too, and the number of rows."""
  said = json.loads(output)
  return {'min_sep': said['min_sep'], 'num_participations': said['num_participations']}


def of_peer(output: str) -> dict[str, int]:
  return {'min_sep': int(output)}


def judged(side: sides.Side, done: process.Finished, figures) -> sides.Side:
  """Returns the side with one more run, which failed if its figures are None."""
  if done.failure:
    return side.failed(done.failure)
  try:
    return side.finished(done, figures=figures(done.output))
  except (ValueError, KeyError) as e:
    return side.failed(f'{type(e).__name__}: {e}')


def agreed(ours: sides.Side, peer: sides.Side) -> dict[str, sides.Side]:
  """Returns both sides; ours has failed if the peer found another min-sep."""
  if ours.figures and peer.figures:
    found, expected = ours.figures['min_sep'], peer.figures['min_sep']
    if found != expected:
      ours = dataclasses.replace(ours, seconds=(), figures=None).failed(
        f'min_sep is {found}, the bare query says {expected}'
      )
  return {'ours': ours, 'peer': peer}


def document(about: dict, rows: list[results.Row]) -> str:
  """Returns the Markdown page of a measurement."""
  return '\n'.join(
    [
      '# Replaying a log: fl-dpftrl and a bare query',
      '',
      'Each run is a cold process. Ours is `fl-dpftrl replay`: every fact and'
      " guarantee of the statement, including the file's SHA-256.",
      'The bare query only finds the minimal separation. Seconds are the median'
      ' (least–most) of all runs.',
      '',
      f'{about["date"]}, {about["processor"]},'
      f' {about["cores_used"] or "any"} of {about["cores"]} cores,'
      f' {CORES} threads. {pages.said(about["versions"])}.',
      '',
      results.table(rows),
      '',
    ]
  )


def parse(arguments: list[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.replay.run', description=__doc__.split('\n')[0]
  )
  add = parser.add_argument
  add('--only', default='', help='comma-separated parts of names')
  add('--large', action='store_true', help='use the log of 1e9 rows instead')
  add('--repeats', type=int, default=3, help='runs of each side (default: 3)')
  add('--cache', default=_CACHE, help='folder of the generated logs')
  add('--output', default='benchmarks/results', help='folder of the results')
  args = parser.parse_args(arguments)
  args.words = [w for w in args.only.split(',') if w]
  try:
    args.cases = cases.select(args.words, large=args.large)
    if args.repeats < 1:
      raise ValueError(f'--repeats must be at least 1, got {args.repeats}')
  except ValueError as e:
    parser.error(str(e))
  return args


def file_name(words: list[str], *, large: bool) -> str:
  """Returns the name of the results without suffix, such as replay-13M-text."""
  more = [word.removeprefix(cases.PREFIX).strip('-') for word in words]
  return '-'.join(filter(None, [cases.PREFIX, 'large' * large, *more]))


def main(arguments: list[str] | None = None) -> int:
  args = parse(arguments)
  rows = []
  try:
    logs = [generated(c, pathlib.Path(args.cache)) for c in args.cases]
    about = {
      **pages.machine(CORES if process.pin(CORES) else None),
      'versions': pages.versions(sys.executable, 'duckdb', 'pyarrow', 'numpy'),
    }
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    for case, log in zip(args.cases, logs):
      rows.append(measure(case, log, args.repeats))
      pages.write(
        folder,
        file_name(args.words, large=args.large),
        document(about, rows),
        {**about, 'rows': [row.as_json() for row in rows]},
      )
  except (OSError, ValueError) as e:
    print(f'bench: {e}', file=sys.stderr)
    return 2
  print(results.table(rows))
  return int(any(row.ours.failures or row.peer.failures for row in rows))


if __name__ == '__main__':
  sys.exit(main())
