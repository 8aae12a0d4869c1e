"""The `calibrate` command: smallest noise multiplier for a target ε or ρ."""

import argparse

from fl_dpftrl import accounting, json_files
from fl_dpftrl.centralized import amplification
from fl_dpftrl.commands import account, flags

HELP = 'finds the smallest noise multiplier that meets a target ε or ρ'

EXAMPLE = (
  'fl-dpftrl calibrate --strategy=blt-b400 --epsilon=2 --delta=1e-10'
  ' --num_rounds=2052 --min_sep=342 --max_participations=6'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  flags.add(parser, 'strategy', required=True)
  target = parser.add_mutually_exclusive_group(required=True)
  target.add_argument('--epsilon', type=float, help='upper limit of ε')
  target.add_argument('--rho', type=float, help='upper limit of ρ (zCDP)')
  flags.add_guarantee(parser)
  flags.add_schema(parser, required=True)
  flags.add_sampling(parser)


def run(args: argparse.Namespace) -> json_files.Object:
  """Returns the guarantee with the least noise for the target at the first δ."""
  target = {'epsilon': args.epsilon} if args.rho is None else {'rho': args.rho}
  return account.guarantee(args, accounting.calibrate, _amplified, **target)


def _amplified(*args, **kwargs) -> amplification.AmplifiedGuarantee:
  if 'rho' in kwargs:
    raise ValueError(
      f'--rho={kwargs["rho"]} is not supported with --sampling: sampled'
      ' batches have no single Gaussian release; use --epsilon'
    )
  return amplification.calibrate(*args, **kwargs)


show = account.show
