"""The `replay` command: guarantee that a participation log proves."""

import argparse
import dataclasses
import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from fl_dpftrl.commands import flags, output, replay_text, report_flags
from fl_dpftrl.files import json_files
from fl_dpftrl.replaying import publication, replay, runs
from fl_dpftrl.replaying import statement as statement_lib
from fl_dpftrl.text import messages

if TYPE_CHECKING:
  from fl_dpftrl.reports import setting as setting_lib

HELP = 'computes the guarantee of a finished run from its participation log'

EXAMPLE = (
  'fl-dpftrl replay --log=participation.parquet --strategy=blt-b100'
  ' --noise_multiplier=8 --delta=1e-6 --report=privacy.html'
)

_NOT_PUBLIC = (
  '--public_report leaves out the amplified guarantee of secret draws, because'
  ' it states their min-sep and maximum participations'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  add(
    '--log',
    action='append',
    metavar='PATH',
    help='log in Parquet, CSV, TSV or JSON lines (.gz too): a file, folder or glob; repeat it for'
    ' more shards',
  )
  flags.add(parser, 'strategy')
  words = 'standard deviation of Z over the clip norm (default: as in the log)'
  flags.add(parser, 'noise_multiplier', help=words)
  add(
    '--runs',
    metavar='FILE.json',
    help='several runs of one population; use instead of --log, --strategy and'
    ' their flags: {"runs": [{"log": "a.parquet", "strategy": "blt-b400",'
    ' "noise_multiplier": 8}, ...]}',
  )
  words = 'number of noise rows used, if the log does not say'
  flags.add(parser, 'num_rounds', help=words)
  add(
    '--columns',
    metavar='round=NAME,device_id=NAME',
    help='names of the columns, if they are others; device_id=hex(NAME) is a column of bytes',
  )
  add('--first_round', type=int, help='number of the first round in the log (default: 0)')
  words = (
    'rounds that were declared before the run, of which it may have had fewer (default: as the log'
    ' recorded them before round 0)'
  )
  add('--declared_num_rounds', type=int, help=words)
  words = 'with --declared_num_rounds: declared min-sep (default: 1)'
  add('--declared_min_sep', type=int, help=words)
  words = 'with --declared_num_rounds: declared maximum participations (default: as many as fit)'
  add('--declared_max_participations', type=int, help=words)
  flags.add_sampling(
    parser,
    'for centralized training: declared sampling scheme of the batches; its'
    ' guarantee is computed unless the log contradicts it; poisson and'
    ' fixed_size amplify privacy',
  )
  flags.add_guarantee(parser, 'zero_out (default), or replace_one, which doubles the sensitivity')
  flags.add_max_epsilon(parser)
  add('--report_goal', type=int, help='declared report goal; counts the rounds with fewer devices')
  add(
    '--report', metavar='FILE.html', help='privacy report to write, for readers who may see the log'
  )
  add(
    '--public_report',
    metavar='FILE.html',
    help='report to write for publication; of the log it states n, k, b, and whether the'
    ' declared schema holds',
  )
  report_flags.add(parser)
  add(
    '--bundle',
    metavar='FOLDER',
    help='folder to write with log, strategy, parameters and statement, which `fl-dpftrl verify'
    ' FOLDER` computes again; as confidential as the log',
  )
  add(
    '--public_bundle',
    metavar='FOLDER',
    help='with --bundle: folder to write with what may be published of it, and commitments to the'
    ' rest',
  )


# Flags of a single run; a file of runs states them for each of its runs.
_OF_ONE_RUN = (
  'log',
  'strategy',
  'noise_multiplier',
  'num_rounds',
  'columns',
  'first_round',
  'declared_num_rounds',
  'declared_min_sep',
  'declared_max_participations',
  *flags.SAMPLING,
)


class Replayed(NamedTuple):
  """The result of the command: a statement, and the runs that it is of."""

  statement: statement_lib.Statement
  opened: list[runs.Run]

  def to_json(self) -> json_files.Object:
    """Returns the statement."""
    return self.statement.to_json()


def run(args: argparse.Namespace) -> Replayed:
  """Reads and counts the log, and computes guarantees."""
  flags.check_max_epsilon(args)
  report_flags.check(args)
  output.check_file('report', args.report)
  output.check_file('public_report', args.public_report)
  if args.report and args.report == args.public_report:
    raise ValueError(f'--public_report={args.public_report} must be another file than --report')
  if args.public_bundle and not args.bundle:
    raise ValueError('--public_bundle is the public form of a bundle: give --bundle too')
  if args.bundle:
    from fl_dpftrl.bundles import writing
  for name in ('bundle', 'public_bundle'):
    if folder := getattr(args, name):
      writing.check_folder(pathlib.Path(folder))
      output.check_writable(name, folder)
  opened = _runs(args)
  for one in opened if args.bundle else ():
    writing.check_run(one)
  report_flags.check_log(args, opened)
  result = replay.replay(opened, **_options(args))
  for warning in _warnings(result):
    print(
      messages.one_line(f'fl-dpftrl: warning: {warning}', limit=replay_text.LONGEST),
      file=sys.stderr,
    )
  if args.public_report or args.public_bundle:
    result = publication.committed(result)
  return Replayed(result, opened)


def _options(args: argparse.Namespace) -> dict[str, Any]:
  """Returns the options of a replay, which a bundle repeats."""
  return {
    'deltas': args.delta,
    'adjacency': args.adjacency,
    'group_size': args.group_size,
    'report_goal': args.report_goal,
    'progress': output.Progress('replay').say,
  }


def finish(args: argparse.Namespace, result: Replayed) -> None:
  """Writes the reports and the bundles."""
  statement, opened = result
  if args.bundle:
    _write_bundle(args, opened, statement.commitment)
  if args.public_report and statement.drawn is not None and statement.drawn.is_amplified:
    print(f'fl-dpftrl: warning: {_NOT_PUBLIC}', file=sys.stderr)
  for path, published in ((args.report, False), (args.public_report, True)):
    if path:
      # This import is slow, and other commands do not need it.
      from fl_dpftrl.reports import privacy

      words = report_flags.words(args, opened, published=published)
      setting = dataclasses.replace(_setting(args, statement), **words)
      shown = publication.publishable(statement) if published else statement
      privacy.write_report(path, shown, setting=setting)


def _write_bundle(
  args: argparse.Namespace, opened: list[runs.Run], commitment: statement_lib.Commitment | None
) -> None:
  from fl_dpftrl.bundles import publishing, writing

  # The statement in the bundle is of the files in it, so they are replayed there.
  options = _options(args)
  bundle = writing.write_bundle(args.bundle, opened, **options)
  print(f'fl-dpftrl: digest of {args.bundle}: {bundle.digest}', file=sys.stderr)
  if args.public_bundle:
    public = publishing.write_public_bundle(
      args.public_bundle,
      args.bundle,
      salt=commitment.salt if commitment else None,
      progress=options['progress'],
    )
    print(f'fl-dpftrl: digest of {args.public_bundle}: {public.digest}', file=sys.stderr)


def verdict(args: argparse.Namespace, replayed: Replayed) -> tuple[int, str] | None:
  """Returns the exit status and a line if the guarantee is void, not kept, or above the budget.

  The budget is compared with the guarantee of the sampling scheme, else of the declared schema,
  else of the worst case.
  """
  result = replayed.statement
  if result.void_reason:
    return flags.NOT_KEPT, f'the guarantee is void: {result.void_reason}'
  if result.worst_case.void_reason:
    return flags.NOT_KEPT, f'the guarantee is void: {result.worst_case.void_reason}'
  decisive = result.parts()[-1] if result.declared or result.drawn else result.parts()[0]
  if result.declared is not None and not result.declared.holds:
    number = result.violations.num_devices if result.violations else 0
    who = '1 device' if number == 1 else f'{number} devices'
    return flags.NOT_KEPT, f'the declared schema was not kept, by {who}'
  if result.drawn is not None and not result.drawn.holds:
    return flags.NOT_KEPT, f'the log contradicts --sampling={result.drawn.name}'
  return flags.above_budget(args, decisive.guarantee.epsilon())


def _runs(args: argparse.Namespace) -> list[runs.Run]:
  given = [name for name in _OF_ONE_RUN if getattr(args, name) not in (None, [])]
  if args.runs:
    if given and given[0] in flags.SAMPLING:
      raise ValueError(
        f'--{given[0]} does not go with --runs: guarantees of sampled batches'
        ' are not composed over runs; replay each run alone'
      )
    if given:
      raise ValueError(f'--{given[0]} does not go with --runs: the file states it for each run')
    return runs.read(args.runs)
  for name in ('log', 'strategy'):
    if name not in given:
      raise ValueError(f'--{name} is needed, or --runs')
  run = runs.open_run(
    args.log,
    args.strategy,
    noise_multiplier=args.noise_multiplier,
    num_rounds=args.num_rounds,
    declared_num_rounds=args.declared_num_rounds,
    declared_min_sep=args.declared_min_sep,
    declared_max_participations=args.declared_max_participations,
    columns=args.columns,
    first_round=args.first_round or 0,
  )
  draws = flags.sampling(args, run.noise.strategy, run.log.num_rounds)
  return [dataclasses.replace(run, sampling=draws)]


def _setting(args: argparse.Namespace, result: statement_lib.Statement) -> 'setting_lib.Setting':
  from fl_dpftrl.reports import setting as setting_lib

  given: list[tuple[str, Any]] = []
  for name in ('runs', *_OF_ONE_RUN, 'delta', 'adjacency', 'group_size', 'report_goal'):
    values = getattr(args, name)
    for value in values if isinstance(values, list) else [values]:
      given.append((name, value))
  names = args.log or [file.name for file in result.log]
  return setting_lib.Setting(
    run=', '.join(os.path.basename(os.path.normpath(p)) for p in names),
    noise_multiplier=result.noise_multiplier,
    command=flags.command_line('replay', given),
    strategy=args.strategy and os.path.basename(args.strategy),
    report_goal=args.report_goal,
  )


def _warnings(result: statement_lib.Statement) -> list[str]:
  warnings = list(result.warnings)
  devices = result.counted.num_devices if result.counted else 0
  if devices and result.delta * devices >= 1.0:
    warnings.append(
      f'--delta={result.delta:g} is not below 1 / {devices}, one over the number of devices: such'
      ' a δ allows all data of a device to be revealed; give a far smaller one'
    )
  names = [tuple(file.sha256 for file in run.log or ()) for run in result.runs]
  for place, files in enumerate(names):
    if files and files in names[:place]:
      warnings.append(
        f'the log of run {place + 1} is that of run {names.index(files) + 1}, byte for byte;'
        ' if another run was meant, its loss is missing'
      )
  if result.void_reason:
    warnings.append(f'THE GUARANTEE IS VOID: {result.void_reason}')
  declared, drawn = result.declared, result.drawn
  if declared is not None and not declared.holds:
    difference = (
      'not every run kept to its own, see the assumptions'
      if result.several
      else f'at least {declared.min_sep} rounds apart and at most {declared.max_participations}'
      f' participations were allowed, the log has {result.min_sep} and'
      f' {result.max_participations}'
    )
    warnings.append(
      f'THE DECLARED SCHEMA DOES NOT HOLD: {difference}; the declared figures are void'
    )
  if drawn is not None and not drawn.holds:
    warnings.append(
      f'THE LOG CONTRADICTS --sampling={drawn.name}, so nothing is'
      f' guaranteed under {drawn.part}: {drawn.reason}'
    )
  return warnings


def show(result: Replayed) -> str:
  """Formats the guarantees, rounded up, and their assumptions."""
  return replay_text.text(result.statement)
