"""The `plan` command: recommends a strategy and predicts ε for a population."""

import argparse
import dataclasses
import functools
import math
import time

from fl_dpftrl.accounting import gaussian
from fl_dpftrl.commands import flags, output, plan_text, population_flags
from fl_dpftrl.files import json_files
from fl_dpftrl.planning import planner
from fl_dpftrl.simulation import scenario as scenario_lib
from fl_dpftrl.strategies import files

HELP = 'simulates a population and recommends a strategy, noise and ε'

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
  """A plan, with the flags that made it.

  Attributes:
    args: parsed flags.
    plan: the plan.
    others: plans for other report goals, at the same ε.
    wall_seconds: seconds that planning took.
  """

  args: argparse.Namespace
  plan: planner.Plan
  others: tuple[planner.Plan, ...]
  wall_seconds: float

  def to_json(self) -> json_files.Object:
    """Returns the population, the plan and the files written."""
    asked = ('population', 'report_goal', 'num_rounds', 'timer_hours', 'timer_rounds', 'seed')
    return {
      **{name: getattr(self.args, name) for name in asked},
      **self.plan.to_json(),
      **({'report_goals': plan_text.goals(self.plan, self.others)} if self.others else {}),
      'wall_seconds': self.wall_seconds,
      'output': self.args.output,
    }


def run(args: argparse.Namespace) -> Result:
  """Simulates, evaluates candidates and recommends one."""
  _check(args)
  args = population_flags.completed(args, 'population', 'report_goal', 'num_rounds')
  start, shown = time.monotonic(), output.Progress('plan')
  scenario = population_flags.scenario(args)
  make = functools.partial(
    planner.plan,
    num_rounds=args.num_rounds,
    seeds=range(args.seed, args.seed + args.num_simulations),
    delta=args.delta,
    objective=args.objective,
    max_copies=args.max_copies,
    progress=shown.say,
  )
  plan = make(
    scenario,
    noise_multiplier=args.noise_multiplier,
    epsilon=args.epsilon,
    strategies=args.strategies,
  )
  best = plan.best
  others = tuple(
    make(
      _with_report_goal(scenario, goal),
      epsilon=best.guarantee.epsilon(),
      strategies=[best.candidate.label],
    )
    for goal in args.report_goals
  )
  return Result(args=args, plan=plan, others=others, wall_seconds=time.monotonic() - start)


def finish(args: argparse.Namespace, result: Result) -> None:
  """Writes the strategy."""
  plan = result.plan
  if args.output is not None:
    files.save_strategy(
      args.output, plan.best.candidate.strategy, schema=plan.best.planned, objective=args.objective
    )


def verdict(args: argparse.Namespace, result: Result) -> tuple[int, str] | None:
  """Returns the exit status and a line if the predicted ε is above the budget."""
  return flags.above_budget(args, result.plan.best.guarantee.epsilon())


def _check(args: argparse.Namespace) -> None:
  """Checks all flags before the work starts."""
  gaussian.check_delta(args.delta)
  flags.check_max_epsilon(args)
  for name in ('noise_multiplier', 'epsilon'):
    if getattr(args, name) is not None:
      gaussian.check_positive(name, getattr(args, name))
  for name, least in (('max_copies', 0), ('num_simulations', 1)):
    value = getattr(args, name)
    if not least <= value <= _MOST:
      raise ValueError(f'--{name}={value} must lie in {least} to {_MOST}')
  if args.strategies is not None:
    flags.candidates('strategies', args.strategies)
  output.check_file('output', args.output, '.json')


def _with_report_goal(scenario: scenario_lib.Scenario, goal: int) -> scenario_lib.Scenario:
  """Returns a scenario with another report goal, and as many more devices chosen per round."""
  chosen = scenario.clients_per_round
  if chosen is not None:
    chosen = math.ceil(chosen * goal / scenario.report_goal)
  return dataclasses.replace(scenario, report_goal=goal, clients_per_round=chosen)


def show(result: Result) -> str:
  """Formats the recommendation, its alternatives and its assumptions."""
  return plan_text.text(result.plan, result.others, result.args.output)
