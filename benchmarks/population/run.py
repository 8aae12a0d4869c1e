"""Simulates populations and writes their time and memory.

python -m benchmarks.population.run --repeats=3
"""

import argparse
import dataclasses
import json
import pathlib
import sys
import tempfile

from benchmarks import pages, process, sides
from benchmarks.population import cases

CORES = 2
TIMEOUT = 1800.0
HEADINGS = (
  'devices',
  'participations',
  'timer',
  'min-sep',
  'ours, s',
  'limit, s',
  'ours over limit',
  'µs a participation',
  'ours, MiB',
)


@dataclasses.dataclass(frozen=True)
class Row:
  """Results of both sides of a case."""

  case: cases.Case
  ours: sides.Side
  limit: sides.Side

  @property
  def microseconds(self) -> float | None:
    """Microseconds per participation, including process start and imports."""
    if self.ours.median is None:
      return None
    return 1e6 * self.ours.median / self.case.num_participations

  def cells(self) -> list[str]:
    both = self.ours.median and self.limit.median
    return [
      f'{self.case.num_devices:,}',
      f'{self.case.num_participations:,}',
      self.case.timer.removeprefix('--timer_').replace('=', ' '),
      str((self.ours.figures or {}).get('min_sep', '')),
      sides.time(self.ours),
      sides.time(self.limit),
      f'{self.ours.median / self.limit.median:.1f}×' if both else '',
      '' if self.microseconds is None else f'{self.microseconds:.2f}',
      sides.memory(self.ours),
    ]

  def as_json(self) -> dict:
    return {**dataclasses.asdict(self), 'microseconds': self.microseconds}


def measure(case: cases.Case, repeats: int) -> Row:
  """Runs both sides in turn; each is a process that also writes the log."""
  program = str(pathlib.Path(sys.executable).with_name('fl-dpftrl'))
  found = {'ours': sides.Side(), 'limit': sides.Side()}
  with tempfile.TemporaryDirectory() as folder:
    log = f'{folder}/log.parquet'
    limit = [case.num_devices, case.report_goal, case.num_rounds, log]
    commands = {
      'ours': [program, 'simulate', *case.flags(), f'--output={log}', '--json'],
      'limit': [sys.executable, '-m', 'benchmarks.population.limit', *map(str, limit)],
    }
    for _ in range(repeats):
      for name, command in commands.items():
        done = process.run(command, timeout=TIMEOUT, threads=1)
        found[name] = judged(found[name], done)
        print(f'{case.num_devices} devices, {name}: {found[name].note()}', file=sys.stderr)
  return Row(case, **found)


def judged(side: sides.Side, done: process.Finished) -> sides.Side:
  """Returns the side with one more run."""
  if done.failure:
    return side.failed(done.failure)
  said = json.loads(done.output)
  if isinstance(said, dict):
    del said['output']  # A temporary file.
  return side.finished(done, figures=said if isinstance(said, dict) else None)


def flatness(rows: list[Row]) -> float | None:
  """Returns the largest ratio of times per participation between two sizes."""
  times = [r.microseconds for r in rows if r.case in cases.GROWING]
  if len(times) < 2 or None in times:
    return None
  return max(times) / min(times)


def document(about: dict, rows: list[Row]) -> str:
  """Returns the Markdown page of a measurement."""
  flat = flatness(rows)
  lines = [
    '# Simulating populations',
    '',
    'Each run is a cold process that writes the log. Ours is `fl-dpftrl'
    ' simulate`. The limit draws as many devices at random, counts and writes'
    ' them, without timers, availability, dropout or late reports.',
    '',
    f'{about["date"]}, {about["processor"]},'
    f' {about["cores_used"] or "any"} of {about["cores"]} cores.'
    f' {pages.said(about["versions"])}.',
    '',
    sides.table(HEADINGS, [row.cells() for row in rows]),
    '',
  ]
  if flat is not None:
    lines += [
      'With timers of 10 rounds, between the fewest and the most devices, the'
      f' longest time per participation is {flat:.2f}× the shortest.',
      '',
    ]
  return '\n'.join(lines)


def sizes(about: dict, folder: pathlib.Path, repeats: int) -> int:
  """Measures every case and returns the exit status."""
  rows: list[Row] = []
  for case in (cases.PRODUCTION, *cases.GROWING):
    rows.append(measure(case, repeats))
    data = {**about, 'rows': [row.as_json() for row in rows], 'flatness': flatness(rows)}
    pages.write(folder, cases.PREFIX, document(about, rows), data)
  print(document(about, rows))
  return int(any(row.ours.failures or row.limit.failures for row in rows))


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks.population.run', description=__doc__.split('\n')[0]
  )
  add = parser.add_argument
  add('--repeats', type=int, default=3, help='runs of each side (default: 3)')
  add('--output', default='benchmarks/results', help='folder of the results')
  args = parser.parse_args(arguments)
  about = {
    **pages.machine(CORES if process.pin(CORES) else None),
    'versions': pages.versions(sys.executable, 'numpy', 'pyarrow'),
  }
  folder = pathlib.Path(args.output)
  folder.mkdir(parents=True, exist_ok=True)
  return sizes(about, folder, args.repeats)


if __name__ == '__main__':
  sys.exit(main())
