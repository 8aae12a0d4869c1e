"""The `optimize` command: best strategy of a mechanism, as a strategy file."""

import argparse
import dataclasses
import time
from typing import Any

import numpy as np

from fl_dpftrl.commands import flags, output
from fl_dpftrl.mechanisms import base, schemas, workloads
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.mechanisms.search import optimizers, search_problem
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import loss_budgets, sampling
from fl_dpftrl.planning import optimization
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import json_files

EXAMPLE = (
  'fl-dpftrl optimize --mechanism=blt --num_rounds=2052 --min_sep=342'
  ' --max_participations=6 --objective=max --output=blt.json'
)

_RANGE_POINTS = 9  # number of min-seps evaluated over a range
_SIZES = ('num_bands', 'num_buffers')
_BATCHES, _BINS = ('num_examples', 'batch_size'), ('num_bins',)
# Flags that the choice of a strategy at ε sets itself or does not use.
_NOT_SAMPLED = ('min_sep', 'max_participations', 'separation', 'min_sep_range', 'num_bands')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  words = f'one of {", ".join(optimizers.OPTIMIZERS)}, or one of your own (--import)'
  add('--mechanism', required=True, type=_mechanism, metavar='NAME', help=words)
  flags.add_schema(parser, required=False)
  flags.add_loss_budget(parser)
  add(
    '--horizons',
    type=_range,
    metavar='FIRST,LAST',
    help='with --loss_budget, for blt: numbers of rounds after which the error counts; the largest'
    ' ratio to the best loss at one of them is minimised; the file has figures for LAST',
  )
  flags.add(parser, 'objective')
  add(
    '--num_bands',
    type=int,
    help='number of bands; for banded (default: min_sep), banded_toeplitz'
    ' (default: min_sep, or up to num_rounds if that is better), banded_sqrt'
    ' (default: num_rounds), and banded_inverse and banded_inverse_sqrt (default: 8)',
  )
  add(
    '--num_buffers',
    type=int,
    help='number of buffers of blt, 1 to 8; 0 for the fewest within 0.1 %% of'
    ' the best of these (default: 0)',
  )
  flags.add_workload(parser)
  add(
    '--min_sep_range',
    type=_range,
    metavar='LOW,HIGH',
    help='range of min-sep, for blt, over which the largest ratio to the best loss is minimised;'
    ' use instead of --min_sep if only a range is known; figures and file are for LOW',
  )
  add(
    '--epsilon',
    type=float,
    help='upper limit of ε where participation is drawn in secret; chooses the strategy with the'
    ' least noise and needs --delta, and --num_examples and --batch_size for Poisson-sampled'
    ' batches (only banded mechanisms) or --num_bins for secret bins',
  )
  add('--delta', type=float, help='with --epsilon: δ')
  add('--num_examples', type=int, help='with --epsilon: m')
  add('--batch_size', type=float, help='expected number of examples per round; use with --epsilon')
  add('--num_bins', type=int, help='number of secret bins; use with --epsilon')
  add('--output', metavar='FILE.json', help='strategy file to write')


def _mechanism(text: str) -> str:
  """Returns the text; says what to do with a name that has no optimiser."""
  try:
    optimizers.check_family(text)
  except ValueError as e:
    raise argparse.ArgumentTypeError(str(e)) from e
  if optimizers.find_optimizer(text) is None:
    choices = ', '.join(optimizers.OPTIMIZERS)
    raise argparse.ArgumentTypeError(f'{text!r} is none of {choices}; --import your own')
  return text


def _range(text: str) -> tuple[int, int]:
  """Parses LOW,HIGH."""
  try:
    low, high = (int(part) for part in text.split(','))
  except ValueError:
    low, high = 0, 0
  if not 1 <= low < high:
    raise argparse.ArgumentTypeError(
      f'must be two whole numbers, the first at least 1 and the second larger, got {text!r}'
    )
  return low, high


