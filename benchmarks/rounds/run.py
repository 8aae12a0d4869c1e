"""Times rows of noise, and rounds that take them, and writes the table.

    python -m benchmarks.rounds.run --repeats=9
"""

import argparse
import json
import pathlib
import statistics
import sys

from benchmarks import pages
from benchmarks import process
from benchmarks import sides
from benchmarks.rounds import cases

_TIMEOUT = 600.0
# Mechanisms whose rounds are timed in turn, and batches that a client trains on.
_ROUNDS = (
    (('gaussian_fixed', 'identity', 'blt-4', 'tree_online'), 1),
    (('gaussian_fixed', 'banded-342'), 1),
    (('gaussian_fixed', 'banded-342'), 400),
)


def measured(module: str, *arguments: object) -> dict:
  """What a module of this folder prints.

  Raises:
    ValueError: where it fails.
  """
  command = [sys.executable, '-m', f'benchmarks.rounds.{module}']
  done = process.run([*command, *map(str, arguments)], timeout=_TIMEOUT)
  if done.failure:
    raise ValueError(f'{" ".join(command[2:])}: {done.failure}')
  return json.loads(done.output)


def spread(seconds: list[float]) -> str:
  """Median (least–most), in milliseconds."""
  found = (statistics.median(seconds), min(seconds), max(seconds))
  middle, least, most = (f'{1e3 * value:,.0f}' for value in found)
  return f'{middle} ({least}–{most})'


def noise_rows(repeats: int) -> tuple[list[list[str]], list[dict]]:
  """A line for each strategy and number of threads."""
  sizes = [(name, cases.NUM_PARAMETERS) for name in cases.STRATEGIES]
  lines, found = [], []
  for name, size in [*sizes, ('blt-4', cases.LARGE)]:
    for threads in (1, 2):
      one = measured('noise', name, size, threads, repeats)
      found.append({'strategy': name, 'size': size, 'threads': threads, **one})
      lines.append([
          name, f'{size:,}', str(threads), spread(one['seconds']),
          spread(one['cpu_seconds']), spread(one['reading']),
          f'{one["state_bytes"] / 1e6:,.0f}',
      ])
      print(*lines[-1], file=sys.stderr)
  return lines, found


def training_rows(repeats: int) -> tuple[list[list[str]], list[dict]]:
  """A line for each mechanism of each run."""
  lines, found = [], []
  for names, batches in _ROUNDS:
    one = measured('training', repeats, batches, *names)
    found.append({'batches': batches, **one})
    base = statistics.median(one['seconds'][names[0]])
    for name, seconds in one['seconds'].items():
      ratio = statistics.median(seconds) / base
      lines.append([
          name, str(batches), spread(seconds), f'{ratio:.2f}×',
          f'{one["gibibytes"]:.1f}',
      ])
      print(*lines[-1], file=sys.stderr)
  return lines, found


def document(about: dict, noise: list, training: list) -> str:
  """The Markdown page of a measurement."""
  return '\n'.join([
      '# Rows of noise, and rounds of training',
      '',
      'Milliseconds: median (least–most).'
      f' {about["date"]}, {about["processor"]}, {about["cores"]} cores.'
      f' {pages.said(about["versions"])}.',
      '',
      '## A row of noise alone',
      '',
      sides.table(
          ('strategy', 'parameters', 'threads', 'a row', 'computed',
           'reading the state once', 'state, MB'), noise
      ),
      '',
      f'## A round with four clients, {cases.NUM_PARAMETERS:,} parameters',
      '',
      sides.table(
          ('noise', 'batches a client', 'a round', 'over gaussian_fixed',
           'GiB, of all together'), training
      ),
      '',
  ])


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(prog='python -m benchmarks.rounds.run')
  parser.add_argument('--repeats', type=int, default=9, help='rows and rounds')
  parser.add_argument('--output', default='benchmarks/results')
  args = parser.parse_args(arguments)
  if args.repeats < 1:
    parser.error(f'--repeats must be at least 1, got {args.repeats}')
  try:
    about = {
        **pages.machine(None),
        'versions': pages.versions(
            sys.executable, 'numpy', 'tensorflow_federated'
        ),
    }
    noise, noise_json = noise_rows(args.repeats)
    training, training_json = training_rows(args.repeats)
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    pages.write(
        folder, 'rounds', document(about, noise, training),
        {**about, 'noise': noise_json, 'training': training_json},
    )
  except (OSError, ValueError) as e:
    print(f'bench: {e}', file=sys.stderr)
    return 2
  return 0


if __name__ == '__main__':
  sys.exit(main())
