"""Choice of the number of bands for sampled batches: flags and results."""

import argparse
from collections.abc import Callable

from fl_dpftrl import catalogue, json_files, participation, workloads
from fl_dpftrl.centralized import amplification
from fl_dpftrl.families import base

_FLAGS = ('epsilon', 'delta', 'num_examples', 'batch_size')
# Flags that the comparison sets itself or does not use.
_EXCLUDED = ('min_sep', 'max_participations', 'separation', 'min_sep_range', 'num_bands')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Adds --epsilon, --delta, --num_examples and --batch_size."""
  add = parser.add_argument
  add(
    '--epsilon',
    type=float,
    help='upper limit of ε for Poisson-sampled batches; selects num_bands with'
    ' the least noise and needs --delta, --num_examples and --batch_size',
  )
  add('--delta', type=float, help='with --epsilon: δ')
  add('--num_examples', type=int, help='with --epsilon: m')
  add('--batch_size', type=float, help='expected number of examples per round; use with --epsilon')


def asked(args: argparse.Namespace, size: str | None) -> bool:
  """Returns True if the flags ask for a choice of the number of bands.

  Raises:
    ValueError: if a required flag is missing, or a flag conflicts with another.
  """
  given = [name for name in _FLAGS if getattr(args, name) is not None]
  if not given:
    return False
  for name in _FLAGS:
    if name not in given:
      raise ValueError(f'--{given[0]}={getattr(args, given[0])} needs --{name}')
  for name in _EXCLUDED:
    if getattr(args, name) is not None:
      raise ValueError(
        f'--{name}={getattr(args, name)} and --epsilon={args.epsilon} exclude'
        ' each other; drop one of them'
      )
  if size != 'num_bands' or args.objective != 'rms':
    raise ValueError(
      f'--epsilon={args.epsilon} needs a banded mechanism and'
      f' --objective=rms, got --mechanism={args.mechanism} and'
      f' --objective={args.objective}'
    )
  return True


def best(
  args: argparse.Namespace,
  schema: participation.MinSep,
  workload: workloads.Workload,
  optimize: Callable[[int], base.Strategy],
) -> tuple[base.Strategy, json_files.Object]:
  """Returns the strategy with the least noise at ε and the comparison.

  Args:
    args: parsed flags.
    schema: schema with one participation, since the turns of a part share no
      row of C.
    workload: linear workload whose error is minimised.
    optimize: function from a number of bands to the best strategy with them.
  """
  run = {
    'num_rounds': args.num_rounds,
    'num_examples': args.num_examples,
    'batch_size': args.batch_size,
  }
  target = {'epsilon': args.epsilon, 'delta': args.delta}
  strategies = {bands: optimize(bands) for bands in amplification.candidate_bands(**run)}
  losses = {
    bands: catalogue.describe(strategy, schema=schema, workload=workload).figures['rms_loss']
    for bands, strategy in strategies.items()
  }
  candidates = amplification.compare_bands(losses, **run, **target)
  strategy = strategies[candidates[0].num_bands]
  guarantee = amplification.calibrate(strategy, candidates[0].sampling, **target)
  return strategy, {
    'num_bands': candidates[0].num_bands,
    'num_examples': args.num_examples,
    'batch_size': args.batch_size,
    'noise_multiplier': guarantee.noise_multiplier,
    'epsilon': guarantee.epsilon,
    'delta': guarantee.delta,
    'adjacency': guarantee.adjacency,
    'candidates': [
      {
        'num_bands': c.num_bands,
        'effective_noise_multiplier': c.effective_noise_multiplier,
        'rms_noise': c.rms_noise,
      }
      for c in candidates
    ],
  }
