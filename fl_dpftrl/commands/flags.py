"""Flags and output formats that several commands share."""

import argparse
import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_dpftrl.mechanisms import base, workload_error, workloads
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import loss_budgets, separations
from fl_dpftrl.participation.rules import sampling as schemes
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import roundings

if TYPE_CHECKING:
  from fl_dpftrl.planning import candidate_sets

NAMED = math.inf
"""Value of --loss_budget without a number, which other flags name."""
SEPARATIONS = {'min': separations.MinSep, 'fixed': separations.FixedSeparation}


# Flags with one meaning in several commands; see `add`.
_DECLARED: dict[str, dict[str, Any]] = {
  'strategy': {'help': 'strategy file, name in matrices/, or parameter-free family'},
  'noise_multiplier': {
    'type': float,
    'help': 'standard deviation of Z over the clip norm, for the strategy as stored in its file',
  },
  'num_rounds': {'type': int, 'help': 'n, number of rounds (each uses one noise row)'},
  'min_sep': {
    'type': int,
    'help': 'b, min-sep: rounds i < j of one device satisfy j − i ≥ b (default: 1)',
  },
  'max_participations': {
    'type': int,
    'help': 'k, maximum rounds per device (default: as many as fit)',
  },
  'separation': {
    'choices': tuple(SEPARATIONS),
    'help': 'min: rounds are at least min_sep apart (default); fixed: exactly min_sep apart',
  },
  'delta': {'type': float, 'required': True, 'help': 'δ'},
  'objective': {
    'choices': workload_error.OBJECTIVES,
    'default': 'max',
    'help': 'loss to minimise (default: max)',
  },
}