def run(args: argparse.Namespace) -> json_files.Object:
  """Optimises and evaluates a strategy, and writes the file if requested."""
  workload = flags.workload(args)
  optimizer: Any = optimizers.find_optimizer(args.mechanism)
  size = _size(args, optimizer)
  scheme = _scheme(args, optimizer.size)
  budget = _budget(args, scheme)
  schemas = _schemas(args, optimizer, budget)
  if isinstance(scheme, sampling.SecretBins):
    schemas = [dataclasses.replace(schemas[0], min_sep=scheme.num_bins)]
  elif scheme is not None:
    schemas = [dataclasses.replace(schemas[0], max_participations=1)]
  output.check_file('output', args.output, '.json')
  start, shown = time.monotonic(), output.Progress('optimize')

  def optimize(schema: Any, **size: Any) -> base.Strategy:
    return optimization.optimize(
      args.mechanism,
      schema,
      objective=args.objective,
      workload=workload,
      progress=lambda steps, loss: shown.say(f'{steps} steps, loss {loss:.6g}'),
      **size,
    )

  if scheme is not None:
    candidates = [optimize(schema, **size) for schema, size in scheme.problems(optimizer.size)]
    strategy, further = _best(args, scheme, workload, candidates)
  elif budget is not None:
    best = {s: optimize(budget, horizons=(s.num_rounds,) * 2, **size) for s in schemas}
    strategy = optimize(budget, horizons=args.horizons, **size)
    further = _by_horizon(args, budget, strategy, best, workload)
    schemas = schemas[-1:]
  else:
    strategy = optimize(schemas[0] if args.min_sep_range is None else schemas, **size)
    further = _further(args, optimizer, strategy, schemas, workload)
  seconds = time.monotonic() - start
  conditions = {'schema': schemas[0], 'objective': args.objective, 'workload': workload}
  if args.output is None:
    file = files.describe(strategy, **conditions)
  else:
    file = files.save_strategy(args.output, strategy, **conditions)
  return {
    'mechanism': args.mechanism,
    **schemas[0].numbers,
    'separation': schemas[0].separation,
    'objective': args.objective,
    **flags.workload_fields(workload),
    **file.figures,
    **further,
    'memory_copies': strategy.memory_copies(schemas[0].num_rounds),
    'wall_seconds': seconds,
    'output': args.output,
  }


def _budget(
  args: argparse.Namespace, scheme: sampling.Sampled | None
) -> loss_budgets.LossBudget | None:
  """Returns the loss budget of the flags; None without one."""
  budget = flags.loss_budget(args)
  if (budget is None) != (args.horizons is None):
    raise ValueError('--loss_budget and --horizons=FIRST,LAST are needed together')
  if budget is not None and (scheme is not None or args.min_sep_range is not None):
    other = 'epsilon' if scheme is not None else 'min_sep_range'
    raise ValueError(f'--loss_budget and --{other} exclude each other; drop one of them')
  return budget


def _schemas(
  args: argparse.Namespace, optimizer: optimizers.Optimizer, budget: loss_budgets.LossBudget | None
) -> list[schemas.Schema]:
  """Returns the schema, or one per horizon, or per min-sep of the range with LOW first."""
  if budget is not None:
    return budget.horizon_schemas(args.horizons)
  if args.min_sep_range is None:
    return [flags.schema(args)]
  low, high = args.min_sep_range
  flags.exclude(args, ['min_sep'], f'--min_sep_range={low},{high}')
  if optimizer.find_range is None:
    raise ValueError(f'--min_sep_range={low},{high} is not for --mechanism={args.mechanism}')
  grid = np.unique(np.linspace(low, high, _RANGE_POINTS).round().astype(int))
  return [
    flags.schema(argparse.Namespace(**{**vars(args), 'min_sep': min_sep})) for min_sep in grid
  ]


def _further(
  args: argparse.Namespace,
  optimizer: optimizers.Optimizer,
  strategy: base.Strategy,
  schemas: list[schemas.Schema],
  workload: workloads.Workload,
) -> json_files.Object:
  """Returns the losses over a range of min-sep, or the gap to the optimum where it is known."""
  if args.min_sep_range is not None:
    names = ('sensitivity_kind', 'rms_loss', 'max_loss')
    points = []
    for schema in schemas:
      figures = files.describe(strategy, schema=schema, workload=workload).figures
      setting = {'min_sep': schema.min_sep, 'max_participations': schema.participations}
      points.append({**setting, **{name: figures[name] for name in names}})
    return {'min_sep_range': list(args.min_sep_range), 'range': points}
  if optimizer.certificate is None:
    return {}
  gap = optimizer.certificate(
    strategy, search_problem.Problem(schemas[0], args.objective, workload)
  )
  return {} if gap is None else {'optimality_gap': gap}


