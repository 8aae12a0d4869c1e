"""The `extrapolate` command: predicted guarantees of hypothetical deployments."""

import argparse
import functools

from fl_dpftrl import tables
from fl_dpftrl.accounting import extrapolation, gaussian
from fl_dpftrl.commands import flags, output
from fl_dpftrl.comparison import candidates as candidates_lib
from fl_dpftrl.comparison import extrapolation as predictions
from fl_dpftrl.comparison import sweep
from fl_dpftrl.files import json_files
from fl_dpftrl.text import rounding

HELP = 'predicts ε and ρ at other report goals, rounds and populations'

EXAMPLE = (
  'fl-dpftrl extrapolate --strategies=blt-b400,tree_online'
  ' --noise_multiplier=7.379,7 --report_goal=6500'
  ' --report_goals=3000:26000:10 --population=13000000 --num_rounds=2000'
  ' --delta=1e-10 --output=extrapolation'
)

# Fields of the rows that may vary, with the flags that hold their values.
_SWEPT = {'report_goal': 'report_goals', 'num_rounds': 'num_rounds', 'population': 'population'}
_OVER = {
  'report_goal': 'report goal',
  'num_rounds': 'the number of rounds',
  'population': 'population',
}
# Columns that stand in the table even if they are equal in all rows.
_OWN = ('strategy', 'sensitivity', 'rho', 'epsilon')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    '--strategies',
    required=True,
    type=flags.names,
    help='comma-separated strategy files, names in matrices/, or mechanisms'
    ' optimised for each setting (blt, or blt:3 with its size)',
  )
  add(
    '--noise_multiplier',
    required=True,
    type=_numbers,
    metavar='SIGMA',
    help='standard deviation of Z over the clip norm at --report_goal, for the'
    ' strategies as stored; one value, or one per strategy',
  )
  add(
    '--report_goal',
    required=True,
    type=int,
    help='number of updates per round under --noise_multiplier',
  )
  several = functools.partial(flags.add_several, parser)
  words = 'report goals to predict; the noise grows in proportion (default: --report_goal)'
  several('report_goals', 'R', words)
  several('num_rounds', 'N', required=True)
  several('population', 'P', 'number of eligible devices', default=[None])
  add(
    '--min_sep',
    type=_whole_numbers,
    metavar='B',
    default=[None],
    help='b, min-sep: one value, or one for each varying value in ascending'
    ' order (default: ⌊population / report goal⌋, which is optimistic)',
  )
  flags.add(parser, 'max_participations', 'delta', 'objective')
  add('--output', metavar='FOLDER', help='folder for a CSV file and PNG figures')


def _numbers(text: str) -> list[float]:
  try:
    return [float(part) for part in text.split(',')]
  except ValueError:
    raise argparse.ArgumentTypeError(f'{text!r} must be numbers separated by commas') from None


def _whole_numbers(text: str) -> list[int]:
  """Parses whole numbers and keeps their order, unlike `flags.values`."""
  return [flags.values(part)[0] for part in text.split(',')]


def run(args: argparse.Namespace) -> json_files.Object:
  """Predicts every strategy at every setting and writes the requested files."""
  axis = _axis(args)
  deployments = _deployments(args)
  references = _references(args)
  gaussian.check_delta(args.delta)
  candidates = flags.candidates('strategies', args.strategies)
  output.check_folder(args.output)
  watch = sweep.progress_lines(output.Progress('extrapolate').say)
  options = {'delta': args.delta, 'objective': args.objective, 'watch': watch}
  predicted = list(predictions.run(candidates, references, deployments, **options))
  entries = [item for item in predicted if isinstance(item, predictions.Entry)]
  skipped = [item for item in predicted if isinstance(item, predictions.Skipped)]
  value = lambda skip: getattr(skip.deployment, axis)
  output.say_left_out(
    'extrapolate',
    [(skip.candidate.label, skip.reason, value(skip)) for skip in skipped],
    axis,
    otherwise=None if entries else f'--strategies={",".join(args.strategies)}',
  )
  rows = [entry.to_json() for entry in entries]
  files = []
  if args.output is not None:
    images = _figures(args, axis, candidates, references, entries)
    files = output.write_folder(args.output, 'extrapolation.csv', rows, images)
  return {
    'varying': axis,
    'rows': rows,
    'skipped': [
      {'strategy': skip.candidate.label, axis: value(skip), 'reason': skip.reason}
      for skip in skipped
    ],
    'assumptions': _assumptions(args, candidates),
    'output': args.output,
    'files': files,
  }