def add(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
  """Adds flags that several commands share."""
  for name in names:
    parser.add_argument(f'--{name}', **{**_DECLARED[name], **changes})


def add_several(
  parser: argparse.ArgumentParser, name: str, metavar: str, words: str | None = None, **changes: Any
) -> None:
  """Adds a flag that takes several whole numbers, with the words of the shared flag or others."""
  words = (
    f'{words or _DECLARED[name]["help"]}: one, a list as 50,100,200 or a range as LOW:HIGH:POINTS'
  )
  parser.add_argument(f'--{name}', metavar=metavar, help=words, **{'type': values, **changes})


def add_schema(parser: argparse.ArgumentParser, *, required: bool) -> None:
  """Adds the flags of a participation schema."""
  add(parser, 'num_rounds', required=required)
  add(parser, 'min_sep', 'max_participations', 'separation')


def schema(args: argparse.Namespace, *, may_be_endless: bool = False) -> separations.MinSep:
  """Returns the schema that the flags describe; without --num_rounds, if it may, without an end."""
  is_endless = may_be_endless and None not in (args.min_sep, args.max_participations)
  if args.num_rounds is None and not is_endless:
    further = ', or --min_sep and --max_participations of a run without an end' * may_be_endless
    raise ValueError(f'--num_rounds is needed{further}')
  cls = SEPARATIONS[getattr(args, 'separation', None) or 'min']
  return cls(
    num_rounds=args.num_rounds,
    min_sep=1 if args.min_sep is None else args.min_sep,
    max_participations=args.max_participations,
  )


def add_loss_budget(
  parser: argparse.ArgumentParser,
  words: str = 'a run without an end, in place of --num_rounds: devices take part while their loss'
  ' is within the budget that --min_sep and --max_participations name, or within B² as a number',
) -> None:
  """Adds --loss_budget."""
  parser.add_argument(
    '--loss_budget', nargs='?', const=NAMED, type=float, metavar='SQUARED', help=words
  )


def loss_budget(
  args: argparse.Namespace, excluded: Sequence[str] = ('num_rounds', 'separation', 'sampling')
) -> loss_budgets.LossBudget | None:
  """Returns the loss budget of the flags; None without one, ValueError beside the excluded."""
  if args.loss_budget is None:
    return None
  exclude(args, excluded, '--loss_budget')
  named = {'min_sep': args.min_sep, 'max_participations': args.max_participations}
  if args.loss_budget != NAMED:
    named['squared'] = args.loss_budget
  elif None in named.values():
    raise ValueError('--loss_budget needs --min_sep and --max_participations, or B² as a number')
  return loss_budgets.LossBudget(**named)


def exclude(args: argparse.Namespace, names: Iterable[str], other: str) -> None:
  """Raises ValueError for a flag of these names beside another flag."""
  for name in names:
    value = getattr(args, name, None)
    if value is not None:
      raise ValueError(f'--{name}={value} and {other} exclude each other; drop one of them')


SAMPLING = ('sampling', 'num_examples', 'batch_size', 'num_parts', 'num_bins')


def add_sampling(
  parser: argparse.ArgumentParser,
  words: str = (
    'how batches are sampled, or bins for secret bins; use instead of the participation flags;'
    ' poisson, fixed_size and bins amplify privacy'
  ),
  *,
  is_list: bool = False,
) -> None:
  """Adds --sampling and the flags that describe sampled batches; is_list: of several schemes."""
  add = parser.add_argument
  if is_list:
    add(
      '--sampling', type=_schemes, metavar='SCHEME', help=f'{words}: {", ".join(schemes.SCHEMES)}'
    )
  else:
    add('--sampling', choices=tuple(schemes.SCHEMES), help=words)
  add('--num_examples', type=int, help='with --sampling: m')
  add(
    '--batch_size',
    type=_number,
    help='with --sampling: number of examples per round; for poisson, expected number',
  )
  if not is_list:
    add(
      '--num_parts',
      type=int,
      help='with --sampling: number of parts of the examples that rounds take turns at (default:'
      ' bands of the strategy if amplified, else 1)',
    )
  add('--num_bins', type=int, help='with --sampling=bins: bins of which each device draws one')


def _number(text: str) -> int | float:
  value = float(text)
  return int(value) if value.is_integer() else value


def sampling(
  args: argparse.Namespace, strategy: base.Strategy | None, num_rounds: int
) -> schemes.Scheme | None:
  """Returns the scheme of the flags, by default with a part for each band; None for none."""
  fields = {name: getattr(args, name) for name in SAMPLING[1:] if getattr(args, name) is not None}
  if args.sampling is None:
    for name, value in fields.items():
      raise ValueError(f'--{name}={value} needs --sampling')
    return None
  exclude(args, ('min_sep', 'max_participations', 'separation'), f'--sampling={args.sampling}')
  scheme = schemes.SCHEMES[args.sampling]
  wanted = [field.name for field in dataclasses.fields(scheme)]
  for name in wanted:
    if name in SAMPLING and name not in fields and name != 'num_parts':
      raise ValueError(f'--sampling={args.sampling} needs --{name}')
  for name, value in fields.items():
    if name not in wanted:
      raise ValueError(f'--{name}={value} does not go with --sampling={args.sampling}; drop it')
  if strategy is not None and issubclass(scheme, schemes.Batches):
    from fl_dpftrl.participation import accountant

    fields.setdefault('num_parts', accountant.num_bands(strategy))
  return scheme(num_rounds=num_rounds, **fields)


def _schemes(text: str) -> list[str]:
  """Parses comma-separated names of schemes."""
  for name in names(text):
    if name not in schemes.SCHEMES:
      choices = ', '.join(schemes.SCHEMES)
      raise argparse.ArgumentTypeError(f'{name!r} is none of {choices}')
  return names(text)


def samplings(args: argparse.Namespace, num_rounds: int) -> list[Any]:
  """Returns the schemes of a list of them, each with those of the flags that it needs."""
  flags_of = {
    name: {field.name for field in dataclasses.fields(schemes.SCHEMES[name])} & set(SAMPLING)
    for name in args.sampling or ()
  }
  for name in SAMPLING[1:]:
    value = getattr(args, name, None)
    if value is not None and not any(name in wanted for wanted in flags_of.values()):
      raise ValueError(f'--{name}={value} needs a --sampling that takes it')
  return [
    sampling(
      argparse.Namespace(
        sampling=scheme,
        **{name: getattr(args, name, None) if name in wanted else None for name in SAMPLING[1:]},
      ),
      None,
      num_rounds,
    )
    for scheme, wanted in flags_of.items()
  ]


def participation(args: argparse.Namespace, strategy: base.Strategy) -> Participation:
  """Returns the participation of the flags: a loss budget, draws, or a schema."""
  budget = loss_budget(args)
  if args.sampling is not None and args.num_rounds is None:
    raise ValueError(f'--sampling={args.sampling} needs --num_rounds')
  draws = sampling(args, strategy, args.num_rounds or 0)
  return budget or draws or schema(args, may_be_endless=True)


def add_guarantee(
  parser: argparse.ArgumentParser,
  adjacencies: str = 'zero_out (default), replace_one, which doubles the sensitivity, or'
  ' add_or_remove, which needs --sampling=poisson',
  **changes: Any,
) -> None:
  """Adds --delta, with changes, --adjacency and --group_size."""
  words = 'δ; repeat it for a curve of ε (the figures use the first one)'
  add(parser, 'delta', action='append', **{'help': words, **changes})
  parser.add_argument('--adjacency', default='zero_out', help=adjacencies)
  words = 'number of devices protected together; multiplies the sensitivity'
  parser.add_argument('--group_size', type=int, default=1, help=words)


_RATES = (('warmup_fraction', 'grows'), ('cooldown_fraction', 'falls'))


def add_workload(parser: argparse.ArgumentParser, default: str = 'default: prefix') -> None:
  """Adds --workload, --momentum, --warmup_fraction and --cooldown_fraction."""
  add = parser.add_argument
  add(
    '--workload',
    choices=('prefix', 'momentum'),
    help=f'linear workload of the errors and losses ({default})',
  )
  add('--momentum', type=float, help='β of the momentum workload, below 1')
  for name, what in _RATES:
    add(
      f'--{name}',
      type=float,
      help=f'fraction of the rounds in which the learning rate {what}, for'
      ' either workload (default: 0)',
    )


def workload(
  args: argparse.Namespace, default: workloads.Workload = workloads.Workload()
) -> workloads.Workload:
  """Returns the workload of the flags."""
  rates = {name: getattr(args, name) for name, _ in _RATES if getattr(args, name) is not None}
  if args.workload is None and args.momentum is None and not rates:
    return default
  if args.workload != 'momentum':
    if args.momentum is not None:
      raise ValueError(f'--momentum={args.momentum} needs --workload=momentum')
    return workloads.Workload(**rates)
  if args.momentum is None:
    raise ValueError('--workload=momentum needs --momentum')
  return workloads.Workload(args.momentum, **rates)


def workload_fields(value: workloads.Workload) -> dict[str, str | float]:
  """Returns a workload as JSON fields: its name and its nonzero parameters."""
  fields = {k: v for k, v in dataclasses.asdict(value).items() if v}
  return {'workload': value.name, **fields}


def candidates(flag: str, labels: Sequence[str]) -> 'list[candidate_sets.Candidate]':
  """Returns the candidates that a flag names."""
  # It imports the optimisers, which most commands do not need.
  from fl_dpftrl.planning import candidate_sets

  try:
    return candidate_sets.named(labels)
  except ValueError as e:
    raise ValueError(f'--{flag}: {e}') from e


def names(text: str) -> list[str]:
  """Parses comma-separated names."""
  parts = [name.strip() for name in text.split(',')]
  if not all(parts):
    raise argparse.ArgumentTypeError(f'{text!r} has an empty name')
  return parts


def values(text: str) -> list[int]:
  """Parses ascending whole numbers from a list or a log-spaced range."""
  return _parsed(text, _value, round)


def numbers(text: str) -> list[float]:
  """Parses ascending positive numbers from a list or a log-spaced range, of three digits."""
  return _parsed(text, _positive, lambda value: float(f'{value:.3g}'))


def _parsed(text: str, parse: Callable[[str, str], Any], rounded: Callable[[float], Any]) -> list:
  """Parses ascending numbers from a list or a log-spaced range."""
  low, *rest = text.split(':')
  if not rest:
    parsed = [parse(part, text) for part in text.split(',')]
    if len(set(parsed)) < len(parsed):
      raise argparse.ArgumentTypeError(f'{text!r} has a value twice')
    return sorted(parsed)
  if len(rest) != 2:
    raise argparse.ArgumentTypeError(f'{text!r} is not LOW:HIGH:POINTS')
  low, high, points = parse(low, text), parse(rest[0], text), _value(rest[1], text)
  if not (low < high and points > 1):
    raise argparse.ArgumentTypeError(f'{text!r} needs LOW below HIGH and at least 2 POINTS')
  if points > 1000:
    raise argparse.ArgumentTypeError(f'{text!r} has more than 1000 POINTS')
  return sorted({rounded(value) for value in np.geomspace(low, high, points)})


def _value(text: str, whole: str) -> int:
  if not (text.isascii() and text.isdigit() and int(text) > 0):
    raise argparse.ArgumentTypeError(f'{whole!r} needs whole numbers of at least 1, got {text!r}')
  return int(text)


def _positive(text: str, whole: str) -> float:
  try:
    return checks.positive(number=float(text))
  except ValueError:
    raise argparse.ArgumentTypeError(f'{whole!r} needs positive numbers, got {text!r}') from None


ABOVE_BUDGET, NOT_KEPT = 3, 4
"""Exit status: a guarantee above --max_epsilon; one that is void, or not kept."""


def add_max_epsilon(parser: argparse.ArgumentParser) -> None:
  """Adds --max_epsilon."""
  parser.add_argument(
    '--max_epsilon',
    type=float,
    help='privacy budget: exit with status 3 if ε at the first δ is above it',
  )


def check_max_epsilon(args: argparse.Namespace) -> None:
  """Raises ValueError unless the budget is positive."""
  if args.max_epsilon is not None and not args.max_epsilon > 0.0:
    raise ValueError(f'--max_epsilon={args.max_epsilon} must be positive')


def above_budget(args: argparse.Namespace, epsilon: float | None) -> tuple[int, str] | None:
  """Returns the exit status and a line if ε is above --max_epsilon, beyond rounding."""
  most = args.max_epsilon
  if most is None or (epsilon is not None and epsilon <= most * (1.0 + json_files.ROUNDING)):
    return None
  level = 'no ε' if epsilon is None else f'ε = {roundings.up(epsilon)}'
  return ABOVE_BUDGET, f'{level} is above --max_epsilon={args.max_epsilon:g}'
