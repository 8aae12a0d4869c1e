"""The least noise multiplier that meets a target."""

import argparse
from typing import Any

from fl_dpftrl import accounting
from fl_dpftrl import catalogue
from fl_dpftrl.commands import account
from fl_dpftrl.commands import flags

HELP = 'from a target ε or ρ to the least noise multiplier'

EXAMPLE = (
    'fl-dpftrl calibrate --strategy=blt-b400 --epsilon=2 --delta=1e-10'
    ' --num_rounds=2052 --min_sep=342 --max_participations=6'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  flags.add_strategy(parser)
  target = parser.add_mutually_exclusive_group(required=True)
  target.add_argument('--epsilon', type=float, help='the most that ε may be')
  target.add_argument('--rho', type=float, help='the most that ρ may be')
  parser.add_argument('--delta', type=float, required=True, help='δ')
  flags.add_schema(parser, required=True)


def run(args: argparse.Namespace) -> dict[str, Any]:
  """The guarantee with the least noise under the schema of the flags."""
  guarantee = accounting.calibrate(
      catalogue.load_strategy(args.strategy),
      flags.schema(args),
      delta=args.delta,
      epsilon=args.epsilon,
      rho=args.rho,
  )
  return account.fields(args.strategy, guarantee)


show = account.show
