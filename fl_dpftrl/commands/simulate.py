"""The `simulate` command: participation log of a simulated population."""

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator

from fl_dpftrl import tables
from fl_dpftrl.commands import flags, output, population_flags
from fl_dpftrl.files import json_files
from fl_dpftrl.participation import schemas
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import partition, recording, server

HELP = 'simulates the participation of a population and writes the log'

EXAMPLE = (
  'fl-dpftrl simulate --population=300000 --report_goal=650 --num_rounds=2000'
  ' --timer_hours=72 --seed=1 --output=participation.parquet'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  population_flags.add_arguments(parser)
  flags.add_sampling(
    parser, 'for centralized training instead of devices: sampling scheme of the batches'
  )
  add('--output', metavar='FILE.parquet', help='participation log to write')
  add(
    '--output_scenario',
    metavar='FILE.json',
    help='file to write with the flags of the population, for --scenario of simulate and plan',
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """Simulated rounds.

  Attributes:
    args: parsed flags.
    attendance: totals of the cohorts.
    details: further JSON fields: those of devices, or of sampled batches.
    wall_seconds: seconds that the simulation took.
    timer: timer of the devices; None for batches.
  """

  args: argparse.Namespace
  attendance: attendance_lib.Attendance
  details: json_files.Object
  wall_seconds: float
  timer: server.Timer | None = None

  def to_json(self) -> json_files.Object:
    """Returns the totals, what is known of devices or batches, and the output."""
    return {
      **self.attendance.to_json(),
      **self.details,
      'seed': self.args.seed,
      'wall_seconds': self.wall_seconds,
      'output': self.args.output,
    }


def run(args: argparse.Namespace) -> Result:
  """Simulates the rounds and writes the log."""
  output.check_file('output', args.output)
  output.check_file('output_scenario', args.output_scenario, '.json')
  needed = ('num_rounds',) if args.sampling else ('population', 'report_goal', 'num_rounds')
  args = population_flags.completed(args, *needed)
  batches = _partition(args)
  began = time.monotonic()
  if batches is not None:
    attendance = _record(args, batches.rounds(), {})
    return Result(
      args=args,
      attendance=attendance,
      details={'sampling': args.sampling, 'num_parts': batches.scheme.num_parts},
      wall_seconds=time.monotonic() - began,
    )
  simulation = population_flags.scenario(args).simulation()
  lost = {'dropped': 0, 'late': 0}

  def rounds() -> Iterator[schemas.Cohort]:
    for cohort, turnout in simulation.turnouts():
      lost['dropped'] += turnout.dropped
      lost['late'] += turnout.late
      yield cohort

  attendance = _record(args, rounds(), {})
  timer = _timer(simulation.timer, attendance)
  return Result(
    args=args,
    attendance=attendance,
    details={**lost, 'timer': timer},
    wall_seconds=time.monotonic() - began,
    timer=simulation.timer,
  )


def finish(args: argparse.Namespace, result: Result) -> None:
  """Writes the scenario file."""
  if args.output_scenario is not None:
    population_flags.write(args.output_scenario, result.args)


def _partition(args: argparse.Namespace) -> partition.Partition | None:
  """Returns the sampler of batches, or None without --sampling."""
  scheme = flags.sampling(args, None, args.num_rounds)
  if scheme is None:
    return None
  refused = ('population', 'report_goal', 'timer_hours', 'timer_rounds')
  for name in ('scenario', 'output_scenario', *refused):
    value = getattr(args, name)
    if value is not None:
      raise ValueError(
        f'--{name}={value} is for devices and conflicts with'
        f' --sampling={args.sampling}, which is for centralized training'
      )
  return partition.Partition(scheme=scheme, seed=args.seed)


def _record(
  args: argparse.Namespace, rounds: Iterator[schemas.Cohort], metadata: dict[str, str]
) -> attendance_lib.Attendance:
  """Counts the rounds, and writes them if --output is given."""
  return recording.record(
    rounds,
    num_rounds=args.num_rounds,
    output=args.output,
    metadata={recording.METADATA_KEY: json.dumps(_flags(args), sort_keys=True), **metadata},
    progress=output.Progress('simulate').say,
  )


def _timer(kind: server.Timer, attendance: attendance_lib.Attendance) -> json_files.Object:
  """Returns the timer and, for a timer in hours, its effect in rounds."""
  if isinstance(kind, server.RoundTimer):
    return {'rounds': kind.rounds}
  timed = attendance.timed(kind.seconds)
  return {'hours': kind.hours, 'in_rounds': timed and timed._asdict()}


def _flags(args: argparse.Namespace) -> json_files.Object:
  """Returns the flags that determine the log."""
  left_out = ('output', 'json', 'scenario', 'output_scenario')
  return {
    name: value for name, value in vars(args).items() if value is not None and name not in left_out
  }


def show(result: Result) -> str:
  """Formats the figures and explains how a timer in hours led to the min-sep."""
  figures = result.to_json()
  if result.timer is None:
    return tables.table(figures)
  del figures['timer']
  return f'{tables.table(figures)}\n\n{attendance_lib.explain(result.timer, result.attendance)}'
