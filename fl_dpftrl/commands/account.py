"""The `account` command: guarantee of a strategy, a schema and a noise level, or noise for one."""

import argparse

from fl_dpftrl.commands import flags
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.accounting import tuning
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import loss_budgets, separations
from fl_dpftrl.prove.replaying import statement_parts
from fl_dpftrl.support import tables
from fl_dpftrl.support.files import json_files

EXAMPLE = (
  'fl-dpftrl account --strategy=blt-b400 --noise_multiplier=7.379'
  ' --delta=1e-10 --num_rounds=1280 --min_sep=300 --max_participations=4'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  flags.add(parser, 'strategy', required=True)
  noise = parser.add_mutually_exclusive_group(required=True)
  flags.add(noise, 'noise_multiplier')
  noise.add_argument('--epsilon', type=float, help='upper limit of ε; finds the least noise for it')
  noise.add_argument('--rho', type=float, help='upper limit of ρ (zCDP); finds the least noise')
  flags.add_guarantee(parser)
  parser.add_argument(
    '--num_parameters',
    type=int,
    help='parameters of the model, for releases in whole numbers, as the aggregator makes them in'
    ' process: adds what their rounding costs; without it, of real numbers',
  )
  flags.add_schema(parser, required=False)
  flags.add_loss_budget(parser)
  flags.add_sampling(parser)
  parser.add_argument(
    '--tuning',
    metavar='LAW:MEAN[:MOST]',
    help='ε of the best of a secret random number of such runs too, by the law geometric or'
    ' logarithmic, as in geometric:10',
  )
  flags.add_max_epsilon(parser)


def run(args: argparse.Namespace) -> json_files.Object:
  """Returns the guarantee of the noise, or that of the least noise for a target at the first δ."""
  flags.check_max_epsilon(args)
  law = None if args.tuning is None else tuning.Tuning.parse(args.tuning)
  strategy = files.load_strategy(args.strategy)
  participation = flags.participation(args, strategy)
  if args.num_parameters is not None and participation.is_secret:
    raise ValueError(
      f'--num_parameters={args.num_parameters} is refused with --sampling={args.sampling}: the'
      ' rounding of whole numbers is not bounded for secret draws; leave it out'
    )
  names = ('delta', 'adjacency', 'group_size')
  terms = {name: getattr(args, name) for name in names} | {'num_coordinates': args.num_parameters}
  if args.noise_multiplier is not None:
    noise = {'noise_multiplier': args.noise_multiplier}
    guarantee = accountant.account(strategy, participation, **noise, **terms)
  else:
    target = {'epsilon': args.epsilon, 'rho': args.rho}
    guarantee = accountant.calibrate(strategy, participation, **target, **terms)
  figures = guarantee.to_json()
  curve = {'curve': figures.pop('curve')} if 'curve' in figures else {}
  result = {
    'strategy': args.strategy,
    **_fields(participation, strategy),
    'noise_multiplier': guarantee.noise_multiplier,
    **figures,
    'delta': guarantee.delta,
    'adjacency': guarantee.adjacency,
    'group_size': guarantee.group_size,
  }
  if args.num_parameters is not None:
    added = guarantee.rounding
    lost = None if guarantee.void_reason else added.delta(guarantee.epsilon())
    result |= {'rounding_mu': added.mu, 'rounding_delta': lost}
  result |= curve
  result['assumptions'] = list(guarantee.assumptions)
  if law is not None:
    result['tuned'] = {**law.to_json(guarantee), 'is': law.sentence(guarantee)}
    result['assumptions'] += law.assumptions
  return result


def _fields(participation: Participation, strategy: base.Strategy) -> json_files.Object:
  """Returns the fields of a participation beside a guarantee."""
  if isinstance(participation, loss_budgets.LossBudget):
    return {
      'num_rounds': None,
      'min_sep': participation.min_sep,
      'max_participations': participation.max_participations,
      'loss_budget': participation.square(strategy),
      'max_rounds_of_a_device': participation.most_participations(strategy),
    }
  fields = statement_parts.fields(participation)
  if isinstance(participation, separations.MinSep):
    most = {'max_participations': participation.participations}
    return {**fields, **most, 'separation': participation.separation}
  fields.pop('assumption', None)
  return {'num_rounds': participation.num_rounds, **fields}


def verdict(args: argparse.Namespace, result: json_files.Object) -> tuple[int, str] | None:
  """Returns the exit status and a line if ε is above the budget."""
  return flags.above_budget(args, result.get('tuned', result)['epsilon'])


def show(result: json_files.Object) -> str:
  """Formats the figures, rounded up, the curve of ε and the assumptions."""
  figures = {k: v for k, v in result.items() if k not in ('curve', 'assumptions', 'tuned')}
  blocks = [tables.table(figures), *([result['tuned']['is']] if 'tuned' in result else [])]
  if 'curve' in result:
    blocks.append(tables.columns(result['curve']))
  sentences = [f'- {sentence}' for sentence in result['assumptions']]
  return '\n\n'.join([*blocks, '\n'.join(['assumptions', *sentences])])
