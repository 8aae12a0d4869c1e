"""Flags for what a report says about a run beside its figures."""

import argparse
from collections.abc import Sequence
from typing import Any

from fl_dpftrl.logs import description, noise_record
from fl_dpftrl.replaying import runs

_NAMES = ('title', 'date', 'unit')


def add(parser: argparse.ArgumentParser) -> None:
  """Adds the flags."""
  parser.add_argument('--title', help='title of the report')
  parser.add_argument(
    '--date',
    metavar='YYYY-MM-DD',
    help='date that the report bears (default: that of the log, or none; never that of the clock,'
    ' so that the same input gives the same page)',
  )
  parser.add_argument(
    '--unit', help="unit of privacy: what one device id stands for, such as 'a phone'"
  )
  parser.add_argument('--clip_norm', type=float, help='L2 bound on an update, if the log lacks it')


def check(args: argparse.Namespace) -> None:
  """Raises ValueError for a flag that is malformed, or is of no use."""
  try:
    stated(args)
  except ValueError as error:
    raise ValueError(f'--{error}') from None
  if args.clip_norm is not None and not 0.0 < args.clip_norm < float('inf'):
    raise ValueError(f'--clip_norm={args.clip_norm} must be positive and finite')
  for name in (*_NAMES, 'clip_norm'):
    value = getattr(args, name)
    if value is not None and not (args.report or args.public_report):
      raise ValueError(f'--{name}={value} is for a report: give --report or --public_report')


def check_log(args: argparse.Namespace, opened: Sequence[runs.Run]) -> None:
  """Raises ValueError if a log states another clip norm, or a malformed description."""
  for run in opened:
    recorded = noise_record.read(run.log.metadata).clip_norm
    if args.clip_norm is not None and recorded not in (None, args.clip_norm):
      raise ValueError(
        f'--clip_norm={args.clip_norm} differs from {recorded}, which the log states'
      )
    if args.report:
      description.read(run.log.metadata)


def stated(args: argparse.Namespace) -> description.Description:
  """Returns the description that the flags give."""
  return description.Description(**{name: getattr(args, name) for name in _NAMES})


def words(
  args: argparse.Namespace, opened: Sequence[runs.Run], *, published: bool
) -> dict[str, Any]:
  """Returns the description and clip norm as attributes of a `Setting`.

  What the flags leave out is that of the log of a single run. Text of a log is not published,
  since nobody has checked it.
  """
  own = stated(args)
  if len(opened) == 1 and not published:
    own = own.over(description.read(opened[0].log.metadata))
  fields = {**vars(own), 'clip_norm': args.clip_norm}
  return {name: value for name, value in fields.items() if value is not None}
