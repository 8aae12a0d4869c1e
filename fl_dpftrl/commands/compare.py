"""The `compare` command: mechanisms side by side, at one or many settings."""

import argparse
import sys

from fl_dpftrl import checks, tables, workloads
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.commands import flags, output
from fl_dpftrl.files import json_files
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.participations import loss_budgets
from fl_dpftrl.planning import candidate_sets, comparison
from fl_dpftrl.text import messages

HELP = 'compares mechanisms and strategy files: table, CSV and figure'

EXAMPLE = (
  'fl-dpftrl compare --mechanisms=identity,tree_online,blt,blt-b400'
  ' --num_rounds=2052 --min_sep=100:600:7 --max_participations=6'
  ' --output=comparison'
)

_WITHOUT_NOISE = ('rms_error', 'max_error', 'rms_loss', 'max_loss')


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
  flags.add_loss_budget(
    parser,
    'a run without an end: its sensitivity, with errors after each --num_rounds; a list or range of'
    ' these gives losses by horizon, for which mechanisms are optimised',
  )
  flags.add(parser, 'objective')
  flags.add_workload(parser)
  words = 'ε at which noise multipliers and errors of the mean are stated, too; with --delta'
  add('--epsilon', type=float, help=words)
  flags.add(parser, 'delta', required=False, help='with --epsilon: δ')
  words = 'with --epsilon: updates in the mean of a round (default: 1, for the error of the sum)'
  add('--report_goal', type=int, help=words)
  add('--output', metavar='FOLDER', help='folder for a CSV file and a PNG figure')


def run(args: argparse.Namespace) -> json_files.Object:
  """Evaluates every mechanism at every setting and writes the requested files."""
  varying = [name for name in comparison.SCHEMA if len(getattr(args, name)) > 1]
  if len(varying) > 1:
    raise ValueError(f'--{varying[0]} and --{varying[1]} cannot both have several values')
  axis = varying[0] if varying else None
  schemas = [
    participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
    for n in args.num_rounds
    for b in args.min_sep
    for k in args.max_participations
  ]
  budget = _budget(args)
  candidates = flags.candidates('mechanisms', args.mechanisms)
  workload, at_epsilon = flags.workload(args), _at_epsilon(args)
  output.check_folder(args.output)
  _warn_of_workloads(candidates, workload)
  progress = output.Progress('compare')
  results = comparison.run(
    candidates,
    schemas,
    show=lambda entry: progress.row(_one_line(entry, axis)),
    objective=args.objective,
    workload=workload,
    budget=budget,
    watch=candidate_sets.watched(progress.say),
    **at_epsilon,
  )
  output.say_skipped(
    'compare',
    [(skip.label, skip.reason, axis and getattr(skip.schema, axis)) for skip in results.skipped],
    axis,
    otherwise=None if results.entries else f'--mechanisms={",".join(args.mechanisms)}',
  )
  rows, files = results.rows, []
  if args.output is not None:
    images = {'losses.png': _figure(args, results, axis, workload)}
    files = output.write_folder(args.output, 'comparison.csv', rows, images)
  return {
    'objective': args.objective,
    **flags.workload_fields(workload),
    **at_epsilon,
    'varying': axis,
    'rows': rows,
    'skipped': [
      {'mechanism': skip.label, **flags.schema_fields(skip.schema), 'reason': skip.reason}
      for skip in results.skipped
    ],
    'output': args.output,
    'files': files,
  }


def _budget(args: argparse.Namespace) -> loss_budgets.LossBudget | None:
  """Returns the loss budget of the flags, of one min_sep and one max_participations."""
  if args.loss_budget is None:
    return None
  named = {name: getattr(args, name) for name in ('min_sep', 'max_participations')}
  for name, numbers in named.items():
    if len(numbers) > 1:
      raise ValueError(f'--{name} must be one number with --loss_budget, got {len(numbers)}')
  if args.max_participations == [None]:  # B² as a number; others have a default here.
    named['min_sep'] = [None]
  single = {name: numbers[0] for name, numbers in named.items()}
  return flags.loss_budget(argparse.Namespace(loss_budget=args.loss_budget, **single))


def _one_line(entry: comparison.Entry, axis: str | None) -> str:
  """Returns the losses of an entry, to read while others are searched."""
  row = entry.row
  at = f' at {axis}={row[axis]}' if axis else ''
  losses = ', '.join(f'{name} {tables.figure(name, row[name])}' for name in _WITHOUT_NOISE[2:])
  return f'{row["mechanism"]}{at}: {losses}, {entry.seconds:.0f} s'


def _at_epsilon(args: argparse.Namespace) -> json_files.Object:
  """Returns ε, δ and the report goal at which noise is compared, if they are given."""
  if args.epsilon is None:
    for name in ('delta', 'report_goal'):
      if getattr(args, name) is not None:
        raise ValueError(f'--{name}={getattr(args, name)} needs --epsilon')
    return {}
  if args.delta is None:
    raise ValueError(f'--epsilon={args.epsilon} needs --delta')
  gaussian.effective_noise_multiplier(args.epsilon, args.delta)  # Checks both.
  goal = 1 if args.report_goal is None else args.report_goal
  checks.whole(report_goal=goal)
  return {'epsilon': args.epsilon, 'delta': args.delta, 'report_goal': goal}


def _warn_of_workloads(
  candidates: list[candidate_sets.Candidate], workload: workloads.Workload
) -> None:
  """Warns once for each file that was optimised for another workload."""
  for candidate in candidates:
    source = candidate.workload
    if source is not None and source != workload:
      print(
        messages.one_line(
          f'compare: {candidate.label} was made for {_words(source)}; all losses here are those of'
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
  results: comparison.Comparison,
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
  if args.epsilon is not None:
    goal += f'; at ε = {args.epsilon:g}, δ = {args.delta:g}'
    goal += f', {args.report_goal:,} updates a round' if args.report_goal else ''
  return style.image(figures.draw(results.entries, axis, f'{_setting(args)}; {goal}'), 'png')


def _setting(args: argparse.Namespace) -> str:
  """Returns the part of the setting that does not vary, in words."""
  words = ['without an end'] if args.loss_budget is not None else []
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
  rows = result['rows']
  if 'epsilon' in result:  # Errors of the mean stand for those without noise.
    rows = [{k: v for k, v in row.items() if k not in _WITHOUT_NOISE} for row in rows]
  same, table = tables.shared_columns(rows, comparison.SCHEMA)
  header = ', '.join(f'{name} {value}' for name, value in same.items())
  header = f'{header}, objective {result["objective"]}'
  if result['workload'] != 'prefix':
    header += f', workload {result["workload"]}'
  if 'epsilon' in result:
    header += f', ε {result["epsilon"]:g} at δ {result["delta"]:g}'
    header += f', report goal {result["report_goal"]}'
  lines = [header.lstrip(', '), '', table]
  return '\n'.join([*lines, *output.shown_folder(result)])
