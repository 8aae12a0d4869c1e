"""Runs benchmarks by name: python -m benchmarks NAME… (--help lists the names)."""

import argparse
import os
import subprocess
import sys

from benchmarks.optimize import cases as optimize
from benchmarks.plan import cases as plan
from benchmarks.replay import cases as replay
from benchmarks.training import cases as training

PEER_PYTHON = '.venv-bench/bin/python'
PFL_PYTHON = '.venv-pfl/bin/python'
LARGE = 'replay-1B'
# What each benchmark measures; those by default are a few minutes each.
BENCHMARKS = {
  'optimize': 'strategies beside jax-privacy: a group, or a part of a name',
  'replay': 'replay of logs; replay-1B is the log of 1e9 rows, 8 minutes',
  'training': 'federated and central training beside pfl-research',
  'rounds': 'rows of noise and rounds of training, half an hour',
  'population': 'simulated populations, 6 minutes',
  'plan': 'plans against hindsight, half an hour',
  'guard': 'the guard and its log, round by round, 3 minutes',
  'loop': 'the aggregator in NumPy beside bare NumPy, 5 minutes',
  'central': 'central training beside jax-privacy, 12 minutes',
  'attack': 'what the lowest bits of releases tell of one device, 6 minutes',
  'replay-counted': 'the log of 47 million rows counted by a statement in DuckDB, 2 minutes',
}
DEFAULT = ('optimize', 'replay', 'training')


def home(name: str) -> str:
  """Returns the benchmark that a name belongs to."""
  return max(filter(name.startswith, BENCHMARKS), key=len, default='optimize')


def commands(names: list[str], repeats: int) -> list[list[str]]:
  """Returns the command of each benchmark that the names select, in order.

  Raises:
    ValueError: if a name selects no case.
  """
  found = []
  for benchmark in BENCHMARKS:
    words = [name for name in names if home(name) == benchmark]
    if not words and (names or benchmark not in DEFAULT):
      continue
    own = [word for word in words if word != benchmark]
    module = f'benchmarks.{benchmark}.run'.replace('-counted.run', '.counted')
    several = _flags(benchmark, own, benchmark in words, repeats)
    found += [[sys.executable, '-m', module, *flags] for flags in several]
  return found


def _flags(benchmark: str, words: list[str], whole: bool, repeats: int) -> list[list[str]]:
  """Returns the flags of each run of a benchmark."""
  only, times = f'--only={",".join(words)}', f'--repeats={repeats}'
  if benchmark == 'optimize':
    optimize.select(words)
    return [[only, times, f'--peer_python={PEER_PYTHON}']]
  if benchmark == 'replay':
    usual = [word for word in words if word != LARGE]
    replay.select(usual, large=False)
    runs = [[f'--only={",".join(usual)}', times]] if usual or whole or not words else []
    return runs + ([[times, '--large']] if LARGE in words else [])
  if benchmark == 'training':
    training.select(words)
    return [[only, times, f'--peer_python={PFL_PYTHON}']]
  if benchmark == 'plan':
    plan.select(words)
    return [[only]]
  if benchmark in ('guard', 'loop', 'attack', 'replay-counted') and not words:
    return [[]]
  if benchmark == 'central' and not words:
    return [[times, f'--peer_python={PEER_PYTHON}']]
  if words:
    raise ValueError(f'no case is called {words[0]!r}')
  if benchmark == 'rounds':
    return [[f'--peer_python={PEER_PYTHON}']]
  return [[times]]


def listing() -> str:
  """Returns the names and what they measure."""
  lines = [f'  {name:<16}{what}' for name, what in BENCHMARKS.items()]
  groups = sorted({case.group for case in optimize.CASES})
  named = [case.name for room in (optimize, replay, training, plan) for case in room.CASES]
  return '\n'.join(
    [
      'benchmarks; without a name the first three:',
      *lines,
      '',
      f'groups of strategies: {", ".join(groups)}',
      '',
      'cases, also by a part of the name:',
      *(f'  {name}' for name in named),
    ]
  )


def main(arguments: list[str] | None = None) -> int:
  parser = argparse.ArgumentParser(
    prog='python -m benchmarks',
    description='Runs benchmarks; each writes its page to benchmarks/results/.',
    epilog=listing(),
    formatter_class=argparse.RawDescriptionHelpFormatter,
  )
  parser.add_argument('names', nargs='*', metavar='NAME', help='benchmark, group or case')
  parser.add_argument('--repeats', type=int, default=3, help='runs of each side (default: 3)')
  args = parser.parse_args(arguments)
  try:
    found = commands(args.names, args.repeats)
  except ValueError as e:
    parser.error(str(e))
  for python in (PEER_PYTHON, PFL_PYTHON):
    if any(f'--peer_python={python}' in command for command in found):
      installed = f'{python.split("/")[0]}/installed'
      if subprocess.run(['make', '--no-print-directory', installed]).returncode:
        return 2
  environment = {**os.environ, 'OPENBLAS_NUM_THREADS': '1'}
  return max(subprocess.run(command, env=environment).returncode for command in found)


if __name__ == '__main__':
  sys.exit(main())