def _axis(args: argparse.Namespace) -> str:
  """Returns the field of the rows that varies."""
  several = [name for name, flag in _SWEPT.items() if len(getattr(args, flag) or ()) > 1]
  if len(several) > 1:
    first, second = (_SWEPT[name] for name in several[:2])
    raise ValueError(f'--{first} and --{second} cannot both have several values')
  if not several:
    raise ValueError(
      'one of --report_goals, --num_rounds and --population must have several'
      ' values; `account` is for a single setting'
    )
  return several[0]


def _deployments(args: argparse.Namespace) -> list[extrapolation.Deployment]:
  settings = [
    {'report_goal': goal, 'num_rounds': rounds, 'population': population}
    for goal in args.report_goals or [args.report_goal]
    for rounds in args.num_rounds
    for population in args.population
  ]
  min_seps = args.min_sep
  if len(min_seps) == 1:
    min_seps = min_seps * len(settings)
  if len(min_seps) != len(settings):
    raise ValueError(
      f'--min_sep must have one value or {len(settings)}, one per varying'
      f' value; got {len(min_seps)}'
    )
  return [
    extrapolation.Deployment(**setting, min_sep=min_sep, max_participations=args.max_participations)
    for setting, min_sep in zip(settings, min_seps)
  ]


def _references(args: argparse.Namespace) -> list[extrapolation.Reference]:
  """Returns one reference per strategy."""
  noise, count = args.noise_multiplier, len(args.strategies)
  if len(noise) not in (1, count):
    raise ValueError(
      f'--noise_multiplier must have one value or {count}, one per strategy; got {len(noise)}'
    )
  return [
    extrapolation.Reference(noise_multiplier=multiplier, report_goal=args.report_goal)
    for multiplier in (noise if len(noise) == count else noise * count)
  ]


def _assumptions(args: argparse.Namespace, candidates: list[candidates_lib.Candidate]) -> list[str]:
  lines = list(extrapolation.hypotheses(min_sep_given=args.min_sep != [None]))
  if any(candidate.optimised for candidate in candidates):
    lines.append('a mechanism optimised for each setting keeps its utility at that noise too')
  if len(candidates) > 1:
    lines.append(
      'all strategies have the same utility at their own noise multipliers'
      if len(args.noise_multiplier) > 1
      else 'all strategies have one noise multiplier, at which their utility differs'
    )
  return lines


def _figures(
  args: argparse.Namespace,
  axis: str,
  candidates: list[candidates_lib.Candidate],
  references: list[extrapolation.Reference],
  entries: list[predictions.Entry],
) -> dict[str, bytes]:
  """Returns PNG images by file name."""
  # These imports are slow, and other commands do not need them.
  from fl_dpftrl.comparison import extrapolation_figures
  from fl_dpftrl.drawing import style

  number = style.number
  own = len(args.noise_multiplier) > 1
  noise = '' if own else f' = {rounding.exact(args.noise_multiplier[0])}'
  goal = number(args.report_goal)
  words = [f'noise multiplier σ{noise} at report goal {goal}']
  first = entries[0].to_json()
  for name, flag, unit in (
    ('report_goal', args.report_goals, 'report goal {}'),
    ('num_rounds', args.num_rounds, '{} rounds'),
    ('population', args.population, '{} devices'),
    ('min_sep', args.min_sep, 'min-sep {}'),
  ):
    if name != axis and flag and flag != [None] and len(flag) == 1:
      words.append(unit.format(number(first[name])))
  if args.max_participations is not None:
    words.append(f'at most {number(args.max_participations)} participations')
  subtitle = '\n'.join(
    ['; '.join(words), *(f'assumed: {line}' for line in _assumptions(args, candidates))]
  )
  names = {
    candidate.label: candidate.label
    + (f', σ = {rounding.exact(reference.noise_multiplier)}' if own else '')
    for candidate, reference in zip(candidates, references)
  }
  return {
    f'{name}.png': style.png(
      extrapolation_figures.against(
        entries,
        axis,
        name,
        title=f'{symbol} against {_OVER[axis]} (predicted)',
        subtitle=subtitle,
        names=names,
        reference=args.report_goal if axis == 'report_goal' else None,
      )
    )
    for name, symbol in (('epsilon', 'ε'), ('rho', 'ρ'))
  }


def show(result: json_files.Object) -> str:
  """Formats one row per prediction and the assumptions."""
  may_be_shared = [name for name in result['rows'][0] if name not in _OWN]
  same, table = tables.shared_columns(result['rows'], may_be_shared)
  header = ', '.join(f'{name} {value}' for name, value in same.items() if value is not None)
  lines = [f'predicted, not run: {header}', '', table, '']
  lines += ['This is no guarantee. Besides those of `account`, it assumes:', '']
  lines += [f'- {line}' for line in result['assumptions']]
  return '\n'.join([*lines, *output.shown_folder(result)])