def _by_horizon(
  args: argparse.Namespace,
  budget: loss_budgets.LossBudget,
  strategy: base.Strategy,
  best: dict[schemas.Schema, base.Strategy],
  workload: workloads.Workload,
) -> json_files.Object:
  """Returns the budget, and by horizon the loss and its ratio to that of the best strategy."""
  points = []
  for schema, other in best.items():
    horizon = search_problem.Problem(schema, args.objective, workload, budget=budget.named)
    loss = horizon.loss(strategy)
    ratio = {'ratio_to_best': loss / horizon.loss(other)}
    points.append({'num_rounds': schema.num_rounds, f'{args.objective}_loss': loss, **ratio})
  return {
    'horizons': list(args.horizons),
    'ratio_to_best': max(point['ratio_to_best'] for point in points),
    'loss_budget': budget.square(strategy),
    'range': points,
  }


def _size(args: argparse.Namespace, optimizer: optimizers.Optimizer) -> dict[str, int]:
  """Returns the size flag that the mechanism takes, and rejects the others."""
  sizes = {name: getattr(args, name) for name in _SIZES if getattr(args, name) is not None}
  for name, value in sizes.items():
    if name != optimizer.size:
      raise ValueError(f'--{name}={value} is not for --mechanism={args.mechanism}')
  return sizes


def _scheme(args: argparse.Namespace, size: str | None) -> sampling.Sampled | None:
  """Returns how participation is drawn, if the strategy is to be chosen at ε."""
  options = [n for n in ('epsilon', 'delta', *_BATCHES, *_BINS) if getattr(args, n) is not None]
  if not options:
    return None
  draws = _BINS if args.num_bins is not None else _BATCHES
  for name in ('epsilon', 'delta', *draws):
    if name not in options:
      raise ValueError(f'--{options[0]}={getattr(args, options[0])} needs --{name}')
  others = _BATCHES if draws is _BINS else ()
  flags.exclude(args, (*_NOT_SAMPLED, *others), f'--epsilon={args.epsilon}')
  if draws is _BATCHES and size != 'num_bands':
    raise ValueError(
      f'--mechanism={args.mechanism} does not go with --batch_size: only banded mechanisms are'
      ' amplified by sampled batches; any is by secret bins (--num_bins)'
    )
  if args.objective != 'rms':
    raise ValueError(f'--epsilon={args.epsilon} needs --objective=rms: it compares RMS errors')
  drawn = {name: getattr(args, name) for name in ('num_rounds', *draws)}
  return sampling.SecretBins(**drawn) if draws is _BINS else sampling.CyclicPoisson(**drawn)


def _best(
  args: argparse.Namespace,
  scheme: sampling.Sampled,
  workload: workloads.Workload,
  candidates: list[base.Strategy],
) -> tuple[base.Strategy, json_files.Object]:
  """Returns the candidate with the least noise at ε, and its noise."""
  strategy, guarantee = accountant.choose(
    candidates, scheme, epsilon=args.epsilon, delta=args.delta, workload=workload
  )
  figures: json_files.Object = {'num_bins': args.num_bins}
  if args.num_bins is None:
    figures = {
      'num_bands': accountant.num_bands(strategy),
      'num_examples': args.num_examples,
      'batch_size': args.batch_size,
    }
  return strategy, {
    **figures,
    'noise_multiplier': guarantee.noise_multiplier,
    'epsilon': guarantee.epsilon(),
    'delta': guarantee.delta,
    'adjacency': guarantee.adjacency,
  }


def show(result: json_files.Object) -> str:
  """Formats the figures and, over a range, a table of losses."""
  figures = {name: value for name, value in result.items() if name != 'range'}
  if 'range' not in result:
    return tables.table(figures)
  for name in ('min_sep_range', 'horizons'):
    if name in result:
      figures[name] = ' to '.join(map(str, result[name]))
  return f'{tables.table(figures)}\n\n{tables.columns(result["range"])}'
