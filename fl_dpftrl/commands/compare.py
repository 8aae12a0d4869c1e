"""The `compare` command: mechanisms side by side, at one or many settings."""

import argparse
import pathlib
from collections.abc import Iterable

from fl_dpftrl.commands import flags, output
from fl_dpftrl.mechanisms import workloads
from fl_dpftrl.participation.accounting import adjacencies
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.planning import candidate_sets, comparison
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import durable, json_files
from fl_dpftrl.support.text import messages

EXAMPLE = (
  'fl-dpftrl compare --mechanisms=identity,tree_online,blt,blt-b400'
  ' --num_rounds=2052 --min_sep=100:600:7 --max_participations=6'
  ' --output=comparison'
)

_VARYING = (*comparison.SETTING[1:4], 'epsilon')
_LOSSES = ('rms_loss', 'max_loss')
_AT_EPSILON = ('noise_multiplier', 'rms_error_of_mean', 'max_error_of_mean')
_HIDDEN = ('sensitivity', 'rms_error', 'max_error')  # At an ε, where others say the same.


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    '--mechanisms',
    required=True,
    type=flags.names,
    help='comma-separated mechanisms (blt, or blt:3 with its size), strategy'
    ' files (mine.json, or NAME=mine.json), names in matrices/; of your own with --import; status'
    ' 2 if one of them has no row',
  )
  flags.add_several(parser, 'num_rounds', 'N', required=True)
  flags.add_several(parser, 'min_sep', 'B')
  flags.add_several(parser, 'max_participations', 'K')
  flags.add(parser, 'separation')
  flags.add_loss_budget(
    parser,
    'adds rows of a run without an end: the sensitivity that --min_sep and --max_participations'
    ' name, with errors after each --num_rounds; a list or range of these gives losses by horizon,'
    ' for which blt is optimised',
  )
  flags.add_sampling(
    parser,
    'adds rows where batches are drawn so, or secret bins; comma-separated, beside those of'
    ' --min_sep and --max_participations if one is given; with --epsilon',
    is_list=True,
  )
  flags.add(parser, 'objective')
  flags.add_workload(parser)
  words = 'ε at which noise multipliers and errors of the mean are stated, too; with --delta'
  flags.add_several(parser, 'epsilon', 'E', words, type=flags.numbers)
  flags.add(parser, 'delta', required=False, help='with --epsilon: δ')
  words = 'with --epsilon: zero_out (default), replace_one or, with --sampling, add_or_remove'
  add('--adjacency', help=words)
  words = 'with --epsilon: updates in the mean of a round (default: 1, for the error of the sum)'
  add('--report_goal', type=int, help=words)
  add('--output', metavar='FOLDER', help='folder for a CSV file and a PNG figure')


def run(args: argparse.Namespace) -> json_files.Object:
  """Evaluates every mechanism at every setting and writes the requested files."""
  varying = [name for name in _VARYING if len(getattr(args, name) or ()) > 1]
  if len(varying) > 1:
    raise ValueError(f'--{varying[0]} and --{varying[1]} cannot both have several values')
  axis = varying[0] if varying else None
  target = _target(args)
  participations = _participations(args)
  candidates = flags.candidates('mechanisms', args.mechanisms)
  workload = flags.workload(args)
  output.check_folder(args.output)
  _warn_of_workloads(candidates, workload)
  progress = output.Progress('compare')
  results = comparison.run(
    candidates,
    participations,
    show=lambda entry: progress.row(_one_line(entry, axis)),
    objective=args.objective,
    workload=workload,
    horizons=args.num_rounds,
    watch=candidate_sets.watched(progress.say),
    target=target,
  )
  several = len({participation.kind for participation in participations}) > 1
  lines = _left_out(results.skipped, None if axis == 'epsilon' else axis, several)
  if not results.entries:
    named = f'--mechanisms={",".join(args.mechanisms)}'
    raise ValueError(f'{named}: none of them supports this setting: {"; ".join(lines)}')
  for line in lines:
    output.say(f'compare: {line}')
  rows, files = results.rows, {}
  if args.output is not None:
    figure = _figure(args, results, axis, workload, target)
    files = {'comparison.csv': tables.as_csv(list(rows[0]), rows), 'losses.png': figure}
    folder = pathlib.Path(args.output)
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
      durable.write_durably(folder / name, content)
  return {
    'objective': args.objective,
    **flags.workload_fields(workload),
    **({**target._asdict(), 'epsilons': list(target.epsilons)} if target.epsilons else {}),
    'varying': axis,
    'rows': rows,
    'skipped': [
      {
        'mechanism': skip.label,
        'participation': skip.kind,
        **skip.schema.numbers,
        'reason': skip.reason,
      }
      for skip in results.skipped
    ],
    'output': args.output,
    'files': list(files),
  }


def verdict(args: argparse.Namespace, result: json_files.Object) -> tuple[int, str] | None:
  """Returns the exit status and a line if a mechanism that was named has no row."""
  names = {skip['mechanism'] for skip in result['skipped']}
  names -= {row['mechanism'] for row in result['rows']}
  return (2, f'--mechanisms: no row for {", ".join(sorted(names))}') if names else None


