"""What a strategy, a schema and a noise multiplier guarantee."""

import argparse
from typing import Any

from fl_dpftrl import accounting
from fl_dpftrl import catalogue
from fl_dpftrl.commands import flags

HELP = 'from a noise multiplier to ρ and ε'

EXAMPLE = (
    'fl-dpftrl account --strategy=blt-b400 --noise_multiplier=7.379'
    ' --delta=1e-10 --num_rounds=1280 --min_sep=300 --max_participations=4'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  flags.add_strategy(parser)
  parser.add_argument(
      '--noise_multiplier',
      type=float,
      required=True,
      help='standard deviation of Z over the clip norm, for the strategy as'
      ' stored',
  )
  parser.add_argument('--delta', type=float, required=True, help='δ')
  flags.add_schema(parser, required=True)


def run(args: argparse.Namespace) -> dict[str, Any]:
  """The guarantee under the schema of the flags."""
  guarantee = accounting.account(
      catalogue.load_strategy(args.strategy),
      flags.schema(args),
      noise_multiplier=args.noise_multiplier,
      delta=args.delta,
  )
  return fields(args.strategy, guarantee)


def fields(
    strategy: str, guarantee: accounting.Guarantee
) -> dict[str, Any]:
  """A guarantee as fields of a JSON result, and what it is a guarantee of."""
  figures = {
      name: getattr(guarantee, name)
      for name in (
          'noise_multiplier',
          'sensitivity',
          'sensitivity_kind',
          'effective_noise_multiplier',
          'rho',
          'epsilon',
          'delta',
          'adjacency',
      )
  }
  return {
      'strategy': strategy,
      **flags.schema_fields(guarantee.schema),
      **figures,
      'assumptions': list(guarantee.assumptions),
  }


def show(result: dict[str, Any]) -> str:
  """The figures as a table, rounded up, and what they assume."""
  figures = {k: v for k, v in result.items() if k != 'assumptions'}
  sentences = [f'- {sentence}' for sentence in result['assumptions']]
  return '\n'.join([flags.table(figures), '', 'if', *sentences])
