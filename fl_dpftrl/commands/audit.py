"""The `audit` command: tests what a mechanism releases against its claim."""

import argparse
import importlib
import inspect
import os
import sys
from typing import Any

from fl_dpftrl import auditing, tables
from fl_dpftrl.commands import flags
from fl_dpftrl.strategies import files

HELP = 'tests the noise and clipping of a mechanism'

EXAMPLE = (
  'fl-dpftrl audit --strategy=blt-b400 --noise_multiplier=2 --delta=1e-6'
  ' --num_rounds=32 --min_sep=8 --executor=engine --seed=1'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  flags.add(parser, 'strategy', required=True)
  words = 'claimed standard deviation of Z over the clip norm'
  flags.add(parser, 'noise_multiplier', required=True, help=words)
  flags.add(parser, 'delta')
  add = parser.add_argument
  add('--clip_norm', type=float, default=1.0, help='claimed clip norm (default: 1)')
  flags.add_schema(parser, required=True)
  add(
    '--executor',
    choices=auditing.EXECUTORS,
    help="aggregator: this package's aggregator in process (default); engine: noise rows in"
    ' NumPy, without clipping',
  )
  add(
    '--aggregator',
    metavar='MODULE:NAME',
    help='TFF aggregator to audit instead: a factory, an AggregationProcess, or a function'
    ' without arguments that returns one',
  )
  add(
    '--divisor',
    type=float,
    help='with --aggregator: number by which it divides the sum (default: 1)',
  )
  add('--num_draws', type=int, default=50_000, help='noise samples per round (default: 50000)')
  add('--seed', type=int, help='number that makes the audit repeatable; default: fresh randomness')


def run(args: argparse.Namespace) -> auditing.Audit:
  """Runs the audit of the flags."""
  # Before TensorFlow is loaded: it logs its start, and clients run in parallel without oneDNN.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '3')
  os.environ.setdefault('TF_ENABLE_ONEDNN_OPTS', '0')
  if args.aggregator is None:
    if args.divisor is not None:
      raise ValueError(f'--divisor={args.divisor} needs --aggregator')
    aggregator = None
  else:
    flags.exclude(args, ['executor'], f'--aggregator={args.aggregator}')
    aggregator = _named(args.aggregator)
  return auditing.audit(
    files.load_strategy(args.strategy),
    flags.schema(args),
    noise_multiplier=args.noise_multiplier,
    clip_norm=args.clip_norm,
    delta=args.delta,
    num_draws=args.num_draws,
    seed=args.seed,
    aggregator=aggregator,
    divisor=1.0 if args.divisor is None else args.divisor,
    executor=args.executor or auditing.EXECUTORS[0],
  )


def _named(name: str) -> Any:
  """Imports MODULE:NAME, also from the current folder; calls a plain function."""
  module, _, attribute = name.partition(':')
  if not module or not attribute:
    raise ValueError(f'--aggregator={name} must be MODULE:NAME')
  folder = os.getcwd()
  sys.path.insert(0, folder)
  try:
    named = getattr(importlib.import_module(module), attribute)
    return named() if inspect.isfunction(named) else named
  except Exception as e:  # The module is the user's: it may raise anything.
    raise ValueError(f'--aggregator={name} failed with {type(e).__name__}: {e}') from e
  finally:
    sys.path.remove(folder)


def verdict(args: argparse.Namespace, result: auditing.Audit) -> tuple[int, str] | None:
  """Returns exit status 4 and the failed checks, or None if every check passed."""
  del args
  names = ', '.join(check.name for check in result.failed)
  return (flags.NOT_KEPT, f'the claim does not hold; failed checks: {names}') if names else None


def show(result: auditing.Audit) -> str:
  """Formats the verdict, the figures and all checks."""
  blocks = [tables.table(result.summary), tables.columns(result.rows)]
  if result.failed:
    meanings = [f'- {check.name} ({check.where}): {check.meaning}' for check in result.failed]
    blocks.append('\n'.join(['what the failed checks mean', *meanings]).replace(' ()', ''))
  return '\n\n'.join(blocks)
