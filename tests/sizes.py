"""Sizes of the parts of the project, and their ceilings.

`python -m tests.sizes` prints the table; `--lower` also lowers each ceiling to the size of today.
Ceilings are of whole packages, of the longest file and of the names at the top.
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
# A variable with such a part in its name does not say what it holds.
_COINED = re.compile(
  '(?:^|_)(own|found|made|kept|said|told|stated|given|known|left|each|one|before|after)(?:_|$)'
)
PACKAGES = ('fl_dpftrl', 'tff_inprocess', 'experiments', 'examples', 'benchmarks', 'tests')


def measure() -> dict[str, int]:
  """Returns the size of each part: lines of Python, counts, and words of the docs."""
  return {
    **{
      f'lines of {package}': sum(map(_num_lines, (ROOT / package).rglob('*.py')))
      for package in PACKAGES
    },
    'longest file of fl_dpftrl': max(map(_num_lines, (ROOT / 'fl_dpftrl').rglob('*.py'))),
    'names at the top of fl_dpftrl': len(_top_names()),
    **_names(),
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


def _num_lines(path: pathlib.Path) -> int:
  return len(path.read_text('utf-8').splitlines())


def _top_names() -> set[str]:
  """Returns the folders and modules at the top of the package."""
  paths = (p for p in (ROOT / 'fl_dpftrl').iterdir() if p.suffix in ('', '.py'))
  return {p.stem for p in paths if not p.name.startswith('__')} - {'version'}


def _names() -> dict[str, int]:
  """Returns how many record types there are, and names that language.md would have otherwise."""
  counts = dict.fromkeys(('record types', 'coined names', 'aliases in _lib', 'names in of_'), 0)
  classes: dict[str, int] = collections.Counter()
  for path in [p for package in PACKAGES[:2] for p in (ROOT / package).rglob('*.py')]:
    nodes = list(ast.walk(ast.parse(path.read_text('utf-8'))))
    passing = {n for c in nodes if isinstance(c, ast.comprehension) for n in ast.walk(c.target)}
    records = [n for n in nodes if isinstance(n, ast.ClassDef)]
    for parts in [map(ast.unparse, c.bases + c.decorator_list) for c in records]:
      counts['record types'] += bool(re.search(r'\b(NamedTuple|dataclass)\b', ' '.join(parts)))
    if path.is_relative_to(ROOT / 'fl_dpftrl'):
      stored = [n for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
      names = [n.arg for n in nodes if isinstance(n, ast.arg)]
      names += [n.id for n in stored if n not in passing]
      counts['coined names'] += sum(map(bool, map(_COINED.search, names)))
      names += [n.name for n in nodes if isinstance(n, ast.FunctionDef)]
      counts['names in of_'] += sum(name.startswith('of_') for name in names)
      aliases = [n.asname or '' for n in nodes if isinstance(n, ast.alias)]
      counts['aliases in _lib'] += sum(name.endswith('_lib') for name in aliases)
      classes.update(c.name for c in records)
  return {**counts, 'class names used twice': sum(n > 1 for n in classes.values())}


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
    names |= set(re.findall(r'^  (\w+): .*= (?:configuration\.)?flag\(', text, re.M))
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