def _participations(args: argparse.Namespace) -> list[Participation]:
  """Returns the schemas, the loss budget and the draws of the flags."""
  budget = None
  if args.loss_budget is not None:
    if args.loss_budget != flags.NAMED:
      raise ValueError(
        f'--loss_budget={args.loss_budget:g} buys other participations of each mechanism: to'
        ' compare them, give --loss_budget without a number, --min_sep and --max_participations'
      )
    named = {name: getattr(args, name) or [None] for name in ('min_sep', 'max_participations')}
    for name, numbers in named.items():
      if len(numbers) > 1:
        raise ValueError(f'--{name} must be one number with --loss_budget, got {len(numbers)}')
    single = {name: numbers[0] for name, numbers in named.items()}
    budget = flags.loss_budget(argparse.Namespace(loss_budget=args.loss_budget, **single))
  draws = [scheme for n in args.num_rounds for scheme in flags.samplings(args, n)]
  schemas = [
    flags.SEPARATIONS[args.separation or 'min'](n, b, k)
    for n in args.num_rounds
    for b in args.min_sep or [1]
    for k in args.max_participations or [None]
  ]
  has_schema = args.min_sep or args.max_participations or args.separation
  if not has_schema and (budget or draws):
    schemas = []
  return [*schemas, *([] if budget is None else [budget]), *draws]


def _left_out(
  skipped: Iterable[candidate_sets.Skipped], field: str | None, several: bool
) -> list[str]:
  """Returns a line for each candidate and reason; `several` participations are told apart."""
  where: dict[tuple[str, str], list[str]] = {}
  for skip in skipped:
    label = f'{skip.label} is left out{f" of {skip.kind}" * several}'
    where.setdefault((label, skip.reason), []).append(str(field and getattr(skip.schema, field)))
  at = lambda values: f' at {field}={",".join(values)}' if field else ''
  return [f'{label}{at(values)}: {reason}' for (label, reason), values in where.items()]


def _one_line(entry: comparison.Entry, axis: str | None) -> str:
  """Returns the figures of an entry, to read while others are searched."""
  row = entry.row
  at = f' at {axis}={row[axis]}' if axis else ''
  names = _LOSSES if entry.guarantee is None else _AT_EPSILON
  figures = ', '.join(f'{name} {tables.figure(name, row[name])}' for name in names)
  return f'{row["mechanism"]}, {row["participation"]}{at}: {figures}, {entry.seconds:.0f} s'


def _target(args: argparse.Namespace) -> comparison.Target:
  """Returns the ε, δ, adjacency and report goal at which noise is compared, if they are given."""
  if args.epsilon is None:
    for name in ('delta', 'adjacency', 'report_goal', 'sampling'):
      value = getattr(args, name)
      if value is not None:
        shown = ','.join(value) if isinstance(value, list) else value
        raise ValueError(f'--{name}={shown} needs --epsilon')
    return comparison.Target()
  if args.delta is None:
    raise ValueError(f'--epsilon={",".join(map(str, args.epsilon))} needs --delta')
  goal = 1 if args.report_goal is None else args.report_goal
  adjacency = args.adjacency or adjacencies.ZERO_OUT
  return comparison.Target(tuple(args.epsilon), args.delta, adjacency, goal)


def _warn_of_workloads(
  candidates: list[candidate_sets.Candidate], workload: workloads.Workload
) -> None:
  """Warns once for each file that was optimised for another workload."""
  for candidate in candidates:
    source = candidate.workload
    if source is not None and source != workload:
      output.say(
        f'compare: {candidate.label} was made for {_words(source)}; all losses here are those of'
        f' {_words(workload)}'
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
  target: comparison.Target,
) -> bytes:
  """Returns the figure as PNG."""
  # These imports are slow, and other commands do not need them.
  from fl_dpftrl.planning import comparison_figures
  from fl_dpftrl.support import style

  goal = f'optimised for {comparison_figures.LOSSES[args.objective]}'
  if workload != workloads.Workload():
    goal += f' of {_words(workload)}'
  if target.epsilons:
    goal += f'; at ε = {target.epsilons[0]:g}, ' if len(target.epsilons) == 1 else '; at '
    goal += f'δ = {target.delta:g}, {target.adjacency.replace("_", "-")}'
    goal += f', {target.report_goal:,} updates a round' if args.report_goal else ''
  return style.image(
    comparison_figures.draw(results.entries, axis, f'{_setting(args)}; {goal}'), 'png'
  )


def _setting(args: argparse.Namespace) -> str:
  """Returns the part of the setting that does not vary, in words."""
  words = []
  if len(args.num_rounds) == 1:
    words.append(f'{args.num_rounds[0]:,} rounds')
  if args.min_sep is not None and len(args.min_sep) == 1:
    words.append(f'min-sep {args.min_sep[0]:,}')
  if args.max_participations is not None and len(args.max_participations) == 1:
    words.append(f'at most {args.max_participations[0]:,} participations')
  elif args.max_participations is None and not args.sampling:
    words.append('as many participations as fit')
  return ', '.join(words)


def show(result: json_files.Object) -> str:
  """Formats one row per result; columns with one value stand above the table."""
  rows = result['rows']
  if 'epsilons' in result:  # Errors of the mean stand for those without noise.
    rows = [{k: v for k, v in row.items() if k not in _HIDDEN} for row in rows]
  if all(row['rows_drawn'] == 1.0 for row in rows):
    rows = [{k: v for k, v in row.items() if k != 'rows_drawn'} for row in rows]
  setting = [name for name in comparison.SETTING if name in rows[0]]
  same, table = tables.shared_columns(rows, setting)
  header = ', '.join(f'{name} {value}' for name, value in same.items())
  header = f'{header}, objective {result["objective"]}'
  if result['workload'] != 'prefix':
    header += f', workload {result["workload"]}'
  if 'epsilons' in result:
    header += f', δ {result["delta"]}, {result["adjacency"]}, report goal {result["report_goal"]}'
  lines = [header.lstrip(', '), '', table]
  if result['files']:
    lines += ['', f'in {messages.one_line(result["output"])}: {", ".join(result["files"])}']
  return '\n'.join(lines)
