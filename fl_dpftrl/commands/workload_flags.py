"""Flags of a linear workload: prefix sums or momentum, with a learning-rate schedule."""

import argparse

from fl_dpftrl import workloads

_RATES = (('warmup_fraction', 'grows'), ('cooldown_fraction', 'falls'))


def add_arguments(parser: argparse.ArgumentParser, default: str = 'default: prefix') -> None:
  """Adds --workload, --momentum, --warmup_fraction and --cooldown_fraction.

  Args:
    parser: parser of the command.
    default: words on the workload without these flags.
  """
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
  """Returns the workload of the flags.

  Args:
    args: parsed flags.
    default: workload if none of the flags is given.

  Raises:
    ValueError: if a value is out of range, or --momentum is missing or not used.
  """
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
