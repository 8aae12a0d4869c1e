"""The `plan` command: recommends a strategy and predicts ε for a population."""

import argparse

from fl_dpftrl.commands import flags, output, population_flags
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.planning import planner
from fl_dpftrl.support import checks, tables
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages, roundings

EXAMPLE = (
  'fl-dpftrl plan --population=3000000 --report_goal=6500 --num_rounds=2000'
  ' --timer_hours=72 --delta=1e-10 --noise_multiplier=7.4 --output=plan.json'
)

_MOST = 10_000  # maximum number of copies and simulations


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  population_flags.add_arguments(parser)
  flags.add(parser, 'delta')
  noise = parser.add_mutually_exclusive_group(required=True)
  flags.add(noise, 'noise_multiplier', metavar='SIGMA')
  noise.add_argument(
    '--epsilon',
    type=float,
    help='upper limit of the predicted ε; use instead of --noise_multiplier',
  )
  flags.add(parser, 'objective')
  add(
    '--max_copies',
    type=int,
    default=planner.MAX_COPIES,
    help='maximum number of model copies that noise may store and update every'
    f' round (default: {planner.MAX_COPIES}); others are only alternatives',
  )
  add(
    '--strategies',
    type=flags.names,
    help='comma-separated candidates: mechanisms (blt, or blt:3 with its'
    ' size), names in matrices/, files (default: all that can be evaluated in'
    ' a few minutes)',
  )
  add(
    '--num_simulations',
    type=int,
    default=3,
    help='number of simulations of the planned run; seeds start at --seed (default: 3)',
  )
  flags.add_several(
    parser,
    'report_goals',
    'R',
    'other report goals to plan for, with the recommended strategy at the same ε',
    default=[],
  )
  flags.add_max_epsilon(parser)
  add('--output', metavar='FILE.json', help='strategy file to write')


def run(args: argparse.Namespace) -> planner.Plan:
  """Simulates, evaluates candidates and recommends one."""
  _check(args)
  args = population_flags.completed(args, 'population', 'report_goal', 'num_rounds')
  return planner.plan(
    population_flags.scenario(args),
    num_rounds=args.num_rounds,
    seeds=range(args.seed, args.seed + args.num_simulations),
    delta=args.delta,
    noise_multiplier=args.noise_multiplier,
    epsilon=args.epsilon,
    objective=args.objective,
    max_copies=args.max_copies,
    strategies=args.strategies,
    report_goals=args.report_goals,
    progress=output.Progress('plan').say,
  )


def finish(args: argparse.Namespace, plan: planner.Plan) -> None:
  """Writes the strategy."""
  if args.output is not None:
    files.save_strategy(
      args.output, plan.best.candidate.strategy, schema=plan.planned, objective=plan.objective
    )


def verdict(args: argparse.Namespace, plan: planner.Plan) -> tuple[int, str] | None:
  """Returns the exit status and a line if the predicted ε is above the budget."""
  return flags.above_budget(args, plan.best.guarantee.epsilon())


def _check(args: argparse.Namespace) -> None:
  """Checks all flags before the work starts."""
  gaussian.check_delta(args.delta)
  flags.check_max_epsilon(args)
  for name in ('noise_multiplier', 'epsilon'):
    if getattr(args, name) is not None:
      checks.positive(**{name: getattr(args, name)})
  for name, least in (('max_copies', 0), ('num_simulations', 1)):
    value = getattr(args, name)
    if not least <= value <= _MOST:
      raise ValueError(f'--{name}={value} must lie in {least} to {_MOST}')
  if args.strategies is not None:
    flags.candidates('strategies', args.strategies)
  output.check_file('output', args.output, '.json')


def show(plan: planner.Plan) -> str:
  """Formats the recommendation, its alternatives and its assumptions."""
  skipped = [f'- {messages.one_line(f"{skip.label}: {skip.reason}")}' for skip in plan.skipped]
  count = len(plan.forecast.outcomes)
  blocks = [
    [planner.TITLE],
    [tables.table(plan.summary)],
    [f'{count} simulation{"s" * (count > 1)}', tables.columns(_forecast(plan))],
    ['all strategies, at the same ε', tables.columns(plan.options)],
    ['report goals, at the same ε', tables.columns(plan.report_goals)] if plan.others else [],
    ['left out', *skipped] if skipped else [],
    ['This is no guarantee: replay the log of the run for that. It assumes:'],
    [f'- {line}' for line in plan.assumptions],
  ]
  return '\n\n'.join('\n'.join(lines) for lines in blocks if lines)


def _forecast(plan: planner.Plan) -> list[json_files.Object]:
  """Returns a row for each figure; the mean of min-sep is rounded down, all others up."""
  ends, rows = dict(plan.forecast.range), []
  for name, mean in plan.forecast.expected.items():
    way = roundings.down if name == 'min_sep' else roundings.up
    expected = float(way(float(mean), digits=6))
    rows.append({'': name, 'expected': expected, 'lowest': ends[name][0], 'highest': ends[name][1]})
  return rows
