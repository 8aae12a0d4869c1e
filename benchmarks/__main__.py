"""Runs benchmarks by name: python -m benchmarks NAME… (--help lists the names)."""

import argparse
import importlib
import os
import pathlib
import subprocess
import sys

from benchmarks import runner

# What each benchmark measures; the first three are run by default.
BENCHMARKS = {
  'optimize': 'strategies beside jax-privacy',
  'replay': 'replay of logs; replay-1B is the log of 1e9 rows, 8 minutes',
  'training': 'federated and central training beside pfl-research',
  'rounds': 'rows of noise and rounds of training, half an hour',
  'population': 'simulated populations, 6 minutes',
  'plan': 'plans against hindsight, half an hour',
  'guard': 'the guard and its log, round by round, 3 minutes',
  'loop': 'the aggregator in NumPy beside bare NumPy, 5 minutes',
  'central': 'central training beside jax-privacy, 12 minutes',
  'attack': 'what the lowest bits of releases tell of one device, 6 minutes',
  'replay-counted': 'a log counted by a statement in DuckDB, 2 minutes',
}
DEFAULT = ('optimize', 'replay', 'training')


def module(name: str):
  """Returns the module of a benchmark."""
  return importlib.import_module(f'benchmarks.{name.replace("-", "_")}')


def selection(words: list[str]) -> dict[str, tuple[str, ...]]:
  """Returns the benchmarks that words select, each with the words that select its cases.

  Raises:
    ValueError: if a word selects nothing.
  """
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
  names = [f'  {name:<16}{what}' for name, what in BENCHMARKS.items()]
  cases = [f'  {case}' for name in BENCHMARKS for case in getattr(module(name), 'CASES', ())]
  lines = ['benchmarks; without a name the first three:', *names]
  return '\n'.join([*lines, '', 'cases, also by a part of the name:', *cases])


def run(name: str, options: runner.Options) -> int:
  """Runs a benchmark on as many cores as it asks for; returns its exit status."""
  cores = getattr(module(name), 'CORES', None)
  affinity = os.sched_getaffinity(0) if cores and hasattr(os, 'sched_setaffinity') else None
  if affinity:
    os.sched_setaffinity(0, sorted(affinity)[-cores:])
  try:
    return module(name).main(options) or 0
  except (OSError, ValueError) as error:
    print(f'{name}: {error}', file=sys.stderr)
    return 2
  finally:
    if affinity:
      os.sched_setaffinity(0, affinity)


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
    python = f'{peer}/bin/python' if peer else ''
    options = runner.Options(words, args.repeats, args.rounds, python, args.output)
    statuses.append(run(name, options))
  return max(statuses)


if __name__ == '__main__':
  sys.exit(main())
