"""The `simulate` command: participation log of a simulated population."""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator
from typing import Any

from fl_dpftrl.commands import flags, output, population_flags
from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.planning.simulation import attendances, partition, scenarios
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import json_files

_NOT_DEVICES = 'which is for examples of centralized training'
_NO_BINS = 'as rounds that close at a goal, and timers, let others decide who takes part'

EXAMPLE = (
  'fl-dpftrl simulate --population=300000 --report_goal=650 --num_rounds=2000'
  ' --timer_hours=72 --seed=1 --output=participation.parquet'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  population_flags.add_arguments(parser)
  flags.add_sampling(
    parser,
    'instead of availability: how batches of examples are sampled, or bins for devices of which'
    ' each takes part in all rounds of its secret bin',
  )
  flags.add_loss_budget(parser)
  flags.add(parser, 'min_sep', 'max_participations', 'strategy')
  add('--output', metavar='FILE.parquet', help='participation log to write')
  add(
    '--output_scenario',
    metavar='FILE.json',
    help='file to write with the flags of the population, for --scenario of simulate and plan',
  )


def run(args: argparse.Namespace) -> json_files.Object:
  """Simulates the rounds and writes the log."""
  output.check_file('output', args.output)
  output.check_file('output_scenario', args.output_scenario, '.json')
  args, began = _completed(args), time.monotonic()
  scheme, details = _scheme(args), json_files.Object()
  if scheme is not None:
    num_devices = args.population if scheme.unit == 'device' else None
    attendance = _record(args, partition.rounds(scheme, args.seed, num_devices=num_devices))
    details['sampling'] = scheme.kind
    details |= {k: v for k, v in vars(scheme).items() if k in ('num_parts', 'num_bins')}
  else:
    simulation = _scenario(args).simulation()
    details |= {'dropped': 0, 'late': 0}

    def rounds() -> Iterator[schemas.Cohort]:
      for cohort, dropped, late, ended in simulation.lives():
        details['dropped'] += dropped
        details['late'] += late
        if args.max_participations is not None or args.loss_budget is not None:
          details['devices_without_budget'] = ended
        yield cohort

    attendance = _record(args, rounds())
    details['timer'] = attendance.timer(simulation.timer)
  return {
    **attendance.to_json(),
    **details,
    'seed': args.seed,
    'wall_seconds': time.monotonic() - began,
    'output': args.output,
  }


def finish(args: argparse.Namespace, result: json_files.Object) -> None:
  """Writes the scenario file."""
  if args.output_scenario is not None:
    population_flags.write(args.output_scenario, _completed(args))


def _scenario(args: argparse.Namespace) -> scenarios.Scenario:
  """Returns the scenario of the flags, with the meter or the last round of a life."""
  budget = flags.loss_budget(args, ('sampling',))
  for name in ('min_sep', 'strategy'):
    if budget is None and getattr(args, name) is not None:
      raise ValueError(f'--{name}={getattr(args, name)} needs --loss_budget')
  scenario = population_flags.scenario(args)
  if budget is None:
    return dataclasses.replace(scenario, max_participations=args.max_participations)
  if args.output_scenario is not None:
    raise ValueError('--output_scenario has no loss budget; drop one of both flags')
  if args.strategy is None:
    raise ValueError('--loss_budget needs --strategy, by which devices meter their losses')
  return dataclasses.replace(scenario, loss_budget=budget, strategy=args.strategy)


def _completed(args: argparse.Namespace) -> argparse.Namespace:
  needed: tuple[str, ...] = ('population', 'report_goal', 'num_rounds')
  if args.sampling:
    needed = ('population', 'num_rounds') if args.sampling == 'bins' else ('num_rounds',)
  return population_flags.completed(args, *needed)


def _scheme(args: argparse.Namespace) -> Any:
  """Returns the scheme of batches or bins, or None without --sampling."""
  scheme = flags.sampling(args, None, args.num_rounds)
  if scheme is None:
    return None
  is_bins = scheme.unit == 'device'
  names = 'scenario output_scenario population report_goal timer_hours timer_rounds'
  for name in names.split():
    if name == 'population' and is_bins:
      continue
    value = getattr(args, name)
    if value is not None:
      raise ValueError(
        f'--{name}={value} conflicts with --sampling={args.sampling},'
        f' {_NO_BINS if is_bins else _NOT_DEVICES}: drop it'
      )
  return scheme


def _record(args: argparse.Namespace, rounds: Iterator[schemas.Cohort]) -> attendances.Attendance:
  """Counts the rounds, and writes them with the flags that determine them if there is --output."""
  excluded = ('output', 'json', 'scenario', 'output_scenario')
  parameters = {k: v for k, v in vars(args).items() if v is not None and k not in excluded}
  return attendances.record(
    rounds,
    num_rounds=args.num_rounds,
    output=args.output,
    metadata={attendances.METADATA_KEY: json.dumps(parameters, sort_keys=True)},
    progress=output.Progress('simulate').say,
  )


def show(result: json_files.Object) -> str:
  """Formats the figures; a timer in hours with its effect in rounds."""
  timer = result.get('timer')
  if timer is None:
    return tables.table(result)
  if 'loss_budget' in timer:
    words = f'loss budget {timer["loss_budget"]:.6g}, at most {timer["life"]} rounds a device ever'
  elif 'rounds' in timer:
    words = f'{timer["rounds"]} rounds'
  elif timer['in_rounds'] is None:
    words = f'{timer["hours"]:g} hours, longer than the run'
  else:
    span = timer['in_rounds']
    words = f'{timer["hours"]:g} hours: {span["fewest"]} to {span["most"]} rounds'
    words += f', {span["usual"]:g} in the median; the fewest from round {span["first_round"]} on'
  return tables.table({**result, 'timer': words})
