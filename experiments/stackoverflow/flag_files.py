"""Files of flags, put where --flagfile names them, within limits.

The parser of flags reads such files too, whatever their size, as often as they
name each other, and only where they are text in the encoding of the terminal.
"""

import os
from collections.abc import Sequence

from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

MOST_FILES = 100
"""Files that are read in all, each as often as it is named."""

_NAMES = ('--flagfile', '-flagfile')
_COMMENTS = ('#', '//')
# The parser compares an unknown name with all others, deep in its stack.
_LONGEST_NAME = 100


ALTERNATIVES = (
  ('mechanism', 'strategy'),
  ('noise_multiplier', 'epsilon'),
  ('timer_rounds', 'timer_hours'),
)
"""Groups of flags that exclude each other."""


def expand(arguments: Sequence[str]) -> list[str]:
  """Returns command-line arguments with the flags of their files in place.

  In a file, each line is a flag; lines that are empty or start with # or // are
  left out. A file may name others. A flag replaces its `ALTERNATIVES` in the
  files: with --strategy on the command line, --mechanism of a file is left out.

  Args:
    arguments: of a command line, without its first.

  Raises:
    OSError: if a file cannot be read.
    ValueError: for a file that is too large, no UTF-8 or names itself, for more than MOST_FILES,
      for --flagfile without a name, and for a flag whose name has more than 100 characters.
  """
  return _without_replaced(_Expansion().of(list(arguments), ()))


def _without_replaced(arguments: list[tuple[str, int]]) -> list[str]:
  """Leaves out flags of a file whose alternatives are given further outside."""
  group_of = {name: group for group in ALTERNATIVES for name in group}
  named = [(_name(argument), depth) for argument, depth in arguments]
  least: dict[tuple[str, ...], int] = {}
  for name, depth in named:
    if name in group_of:
      least[group_of[name]] = min(depth, least.get(group_of[name], depth))
  outermost = {name for name, depth in named if depth == least.get(group_of.get(name, ()))}
  kept, rest = [], iter(arguments)
  for argument, _ in rest:
    if _name(argument) not in group_of or _name(argument) in outermost:
      kept.append(argument)
    elif '=' not in argument:
      next(rest, None)  # Its value.
  return kept


def _name(argument: str) -> str:
  return argument.partition('=')[0].lstrip('-') if argument.startswith('-') else ''


class _Expansion:
  """Counts the files of one command line."""

  def __init__(self):
    self._num_files = 0

  def of(self, arguments: list[str], within: tuple[str, ...]) -> list[tuple[str, int]]:
    """The arguments with their depth in files."""
    expanded, rest, depth = [], iter(arguments), len(within)
    for argument in rest:
      if argument == '--':
        return [*expanded, *((a, depth) for a in (argument, *rest))]
      flag, equals, name = argument.partition('=')
      if flag.startswith('-') and len(flag) > _LONGEST_NAME:
        raise ValueError(f'{messages.quoted(flag)} is not the name of a flag')
      if flag not in _NAMES:
        expanded.append((argument, depth))
        continue
      name = name if equals else next(rest, '')
      if not name:
        raise ValueError('--flagfile is without the name of a file')
      expanded += self.of(*self._lines(os.path.expanduser(name), within))
    return expanded

  def _lines(self, name: str, within: tuple[str, ...]) -> tuple[list[str], tuple[str, ...]]:
    """The flags of a file, and the files that lead to them."""
    flag = f'--flagfile={messages.quoted(name)}'
    path = os.path.realpath(name)
    if path in within:
      raise ValueError(f'{flag} names itself, or a file that names it does')
    self._num_files += 1
    if self._num_files > MOST_FILES:
      raise ValueError(f'{flag}: files of flags name each other more than {MOST_FILES} times')
    try:
      text = json_files.read_bytes(name).decode()
    except ValueError as error:
      raise ValueError(f'{flag}: {error}') from None
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_COMMENTS)]
    return kept, (*within, path)
