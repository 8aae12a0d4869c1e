"""Flags of a simulated population, its timers and the server's rounds, and files of them."""

import argparse
import dataclasses
import json
import math
from collections.abc import Iterable
from typing import Any

from fl_dpftrl.commands import flags
from fl_dpftrl.planning.simulation import availabilities, scenarios
from fl_dpftrl.support.files import durable, json_files
from fl_dpftrl.support.text import messages

_MOST_ROUNDS = 10**7
_FORMAT, _VERSION = 'fl_dpftrl scenario', 1
_TIMERS = ('timer_hours', 'timer_rounds')
# Flags that have a value without being given, by name.
_DEFAULTS = {'seed': 0, 'availability': 'nightly', 'dropout': scenarios.DROPOUT}

# Attributes that a scenario file may have, and that are no flags: of availability.Nightly first.
_NIGHTLY = tuple(field.name for field in dataclasses.fields(availabilities.Nightly))
_DEVICES = (
  *('check_ins_per_hour', 'rate_spread', 'report_minutes', 'speed_spread'),
  *('turnover_per_day', 'forgetting_per_day'),
)
_SERVER = ('minutes_between_rounds', 'pace_minutes', 'max_wait_days')
_NIGHT = availabilities.Nightly()
# The type of each value in a scenario file, by the flag.
_TYPES: dict[str, type] = {
  **dict.fromkeys(('population', 'report_goal', 'num_rounds', 'timer_rounds', 'seed'), int),
  'clients_per_round': int,
  'timer_hours': float,
  'dropout': float,
  **{name: type(getattr(_NIGHT, name)) for name in _NIGHTLY},
  **dict.fromkeys((*_DEVICES, *_SERVER), float),
  'availability': str,
}
_CALLED = {int: 'a whole number', float: 'a number', tuple: 'a list of numbers', str: 'text'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds all flags of a simulation; see the modules for the defaults."""
  add = parser.add_argument
  add(
    '--scenario',
    metavar='FILE.json',
    help='file of these flags, as simulate --output_scenario writes it, and of further properties'
    ' of the devices; a flag that is given takes the place of its value there',
  )
  add('--population', type=int, help='devices')
  add('--report_goal', type=int, help='number of reports that a round needs')
  flags.add(parser, 'num_rounds')
  timers = parser.add_mutually_exclusive_group()
  timers.add_argument(
    '--timer_hours',
    type=float,
    help='minimum simulated hours before a device participates again; use'
    ' instead of --timer_rounds',
  )
  timers.add_argument(
    '--timer_rounds',
    type=int,
    help='minimum rounds before a device participates again (default: 1, which is no timer)',
  )
  add('--seed', type=int, help='seed of all random draws (default: 0)')
  add(
    '--availability',
    metavar='nightly|always|FILE',
    help='when devices are available: mostly at night on their chargers'
    ' (default; the hours are properties of --scenario), always, or as in a Parquet table with the'
    ' columns device, start and end',
  )
  add(
    '--dropout',
    type=float,
    help=f'fraction of the chosen that never report (default: {scenarios.DROPOUT:g})',
  )
  add(
    '--clients_per_round',
    type=int,
    help='number of devices chosen per round (default: 130 %% of the report goal)',
  )


def completed(args: argparse.Namespace, *needed: str) -> argparse.Namespace:
  """Returns the flags with the values of --scenario and the defaults for those not given."""
  values = {} if args.scenario is None else _read(args.scenario)
  passed = {name: value for name, value in vars(args).items() if value is not None}
  replaced: set[str] = set()
  if any(name in passed for name in _TIMERS):  # They exclude each other.
    replaced.update(_TIMERS)
  if 'availability' in passed:
    replaced.update(_NIGHTLY)
  values = {name: value for name, value in values.items() if name not in replaced}
  for name in needed:
    if name not in passed and name not in values:
      raise ValueError(f'--{name} is needed, or --scenario')
  return argparse.Namespace(**{**vars(args), **_DEFAULTS, **values, **passed})


def write(path: str, args: argparse.Namespace) -> None:
  """Writes completed flags as a scenario file, in one durable step."""
  content = {'format': _FORMAT, 'version': _VERSION, **_subset(args, _TYPES)}
  durable.write_durably(path, (json.dumps(content, indent=2) + '\n').encode())


def _read(path: str) -> json_files.Object:
  """Returns the flags of a scenario file."""
  where = f'--scenario={path}'
  try:
    content = json_files.parse(json_files.read_bytes(path))
  except ValueError as e:
    raise ValueError(f'{where}: {e}') from e
  if not isinstance(content, dict) or content.pop('format', None) != _FORMAT:
    raise ValueError(f'{where} is no scenario file; simulate --output_scenario writes one')
  version = content.pop('version', None)
  if version != _VERSION:
    raise ValueError(f'{where}: version must be {_VERSION}, got {messages.quoted(version)}')
  for name, value in content.items():
    kind = _TYPES.get(name)
    if kind is None:
      raise ValueError(f'{where}: {messages.quoted(name)} is no property of a scenario')
    if not _fits(value, kind):
      raise ValueError(f'{where}: {name} must be {_CALLED[kind]}, got {messages.quoted(value)}')
  if all(name in content for name in _TIMERS):
    raise ValueError(f'{where}: timer_hours and timer_rounds exclude each other')
  return {name: tuple(v) if isinstance(v, list) else v for name, v in content.items()}


def _fits(value: Any, kind: type) -> bool:
  if kind is tuple:
    return isinstance(value, list) and all(_fits(number, float) for number in value)
  if kind is float:
    return type(value) in (int, float) and math.isfinite(value)
  return type(value) is kind


def scenario(args: argparse.Namespace) -> scenarios.Scenario:
  """Returns the scenario that completed flags describe."""
  if not 1 <= args.num_rounds <= _MOST_ROUNDS:
    raise ValueError(
      f'--num_rounds={args.num_rounds} must lie in 1 to {_MOST_ROUNDS}, as each round is simulated'
    )
  if args.population < 1:
    raise ValueError(f'--population must be at least 1, got {args.population}')
  nightly, available = _subset(args, _NIGHTLY), args.availability
  if available == 'nightly':
    available = availabilities.Nightly(**nightly)
  else:
    for name in nightly:
      raise ValueError(f'--scenario: {name} is for availability nightly, got {available}')
  return scenarios.Scenario(
    population=args.population,
    report_goal=args.report_goal,
    timer_hours=args.timer_hours,
    timer_rounds=args.timer_rounds,
    seed=args.seed,
    availability=available,
    clients_per_round=args.clients_per_round,
    dropout=args.dropout,
    devices=_subset(args, _DEVICES),
    rounds=_subset(args, _SERVER),
  )


def _subset(args: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
  values = vars(args)
  return {name: values[name] for name in names if values.get(name) is not None}
