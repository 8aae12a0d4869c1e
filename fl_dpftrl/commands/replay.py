"""What a participation log proves of the run that wrote it."""

import argparse
import os
import shlex
import sys
from typing import Any

from fl_dpftrl import catalogue
from fl_dpftrl import participation
from fl_dpftrl.commands import flags
from fl_dpftrl.logs import page
from fl_dpftrl.logs import replay
from fl_dpftrl.logs import report

HELP = 'from a participation log to the guarantee that it proves'

EXAMPLE = (
    'fl-dpftrl replay --log=participation.parquet --strategy=blt-b100'
    ' --noise_multiplier=8 --delta=1e-6 --report=privacy.html'
)

_PARTS = ('worst_case', 'observed', 'declared')


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
      '--log',
      action='append',
      required=True,
      metavar='PATH',
      help='file, folder or glob of a log in Parquet, CSV or JSON lines; may be'
      ' given again for more shards',
  )
  flags.add_strategy(parser)
  add(
      '--noise_multiplier',
      type=float,
      required=True,
      help='standard deviation of Z over the clip norm, for the strategy as'
      ' stored',
  )
  add(
      '--delta',
      type=float,
      action='append',
      required=True,
      help='δ; given again, a curve of ε, and the first one in the figures',
  )
  add(
      '--num_rounds',
      type=int,
      help='rows of noise consumed, where the log does not say',
  )
  add(
      '--declared_min_sep',
      type=int,
      help='min-sep that was announced before the run',
  )
  add(
      '--declared_max_participations',
      type=int,
      help='participations that were announced before the run',
  )
  add(
      '--adjacency',
      default='zero_out',
      help='zero_out (default), or replace_one, which doubles the sensitivity',
  )
  add(
      '--group_size',
      type=int,
      default=1,
      help='devices protected together; multiplies the sensitivity',
  )
  add('--report', metavar='FILE.html', help='write a privacy report there')


def run(args: argparse.Namespace) -> dict[str, Any]:
  """Reads, counts, accounts, and writes the report if one is asked for."""
  if args.report and not os.path.isdir(os.path.dirname(args.report) or '.'):
    raise ValueError(f'--report={args.report}: its folder does not exist')
  strategy = catalogue.load_strategy(args.strategy)
  observed = replay.read_log(args.log, num_rounds=args.num_rounds)
  result = replay.replay(
      observed,
      strategy,
      noise_multiplier=args.noise_multiplier,
      deltas=args.delta,
      declared=_declared(args, observed.num_rounds),
      adjacency=args.adjacency,
      group_size=args.group_size,
  )
  for warning in _warnings(result):
    print(f'fl-dpftrl: warning: {warning}', file=sys.stderr)
  if args.report:
    report.write_report(args.report, result, setting=_setting(args))
  return result


def _declared(
    args: argparse.Namespace, num_rounds: int
) -> participation.MinSep | None:
  if args.declared_min_sep is None and args.declared_max_participations is None:
    return None
  min_sep = args.declared_min_sep
  return participation.MinSep(
      num_rounds=num_rounds,
      min_sep=1 if min_sep is None else min_sep,
      max_participations=args.declared_max_participations,
  )


def _setting(args: argparse.Namespace) -> report.Setting:
  given = [f'--log={path}' for path in args.log]
  given.append(f'--strategy={args.strategy}')
  given.append(f'--noise_multiplier={args.noise_multiplier}')
  given += [f'--delta={delta}' for delta in args.delta]
  given += [
      f'--{name}={getattr(args, name)}'
      for name in (
          'num_rounds',
          'declared_min_sep',
          'declared_max_participations',
          'adjacency',
          'group_size',
      )
      if getattr(args, name) is not None
  ]
  return report.Setting(
      run=', '.join(os.path.basename(os.path.normpath(p)) for p in args.log),
      noise_multiplier=args.noise_multiplier,
      command=shlex.join(['fl-dpftrl', 'replay', *given]),
      strategy=os.path.basename(args.strategy),
  )


def _warnings(result: dict[str, Any]) -> list[str]:
  warnings = list(result['warnings'])
  if result['void_reason']:
    warnings.append(f'THE GUARANTEE IS VOID: {result["void_reason"]}')
  declared = result.get('declared', {'holds': True})
  if not declared['holds']:
    warnings.append(
        f'THE DECLARED SCHEMA DOES NOT HOLD: min-sep {declared["min_sep"]} and'
        f' at most {declared["max_participations"]} participations were'
        f' declared, the log has {result["min_sep"]} and'
        f' {result["max_participations"]}; the declared figures are void'
    )
  return warnings


def show(result: dict[str, Any]) -> str:
  """The figures as a table, rounded up."""
  witness = result['witness']
  closest = (
      f'  (device {witness["device_id"]}, rounds {witness["first_round"]} and'
      f' {witness["second_round"]})'
      if witness
      else '  (no device took part twice)'
  )
  lines = []
  if result['void_reason']:
    lines += [f'THE GUARANTEE IS VOID: {result["void_reason"]}', '']
  lines += [
      f'rounds n            {result["num_rounds"]}',
      f'devices             {result["num_devices"]}',
      f'participations      {result["num_participations"]}',
      f'min-sep b           {result["min_sep"]}{closest}',
      f'most of a device k  {result["max_participations"]}',
      '',
  ]
  parts = [part for part in _PARTS if part in result]
  names = [part.replace('_', ' ') for part in parts]
  if result['void_reason']:
    names = [f'{name}: VOID' for name in names]
  elif not result.get('declared', {'holds': True})['holds']:
    names[-1] = 'declared: VOID'
  rows = [['', *names]]
  for field, label in (
      ('sensitivity', 'sensitivity'),
      ('sensitivity_kind', ''),
      ('effective_noise_multiplier', 'noise / sensitivity'),
      ('rho', 'ρ (zCDP)'),
  ):
    rows.append([label, *(_cell(result[part][field], field) for part in parts)])
  first = [{'delta': result['delta']}]
  for index, point in enumerate(result['worst_case'].get('curve', first)):
    row = [f'ε at δ = {point["delta"]:g}']
    for part in parts:
      curve = result[part].get('curve', [result[part]])
      row.append(_cell(curve[index]['epsilon'], 'epsilon'))
    rows.append(row)
  widths = [max(map(len, column)) + 2 for column in zip(*rows)]
  lines += [
      ''.join(f'{cell:<{w}}' for cell, w in zip(row, widths)).rstrip()
      for row in rows
  ]
  lines += ['', 'if', *(f'- {s}' for s in result['assumptions'])]
  return '\n'.join(lines)


def _cell(value: float | str | None, field: str) -> str:
  if value is None:
    return 'none'
  if isinstance(value, str):
    return value.replace('_', ' ')
  return page.rounded(value, up=field != 'effective_noise_multiplier')
