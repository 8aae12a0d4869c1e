"""The `compare` command: mechanisms side by side, at one or many settings."""

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from fl_dpftrl import tables, workloads
from fl_dpftrl.commands import flags, output
from fl_dpftrl.files import json_files
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.planning import candidates as candidates_lib
from fl_dpftrl.planning import comparison
from fl_dpftrl.text import messages

HELP = 'compares mechanisms and strategy files: table, CSV and figure'

EXAMPLE = (
  'fl-dpftrl compare --mechanisms=identity,tree_online,blt,blt-b400'
  ' --num_rounds=2052 --min_sep=100:600:7 --max_participations=6'
  ' --output=comparison'
)

_EACH = 'each'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    '--mechanisms',
    required=True,
    type=flags.names,
    help='comma-separated mechanisms (blt, or blt:3 with its size), strategy'
    ' files (mine.json, or NAME=mine.json), names in matrices/',
  )
  flags.add_several(parser, 'num_rounds', 'N', required=True)
  flags.add_several(parser, 'min_sep', 'B', default=[1])
  flags.add_several(parser, 'max_participations', 'K', default=[None])
  for name, what in (('min_sep', 'min-sep'), ('num_rounds', 'number of rounds')):
    add(
      f'--optimize_for_{name}',
      type=_values_or_each,
      default=[None],
      metavar=name[0].upper(),
      help=f'keep the strategies that are best for this {what} while the actual'
      f' one varies; one value, or a list in which "{_EACH}" stands for'
      ' the best at each value',
    )
  flags.add(parser, 'objective')
  flags.add_workload(parser)
  add('--output', metavar='FOLDER', help='folder for a CSV file and a PNG figure')


def _values_or_each(text: str) -> list[int | None]:
  """Parses a list as `flags.values` does, with None for "each"."""
  parts = text.split(',')
  others = [part for part in parts if part != _EACH]
  if len(parts) - len(others) > 1:
    raise argparse.ArgumentTypeError(f'{text!r} names "{_EACH}" twice')
  each = [None] * (len(parts) - len(others))
  return each + (flags.values(','.join(others)) if others else [])


def run(args: argparse.Namespace) -> json_files.Object:
  """Evaluates every mechanism at every setting and writes the requested files."""
  varying = [name for name in comparison.SCHEMA if len(getattr(args, name)) > 1]
  if len(varying) > 1:
    raise ValueError(f'--{varying[0]} and --{varying[1]} cannot both have several values')
  schemas = [
    participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
    for n in args.num_rounds
    for b in args.min_sep
    for k in args.max_participations
  ]
  candidates = _candidates(args)
  workload = flags.workload(args)
  output.check_folder(args.output)
  _warn_of_workloads(candidates, workload)
  watch = comparison.progress_lines(output.Progress('compare').say)
  found = comparison.run(
    candidates, schemas, objective=args.objective, watch=watch, workload=workload
  )
  entries, skipped = found.entries, found.skipped
  axis = varying[0] if varying else None
  output.say_left_out(
    'compare',
    [(skip.candidate.label, skip.reason, axis and getattr(skip.schema, axis)) for skip in skipped],
    axis,
    otherwise=None if entries else f'--mechanisms={",".join(args.mechanisms)}',
  )
  rows = [dataclasses.asdict(entry.row) for entry in entries]
  files = []
  if args.output is not None:
    image = _figure(args, entries, axis, workload)
    files = output.write_folder(args.output, 'comparison.csv', rows, {'losses.png': image})
  return {
    'objective': args.objective,
    **flags.workload_fields(workload),
    'varying': axis,
    'rows': rows,
    'skipped': [
      {'mechanism': skip.candidate.label, **flags.schema_fields(skip.schema), 'reason': skip.reason}
      for skip in skipped
    ],
    'output': args.output,
    'files': files,
  }


def _candidates(args: argparse.Namespace) -> list[candidates_lib.Candidate]:
  held = {name: getattr(args, f'optimize_for_{name}') for name in ('min_sep', 'num_rounds')}
  made_for = [
    {name: value for name, value in (('min_sep', b), ('num_rounds', n)) if value is not None}
    for b in held['min_sep']
    for n in held['num_rounds']
  ]
  return flags.candidates('mechanisms', args.mechanisms, made_for)


def _warn_of_workloads(
  candidates: list[candidates_lib.Candidate], workload: workloads.Workload
) -> None:
  """Warns once for each file that was optimised for another workload."""
  for candidate in candidates:
    own = candidate.workload
    if own is not None and own != workload:
      print(
        messages.one_line(
          f'compare: {candidate.label} was made for {_words(own)}; all losses here are those of'
          f' {_words(workload)}'
        ),
        file=sys.stderr,
      )


def _words(workload: workloads.Workload) -> str:
  """Returns a workload in words."""
  fields = flags.workload_fields(workload)
  fields.pop('workload')
  return ', '.join(f'{name} {value:g}' for name, value in fields.items()) or 'prefix sums'


def _figure(
  args: argparse.Namespace,
  entries: Sequence[comparison.Entry],
  axis: str | None,
  workload: workloads.Workload,
) -> bytes:
  """Returns the figure as PNG."""
  # These imports are slow, and other commands do not need them.
  from fl_dpftrl import style
  from fl_dpftrl.planning import figures

  goal = f'optimised for {figures.LOSSES[args.objective]}'
  if workload != workloads.Workload():
    goal += f' of {_words(workload)}'
  return style.image(figures.draw(entries, axis, f'{_setting(args)}; {goal}'), 'png')


def _setting(args: argparse.Namespace) -> str:
  """Returns the part of the setting that does not vary, in words."""
  words = []
  if len(args.num_rounds) == 1:
    words.append(f'{args.num_rounds[0]:,} rounds')
  if len(args.min_sep) == 1:
    words.append(f'min-sep {args.min_sep[0]:,}')
  if args.max_participations == [None]:
    words.append('as many participations as fit')
  elif len(args.max_participations) == 1:
    words.append(f'at most {args.max_participations[0]:,} participations')
  return ', '.join(words)


def show(result: json_files.Object) -> str:
  """Formats one row per result; columns with one value stand above the table."""
  same, table = tables.shared_columns(result['rows'], comparison.SCHEMA)
  header = ', '.join(f'{name} {value}' for name, value in same.items())
  header = f'{header}, objective {result["objective"]}'
  if result['workload'] != 'prefix':
    header += f', workload {result["workload"]}'
  lines = [header.lstrip(', '), '', table]
  return '\n'.join([*lines, *output.shown_folder(result)])
