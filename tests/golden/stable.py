"""What is stable, a line each: names with signatures and attributes, flags, statuses, JSON fields.

`python -m tests.golden.stable` records it; docs/stability.md says what may change, and when.
"""

import argparse
import inspect
import json
import pathlib
import pydoc
import re
from collections.abc import Iterator
from typing import Any

from fl_dpftrl.commands import dispatch
from tests import pages
from tests.golden import commands

PATH = pathlib.Path(__file__).with_name('stable.txt')
_TRIAL = '## On trial'
_NOT_OWN = {*dir(object), *dir(Exception), *dir(tuple)}


def names() -> list[str]:
  """Returns the names of the list in docs/api.md that are not on trial."""
  listed, found, _ = (pages.DOCS / 'api.md').read_text().partition(_TRIAL)
  assert found, 'docs/api.md has no part for what is on trial'
  return re.findall(r'^::: (\S+)$', listed, re.M)


def surface(name: str) -> set[str]:
  """Returns the lines of a name: its signature, and those of its methods and attributes."""
  named = pydoc.locate(name)
  lines = {f'{name}{_signature(named)}'}
  if inspect.isclass(named):
    lines |= {f'{name}.{attribute}' for attribute in _stated_attributes(named)}
    for attribute in dir(named):
      if not attribute.startswith('_') and attribute not in _NOT_OWN:
        member = inspect.getattr_static(named, attribute)
        lines.add(f'{name}.{attribute}{_signature(getattr(member, "__func__", member))}')
  return lines


def of_commands() -> set[str]:
  """Returns the lines of all flags, and of statuses and JSON fields that recorded results have."""
  lines = set()
  for command in dispatch.COMMANDS:
    parser = argparse.ArgumentParser(add_help=False)
    dispatch.find(command).add_arguments(parser)
    for action in parser._actions:
      flag = ', '.join(action.option_strings) or action.dest
      choices = f' one of {", ".join(map(str, action.choices))}' if action.choices else ''
      default = '' if action.default is None else f' ({_shown(action.default)})'
      is_needed = action.required and action.nargs not in ('*', '?')  # As Python 3.14 has it.
      required = ' required' if is_needed else ''
      lines.add(f'fl-dpftrl {command} {flag}{choices}{default}{required}')
  for line, result in json.loads(commands.PATH.read_text()).items():
    command = f'fl-dpftrl {line.split()[0]}'
    if result['status'] != 2 or 'COMMAND must' not in result['stderr']:
      lines.add(f'{command}: status {result["status"]}')
    lines |= {f'{command}: {field}' for field in _fields(result.get('json', {}))}
  return lines


def _stated_attributes(named: type) -> Iterator[str]:
  for kind in named.__mro__:
    _, _, section = inspect.cleandoc(kind.__doc__ or '').partition('Attributes:\n')
    for listed in re.findall(r'^  (\w+(?:, \w+)*): ', section.partition('\n\n')[0], re.M):
      yield from listed.split(', ')


def _signature(named: Any) -> str:
  """Returns the arguments with their defaults, without types; '' for what users do not call."""
  is_error = inspect.isclass(named) and issubclass(named, Exception)
  if is_error or not callable(named):
    return ''
  parameters = inspect.signature(named).parameters.values()
  plain = [
    each.replace(
      annotation=inspect.Parameter.empty,
      default=each.default if each.default is each.empty else _Shown(each.default),
    )
    for each in parameters
  ]
  return str(inspect.Signature(plain))


class _Shown:
  """A default that is shown in the same way each time."""

  def __init__(self, value: Any):
    self.value = value

  def __repr__(self) -> str:
    return _shown(self.value)


def _shown(value: Any) -> str:
  is_plain = value is None or isinstance(value, (bool, int, float, str, tuple, list, dict))
  return repr(value) if is_plain else type(value).__name__


def _fields(document: Any, where: str = '') -> Iterator[str]:
  if isinstance(document, list):
    for each in document:
      yield from _fields(each, f'{where}[]')
  elif isinstance(document, dict):
    for key, value in document.items():
      yield f'{where}.{key}'.lstrip('.')
      yield from _fields(value, f'{where}.{key}')


def main() -> None:
  """Records what is stable now."""
  lines = of_commands().union(*map(surface, names()))
  PATH.write_text('\n'.join(sorted(lines)) + '\n')


if __name__ == '__main__':
  main()
