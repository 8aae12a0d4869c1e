"""The `account` command: guarantee of a strategy, a schema and a noise level."""

import argparse
from collections.abc import Callable

from fl_dpftrl import accounting, catalogue, json_files
from fl_dpftrl.centralized import amplification, sampling
from fl_dpftrl.commands import flags

HELP = 'computes ε and ρ for a strategy, noise multiplier and schema'

EXAMPLE = (
  'fl-dpftrl account --strategy=blt-b400 --noise_multiplier=7.379'
  ' --delta=1e-10 --num_rounds=1280 --min_sep=300 --max_participations=4'
)

_FIGURES = (
  'noise_multiplier',
  'sensitivity',
  'sensitivity_kind',
  'effective_noise_multiplier',
  'rho',
  'mu',
  'epsilon',
  'delta',
  'adjacency',
  'group_size',
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  flags.add(parser, 'strategy', 'noise_multiplier', required=True)
  flags.add_guarantee(parser)
  flags.add_schema(parser, required=True)
  flags.add_sampling(parser)
  flags.add_max_epsilon(parser)


def run(args: argparse.Namespace) -> json_files.Object:
  """Returns the guarantee under the schema or the sampling of the flags."""
  flags.check_max_epsilon(args)
  return guarantee(
    args, accounting.account, amplification.account, noise_multiplier=args.noise_multiplier
  )


def verdict(args: argparse.Namespace, result: json_files.Object) -> tuple[int, str] | None:
  """Returns the exit status and a line if ε is above the budget."""
  return flags.above_budget(args, result['epsilon'])


def guarantee(
  args: argparse.Namespace,
  ordinary: Callable[..., accounting.Guarantee],
  amplified: Callable[..., amplification.AmplifiedGuarantee],
  **noise: float | None,
) -> json_files.Object:
  """Returns the result of the accountant that the flags select, as fields."""
  strategy = catalogue.load_strategy(args.strategy)
  draws = flags.sampling(args, strategy, args.num_rounds)
  noise |= {'delta': args.delta[0], 'adjacency': args.adjacency}
  if isinstance(draws, sampling.Sampled):
    if args.group_size != 1:
      raise ValueError(
        f'--group_size={args.group_size} is refused with --sampling='
        f'{args.sampling}: examples are drawn one by one, and a multiple of'
        ' the sensitivity is no bound for a group; use --group_size=1'
      )
    found = amplified(strategy, draws, **noise)
    figures = {**vars(found), 'sensitivity_kind': 'exact', 'rho': None, 'mu': None, 'group_size': 1}
  else:
    schema = draws.schema if isinstance(draws, sampling.Shuffled) else flags.schema(args)
    found = ordinary(strategy, schema, group_size=args.group_size, **noise)
    figures = {**vars(found), 'mu': found.mu}
  result = {'strategy': args.strategy, **_participation(args, draws, found)}
  result |= {name: figures[name] for name in _FIGURES}
  for delta in args.delta[1:]:
    first = {'delta': found.delta, 'epsilon': found.epsilon}
    result.setdefault('curve', [first]).append({'delta': delta, 'epsilon': found.epsilon_at(delta)})
  result['assumptions'] = list(found.assumptions)
  if isinstance(draws, sampling.Shuffled):
    result['assumptions'].insert(1, draws.assumption)
  return result


def _participation(
  args: argparse.Namespace,
  draws: sampling.Cyclic | None,
  found: accounting.Guarantee | amplification.AmplifiedGuarantee,
) -> json_files.Object:
  """Returns the participation schema or the sampling scheme, as fields."""
  result = {'num_rounds': args.num_rounds}
  if isinstance(found, accounting.Guarantee):
    result |= flags.schema_fields(found.schema)
    result['separation'] = flags.separation(found.schema)
  if draws is not None:
    names = flags.SAMPLING[1:]
    if isinstance(draws, sampling.Sampled):
      names += ('sampling_probability', 'compositions')
    result['sampling'] = args.sampling
    result |= {name: getattr(draws, name) for name in names}
  return result


def show(result: json_files.Object) -> str:
  """Formats the figures, rounded up, the curve of ε and the assumptions."""
  figures = {k: v for k, v in result.items() if k not in ('curve', 'assumptions')}
  tables = [flags.table(figures)]
  if 'curve' in result:
    tables.append(flags.columns(result['curve']))
  sentences = [f'- {sentence}' for sentence in result['assumptions']]
  return '\n\n'.join([*tables, '\n'.join(['assumptions', *sentences])])
