"""Runs benchmarks by name: python -m benchmarks NAME… (--help lists the names)."""

import argparse
import importlib
import os
import pathlib
import subprocess
import sys

from benchmarks import runner

BENCHMARKS = (
  *('optimize', 'replay', 'training', 'rounds', 'population', 'plan', 'guard', 'loop', 'central'),
  *('attack', 'replay-counted', 'scale', 'gpu'),
)
PROCESSORS = sorted(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else []
DEFAULT = BENCHMARKS[:3]


def module(name: str):
  """Returns the module of a benchmark."""
  return importlib.import_module(f'benchmarks.{name.replace("-", "_")}')


def selection(words: list[str]) -> dict[str, tuple[str, ...]]:
  """Returns the benchmarks that words select, each with the words that select its cases."""
  selected = {}
  for word in words or DEFAULT:
    cases = {name: getattr(module(name), 'CASES', ()) for name in BENCHMARKS}
    named = [b for b in cases if any(word in case for case in cases[b])]
    if word not in BENCHMARKS and not named:
      raise ValueError(f'nothing is called {word!r}; --help lists the names')
    for name in [word] if word in BENCHMARKS else named:
      selected[name] = selected.get(name, ()) + (word,) * (word not in BENCHMARKS)
  return {name: selected[name] for name in BENCHMARKS if name in selected}


def listing() -> str:
  """Returns the names and what they measure."""
  names = [f'  {name:<16}{module(name).__doc__.splitlines()[0]}' for name in BENCHMARKS]
  cases = [f'  {case}' for name in BENCHMARKS for case in getattr(module(name), 'CASES', ())]
  heading = 'benchmarks; without a name the first three:'
  return '\n'.join([heading, *names, '', 'cases, also by a part of the name:', *cases])


def run(name: str, options: runner.Options) -> int:
  """Runs a benchmark on as many cores as it asks for; returns its exit status."""
  cores = getattr(module(name), 'CORES', 0)
  if PROCESSORS:  # Not on macOS.
    os.sched_setaffinity(0, PROCESSORS[-cores:])
  try:
    return module(name).main(options) or 0
  except (OSError, ValueError) as error:
    print(f'{name}: {error}', file=sys.stderr)
    return 2


def main(arguments: list[str] | None = None) -> int:
  """Runs the named benchmarks; returns the largest exit status."""
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks',
    description='Runs benchmarks; each writes its page to benchmarks/results/.',
    epilog=listing(),
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  add = parser.add_argument
  add('names', nargs='*', metavar='NAME', help='benchmark, or part of the name of a case')
  add('--repeats', type=int, default=3, help='runs of each side (default: 3)')
  add('--rounds', type=int, help='rounds or seeds, in place of a benchmark’s own number')
  add('--output', type=pathlib.Path, default=runner.HERE / 'results', help='folder of the results')
  args = parser.parse_args(arguments)
  try:
    selected = selection(args.names)
    if min(args.repeats, args.rounds or 1) < 1:
      raise ValueError('--repeats and --rounds must be at least 1')
  except ValueError as error:
    parser.error(str(error))
  statuses = []
  for name, words in selected.items():
    peer = getattr(module(name), 'PEER', None)
    if peer and subprocess.run(['make', '--no-print-directory', f'{peer}/installed']).returncode:
      return 2
    sizes = words, args.repeats, args.rounds
    statuses.append(run(name, runner.Options(*sizes, f'{peer}/bin/python', args.output)))
  return max(statuses)


if __name__ == '__main__':
  sys.exit(main())
