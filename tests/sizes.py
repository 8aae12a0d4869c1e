"""Sizes of the parts of the project, and their ceilings.

`python -m tests.sizes` prints the table; `--lower` also lowers each ceiling to the size of today. A
ceiling never rises: who adds a feature takes something away.
"""

import argparse
import ast
import collections
import importlib
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
CEILINGS = pathlib.Path(__file__).with_name('sizes.json')
PACKAGES = ('fl_dpftrl', 'tff_inprocess', 'experiments', 'examples', 'benchmarks', 'tests')


def measure() -> dict[str, int]:
  """Returns the size of each part: lines of Python, counts, and words of the docs."""
  return {
    **{f'lines of {package}': sum(_rooms(package).values()) for package in PACKAGES},
    **{f'lines of {room}/': lines for room, lines in sorted(_rooms('fl_dpftrl').items())},
    'record types': _num_record_types(),
    'public names': len(importlib.import_module('fl_dpftrl').__all__),
    'flags': len(_flags()),
    'words of docs': sum(len(p.read_text('utf-8').split()) for p in (ROOT / 'docs').rglob('*.md')),
  }


def ceilings() -> dict[str, int]:
  """Returns the ceilings."""
  return json.loads(CEILINGS.read_text('utf-8'))


def table(sizes: dict[str, int], limits: dict[str, int]) -> str:
  """Returns a line for each part: its size and its ceiling."""
  width = max(map(len, sizes))
  rows = [f'{name:<{width}} {n:>7,} of {limits.get(name, 0):>7,}' for name, n in sizes.items() if n]
  return '\n'.join(rows)


def _rooms(package: str) -> dict[str, int]:
  """Returns the lines of each room of a package; its flat files are a room too."""
  lines: dict[str, int] = collections.Counter()
  for path in (ROOT / package).rglob('*.py'):
    inside = path.relative_to(ROOT).parts[:-1]
    lines['/'.join(inside[:2])] += len(path.read_text('utf-8').splitlines())
  return lines


def _num_record_types() -> int:
  """Returns the number of dataclasses and named tuples of the packages."""
  found = 0
  for package in ('fl_dpftrl', 'tff_inprocess'):
    for path in (ROOT / package).rglob('*.py'):
      for node in ast.walk(ast.parse(path.read_text('utf-8'))):
        if isinstance(node, ast.ClassDef):
          parts = [ast.unparse(part) for part in node.bases + node.decorator_list]
          found += any(re.search(r'\b(NamedTuple|dataclass)\b', part) for part in parts)
  return found


def _flags() -> set[str]:
  """Returns the names of the flags of all commands and of the training script."""
  dispatch = importlib.import_module('fl_dpftrl.commands.dispatch')
  names = set()
  for command in dispatch.COMMANDS:
    parser = argparse.ArgumentParser(add_help=False)
    dispatch.find(command).add_arguments(parser)
    names |= {name.lstrip('-') for action in parser._actions for name in action.option_strings}
  for path in (ROOT / 'experiments' / 'stackoverflow').rglob('*.py'):
    text = path.read_text('utf-8')
    names |= set(re.findall(r"flags\.DEFINE_\w+\(\s*'(\w+)'", text))
    names |= set(re.findall(r'^  (\w+): .*= _flag\(', text, re.M))
  return names


def main() -> None:
  """Prints the table, and lowers the ceilings if it is asked to."""
  sizes, limits = measure(), ceilings()
  if sys.argv[1:] == ['--lower']:
    limits = {name: min(n, limits.get(name, n)) for name, n in sizes.items() if n}
    CEILINGS.write_text(json.dumps(limits, indent=2) + '\n', 'utf-8')
  print(table(sizes, limits))


if __name__ == '__main__':
  main()
