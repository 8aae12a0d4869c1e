"""Flags that commands share, and how they show their figures."""

import argparse
import dataclasses
from typing import Any, Sequence

from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.logs import page

# Of these a rounded figure must not promise more than the exact one.
_ROUNDED_UP = frozenset({
    'sensitivity', 'rho', 'epsilon', 'noise_multiplier',
    'rms_error', 'max_error', 'rms_loss', 'max_loss',
})
_ROUNDING = 1e-12

SEPARATIONS = {
    'min': participation.MinSep,
    'fixed': participation.FixedSeparation,
}


def add_separation(parser: argparse.ArgumentParser) -> None:
  """Adds --separation, which says what --min_sep means."""
  parser.add_argument(
      '--separation',
      choices=tuple(SEPARATIONS),
      help='participations at least min_sep apart (default: min), or exactly',
  )


def add_schema(parser: argparse.ArgumentParser, *, required: bool) -> None:
  """Adds --num_rounds, --min_sep and --max_participations."""
  add = parser.add_argument
  add(
      '--num_rounds', type=int, required=required,
      help='n, rounds that consume a row of noise',
  )
  add(
      '--min_sep', type=int,
      help='b: rounds i < j of one device satisfy j − i ≥ b (default: 1)',
  )
  add(
      '--max_participations', type=int,
      help='k, most rounds of one device (default: as many as fit)',
  )


def schema(args: argparse.Namespace) -> participation.MinSep:
  """The schema that the flags describe.

  Raises:
    ValueError: where one is outside its range, or --num_rounds is missing.
  """
  if args.num_rounds is None:
    raise ValueError('--num_rounds is needed')
  cls = SEPARATIONS[getattr(args, 'separation', None) or 'min']
  return cls(
      num_rounds=args.num_rounds,
      min_sep=1 if args.min_sep is None else args.min_sep,
      max_participations=args.max_participations,
  )


def separation(value: participation.MinSep) -> str:
  """The value of --separation that gives such a schema."""
  return next(name for name, cls in SEPARATIONS.items() if type(value) is cls)


def made_for(value: participation.MinSep) -> dict[str, int | str | None]:
  """The flags that describe a schema."""
  return {**dataclasses.asdict(value), 'separation': separation(value)}


def schema_fields(value: participation.MinSep) -> dict[str, int]:
  """A schema as fields of a JSON result, k as many as fit at most."""
  return {
      'num_rounds': value.num_rounds,
      'min_sep': value.min_sep,
      'max_participations': value.participations,
  }


def workload_fields(value: workloads.Workload) -> dict[str, str | float]:
  """A workload as fields of a JSON result: its name, and what is not 0."""
  fields = {k: v for k, v in dataclasses.asdict(value).items() if v}
  return {'workload': value.name, **fields}


def add_strategy(parser: argparse.ArgumentParser) -> None:
  """Adds --strategy."""
  parser.add_argument(
      '--strategy',
      required=True,
      help='strategy file, name in matrices/, or parameter-free family',
  )


def table(result: dict[str, Any]) -> str:
  """One aligned line a field, with six digits of every number."""
  width = max(map(len, result)) + 2
  return '\n'.join(
      f'{name:<{width}}{_cell(name, value)}' for name, value in result.items()
  )


def columns(rows: Sequence[dict[str, Any]]) -> str:
  """One aligned line a row under the names of the fields, numbers right."""
  names = list(rows[0])
  cells = [names] + [[_cell(n, row[n]) for n in names] for row in rows]
  widths = [max(map(len, column)) for column in zip(*cells)]
  left = [isinstance(rows[0][name], str) for name in names]
  return '\n'.join(
      '  '.join(
          f'{cell:<{width}}' if on_left else f'{cell:>{width}}'
          for cell, width, on_left in zip(line, widths, left)
      ).rstrip()
      for line in cells
  )


def _cell(name: str, value: Any) -> str:
  if value is None:
    return 'none'
  if name == 'seconds':
    return f'{value:.2f}'
  if isinstance(value, float) and name in _ROUNDED_UP:
    # What is one rounding error above 10 is 10.
    return page.rounded(value * (1.0 - _ROUNDING), digits=6)
  if isinstance(value, float):
    return f'{value:.6g}'
  return str(value)
