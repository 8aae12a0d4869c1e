"""The command that reproduces the figures of a statement."""

import os
import pathlib
import shlex
import sys

from fl_dpftrl.participation import registry
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.prove.replaying import statements


def command_of_folder(folder: pathlib.Path, delta: float, by_unit: bool = False) -> str:
  """Returns the command that replays a run's folder, by this Python's program if it has one."""
  program = pathlib.Path(sys.executable).with_name('fl-dpftrl')
  shown = str(program) if folder.is_absolute() else os.path.relpath(program)
  name = shown if program.exists() else program.name
  units = ['--units=UNITS'] if by_unit else []
  return shlex.join([name, 'replay', str(folder), *units, f'--delta={delta}'])


def command(statement: statements.Statement) -> str:
  """Returns the command that gives published figures again; names in capitals stand for paths."""
  words = ['fl-dpftrl', 'replay']
  first = statement.runs[0]
  planned = statement.planned
  if planned and planned.is_of_population:
    words.append('POPULATION')
  elif statement.several:
    words += [f'RUN{i}' for i in range(1, len(statement.runs) + 1)]
    sites = 'local' if statement.local_ids else 'disjoint'
    words += [f'--sites={sites}'] if statement.disjoint else []
  else:
    words += [
      '--from_counts=COUNTS' if first.from_counts else '--log=LOG',
      '--strategy=STRATEGY',
      f'--noise_multiplier={first.claim.noise_multiplier}',
    ]
    if statements.ASSUMED_ROUNDS not in statement.warnings:
      words.append(f'--num_rounds={first.num_rounds}')
    if statements.COLUMNS in first.layout.names.values():
      words.append(f'--columns={statements.COLUMNS}')
    if first.layout.first_round:
      words.append(f'--first_round={first.layout.first_round}')
    if first.layout.own_marks is not None:
      words.append(f'--missing={first.layout.own_marks}')
    if statement.planned:
      words += _flags(statement.planned.participation, first.schema_in_log)
  words += ['--units=UNITS'] if first.units else []
  words += [f'--delta={delta}' for delta in statement.deltas]
  words.append(f'--adjacency={statement.adjacency}')
  words.append(f'--group_size={statement.group_size}')
  return shlex.join(words)


def _flags(participation: Participation, is_recorded: bool) -> list[str]:
  """Returns the flags of `replay` that state a participation, unless a log records it."""
  attributes = registry.to_json(participation)
  kind = attributes.pop('kind')
  if participation.is_drawn:
    del attributes['num_rounds']
    return [f'--sampling={kind}', *(f'--{name}={value}' for name, value in attributes.items())]
  if is_recorded or not isinstance(participation, separations.MinSep):
    return []
  return [f'--declared_{name}={value}' for name, value in attributes.items()]
