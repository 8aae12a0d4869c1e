"""A population of devices, simulated, into a participation log."""

import argparse
import json
import os
import pathlib
import shlex
import time
from typing import Any

from fl_dpftrl import files
from fl_dpftrl.commands import flags
from fl_dpftrl.commands import population_flags
from fl_dpftrl.commands import progress
from fl_dpftrl.logs import schema
from fl_dpftrl.logs import streamed
from fl_dpftrl.simulation import attendance as attendance_lib
from fl_dpftrl.simulation import cohorts
from fl_dpftrl.simulation import report
from fl_dpftrl.simulation import timer

HELP = 'simulates who takes part in which round, and writes the log'

EXAMPLE = (
    'fl-dpftrl simulate --population=300000 --report_goal=650 --num_rounds=2000'
    ' --timer_hours=72 --seed=1 --output=participation.parquet'
)

METADATA_KEY = 'simulated'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  population_flags.add_arguments(parser)
  add('--output', metavar='FILE.parquet', help='write the log there')
  add(
      '--report', metavar='FILE.html',
      help='write a page on who took part and when there',
  )


def run(args: argparse.Namespace) -> dict[str, Any]:
  """Simulates, and writes what is asked for."""
  simulation = population_flags.simulation(args)
  for name in ('output', 'report'):
    path = getattr(args, name)
    if path and not os.path.isdir(os.path.dirname(path) or '.'):
      raise ValueError(f'--{name}={path}: its folder does not exist')
  began = time.monotonic()
  attendance, turnouts = attendance_lib.Attendance(), report.Turnouts()
  if args.output is None:
    _simulate(args, simulation, attendance, turnouts, lambda *row: None)
  else:
    schema.parquet_path(args.output)
    with streamed.writer(
        args.output,
        num_rounds=args.num_rounds,
        metadata={METADATA_KEY: json.dumps(_flags(args), sort_keys=True)},
    ) as append:
      _simulate(args, simulation, attendance, turnouts, append)
  result = {
      'num_rounds': attendance.num_rounds,
      'num_devices': attendance.num_devices,
      'num_participations': attendance.num_participations,
      'min_sep': attendance.min_sep,
      'max_participations': attendance.max_participations,
      'simulated_days': attendance.days,
      'dropped': turnouts.dropped,
      'late': turnouts.late,
      'timer': _timer(simulation.timer, attendance),
      'seed': args.seed,
      'wall_seconds': time.monotonic() - began,
      'output': args.output,
  }
  if args.report:
    command = ['fl-dpftrl', 'simulate', *_words(args)]
    page = report.page_of(
        result, simulation, attendance, turnouts, shlex.join(command)
    )
    files.write_durably(args.report, page.encode())
  return result


def _simulate(args, simulation, attendance, turnouts, append) -> None:
  shown = progress.Progress('simulate')
  rounds = simulation.turnouts()
  for t in range(args.num_rounds):
    cohort, turnout = next(rounds)
    append(t, cohort.device_ids, cohort.closed)
    attendance.add(cohort)
    turnouts.add(cohort, turnout)
    shown.say(
        f'round {t + 1} of {args.num_rounds}, day {attendance.days:.1f},'
        f' min-sep so far {attendance.min_sep}'
    )


def _timer(
    kind: timer.Timer, attendance: attendance_lib.Attendance
) -> dict[str, Any]:
  """The timer, and what one in hours came to in rounds."""
  if isinstance(kind, timer.RoundTimer):
    return {'rounds': kind.rounds}
  timed = attendance.timed(kind.seconds)
  return {'hours': kind.hours, 'in_rounds': timed and timed._asdict()}


def _flags(args: argparse.Namespace) -> dict[str, Any]:
  """What decides the log, by its flags."""
  left_out = ('output', 'report', 'json')
  return {
      name: value for name, value in vars(args).items()
      if value is not None and name not in left_out
  }


def _words(args: argparse.Namespace) -> list[str]:
  """The flags as they may be given again."""
  words = []
  for name, value in {**_flags(args), 'output': args.output}.items():
    if value is not None:
      if isinstance(value, tuple):
        value = ','.join(f'{v:g}' for v in value)
      words.append(f'--{name}={value}')
  return words


def show(result: dict[str, Any]) -> str:
  """The figures, and how a timer in hours made the min-sep."""
  result = dict(result)
  words = report.explain(result)
  del result['timer']
  return f'{flags.table(result)}\n\n{words}'
