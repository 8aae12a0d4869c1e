"""The `replay` command: guarantee that a participation log proves."""

import argparse
import fnmatch
import glob
import itertools
import os
import pathlib
import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fl_dpftrl.commands import flags, named_runs, output, replay_text
from fl_dpftrl.logs import id_columns, ledger_format
from fl_dpftrl.prove.replaying import (
  counted,
  evidence,
  opened_runs,
  participation_sentences,
  population_runs,
  replays,
  statements,
  verdicts,
)
from fl_dpftrl.support.files import json_files

if TYPE_CHECKING:
  from fl_dpftrl.prove.auditing import run_audit
  from fl_dpftrl.prove.reports import settings

_WRITTEN = ('report', 'public_report', 'write_counts', 'registry', 'model_card')
_READ = 'those that are read'
EXAMPLE = (
  'fl-dpftrl replay --log=participation.parquet --strategy=blt-b100'
  ' --noise_multiplier=8 --delta=1e-6 --report=privacy.html'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  words = (
    'folders of one or several runs of one population, each with log, strategy.json and claim, or'
    ' the folder of a population with a budget; in place of --log, --strategy and their flags'
  )
  add('runs', nargs='*', metavar='RUN', help=words)
  add(
    '--log',
    action='append',
    metavar='PATH',
    help='log in Parquet or CSV: a file, folder or glob; repeat it for more shards',
  )
  add(
    '--from_counts',
    metavar='FILE',
    help='counts in place of a log: the result of the statement that `fl-dpftrl sql` writes, or'
    ' what --write_counts wrote; needs --num_rounds',
  )
  flags.add(parser, 'strategy')
  words = 'standard deviation of Z over the clip norm (default: as in the log)'
  flags.add(parser, 'noise_multiplier', help=words)
  words = 'number of noise rows used, if the log does not say; that of each of several folders'
  flags.add(parser, 'num_rounds', help=words)
  add(
    '--columns',
    metavar='round=NAME,device_id=NAME',
    help='names of the columns, if they are others',
  )
  add('--first_round', type=int, help='number of the first round in the log (default: 0)')
  add(
    '--missing',
    metavar='MARK,MARK',
    help='texts that are no ids but mark a missing one, each refused; --missing= for none (default:'
    f' {",".join(id_columns.MISSING)})',
  )
  add(
    '--units',
    action='append',
    metavar='FILE',
    help='table of who owns which device, with columns device_id, unit_id and from_round: the'
    ' figures are then those of people, or other units; repeat it for further files, or with'
    ' --sites=disjoint or local for the table of each folder, in their order',
  )
  words = (
    'with several folders: disjoint if every device is in one of them only, such as patients of'
    ' sites; local if each has also numbered its devices by itself, so that one id in two folders'
    ' is of two devices (default: shared, whose losses add up)'
  )
  add('--sites', choices=('shared', 'disjoint', 'local'), help=words)
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
  adjacencies = 'zero_out (default), or replace_one, which doubles the sensitivity'
  flags.add_guarantee(parser, adjacencies, required=False)
  words = (
    'claim to judge, such as 3@1e-8: ε is at most 3 at δ = 1e-8, by what was declared, else by the'
    ' worst case; its δ comes first, and needs no --delta; exit with status 3 if it is not held'
  )
  add('--claim', action='append', metavar='ε@δ', help=words)
  add(
    '--report', metavar='FILE.html', help='privacy report to write, for readers who may see the log'
  )
  add(
    '--public_report',
    metavar='FILE.html',
    help='report to write for publication; of the log it states n, k, b, and whether the'
    ' declared schema holds',
  )
  add(
    '--write_counts',
    metavar='FILE',
    help='.parquet or .csv file to write with the counts of a run, which --from_counts takes; as'
    ' confidential as the log',
  )
  words = (
    'JSON file to write for a registry of deployments, from what may be published, with what the'
    ' operator says, marked as such'
  )
  add('--registry', metavar='FILE.json', help=words)
  words = 'JSON file with what the operator says, such as {"curator": "…"}; see docs/registry.md'
  add('--operator', metavar='FILE.json', help=f'with --registry: {words}')
  words = 'with --registry: model card to write, such as README.md, but not over text of others'
  add('--model_card', metavar='FILE.md', help=words)
  add(
    '--evidence',
    metavar='FOLDER',
    help='folder to write with log, strategy, claim and statement, which `fl-dpftrl verify FOLDER`'
    ' computes again; as confidential as the log',
  )


class Replayed(NamedTuple):
  """The result: a statement, the runs that it is of, and what the operator says of them."""

  statement: statements.Statement
  opened: list[opened_runs.RecordedRun]
  population: population_runs.PopulationRuns | None
  verdict: verdicts.Verdict | None
  facts: dict[str, str]

  def to_json(self) -> json_files.Object:
    """Returns the statement, and the verdict on a claim."""
    judged = {'verdict': self.verdict.to_json()} if self.verdict else {}
    return self.statement.to_json() | judged


def run(args: argparse.Namespace) -> Replayed:
  """Reads and counts the log, and computes guarantees."""
  claimed = _claimed(args)
  if args.evidence is not None:
    evidence.check_folder(pathlib.Path(args.evidence))
    output.check_writable('evidence', args.evidence)
  for name in _WRITTEN:
    output.check_file(name, getattr(args, name))
  facts = _facts(args)
  if args.sites and len(args.runs) < 2:
    raise ValueError(f'--sites={args.sites} is for the folders of several runs')
  options = _options(args, claimed)
  opened, population = named_runs.opened(args)
  _check_outputs(args, opened)
  for opened_run in opened if args.public_report or args.registry else ():
    participation_sentences.check_public(opened_run.recorded, opened_run.claim.participation)
  if args.write_counts:
    if len(opened) != 1 or args.from_counts:
      raise ValueError(f'--write_counts={args.write_counts} is for the log of one run')
    counted.check(args.write_counts, opened[0])
  for opened_run in opened if args.evidence and not population else ():
    evidence.check_run(opened_run)
  result = replays.replay(population or opened, **options)
  replay_text.say_warnings(result)
  judged = claimed and verdicts.verdict(result, claimed)
  return Replayed(result, opened, population, judged, facts)


def _check_outputs(args: argparse.Namespace, opened: Sequence[opened_runs.RecordedRun]) -> None:
  """Raises ValueError for a file to write that is read, is a run's, or that another flag names."""
  read = [args.strategy, args.operator, args.from_counts, *(args.units or ())]
  for log in (shard.path for opened_run in opened for shard in opened_run.log.shards):
    ends = '.parquet', ledger_format.SUFFIX, ledger_format.MARK_SUFFIX
    read += [log, *(pathlib.Path(log).with_suffix(end) for end in ends)]
  taken = {os.path.realpath(path): _READ for path in read if path}
  parts = itertools.product(map(os.path.realpath, args.runs), named_runs.FILES)
  names = [os.path.join(glob.escape(folder), name) for folder, name in parts]
  for flag in _WRITTEN:
    if path := getattr(args, flag):
      real = os.path.realpath(path)
      is_read = any(fnmatch.fnmatchcase(real, name) for name in names)
      other = taken.setdefault(real, _READ if is_read else f'--{flag}')
      if other != f'--{flag}':
        raise ValueError(f'--{flag}={path} must be another file than {other}')


def _claimed(args: argparse.Namespace) -> verdicts.ClaimedEpsilon | None:
  """Returns the claim to judge; ValueError for another spelling, and with no δ at all."""
  if args.claim is not None:
    if len(args.claim) > 1:
      raise ValueError(f'--claim={args.claim[1]} is the second one: replay once for each claim')
    try:
      return verdicts.ClaimedEpsilon.parse(args.claim[0])
    except ValueError as error:
      raise ValueError(f'--{error}') from None
  if not args.delta:
    raise ValueError('--delta is needed, or --claim=ε@δ')
  return None


def _facts(args: argparse.Namespace) -> dict[str, str]:
  """Returns what the operator says, once the files of a registry are checked."""
  for name in ('operator', 'model_card'):
    if getattr(args, name) is not None and not args.registry:
      raise ValueError(f'--{name}={getattr(args, name)} needs --registry')
  if not args.registry:
    return {}
  from fl_dpftrl.prove.reports import registry_entry

  if args.model_card:
    registry_entry.check_card_path(args.model_card)
  return {} if args.operator is None else registry_entry.read_facts(args.operator)


def _options(args: argparse.Namespace, claimed: verdicts.ClaimedEpsilon | None) -> dict[str, Any]:
  """Returns the options of a replay, which evidence repeats; δ of a claim comes first."""
  first = [claimed.delta] if claimed else []
  return {
    'delta': [*first, *(delta for delta in args.delta or () if delta not in first)],
    'adjacency': args.adjacency,
    'group_size': args.group_size,
    'disjoint': args.sites in ('disjoint', 'local'),
    'local_ids': args.sites == 'local',
    'progress': output.Progress('replay').say,
  }


def finish(args: argparse.Namespace, result: Replayed) -> None:
  """Writes the evidence and the reports."""
  statement, opened, population = result[:3]
  if args.write_counts and statement.tally:
    counted.write(args.write_counts, opened[0], statement.tally)
  audit = None
  if args.report or args.public_report or args.registry:
    from fl_dpftrl.prove.auditing import run_audit

    audit = run_audit.shown(args.runs, statement.delta)
  for path, published in ((args.report, False), (args.public_report, True)):
    if path:
      # This import is slow, and other commands do not need it.
      from fl_dpftrl.prove.reports import privacy

      shown = statement.publishable() if published else statement
      privacy.write_report(path, shown, setting=_setting(args, result.verdict, audit))
  model = pathlib.Path(args.runs[-1], 'model.npz') if args.runs else None
  model = model if model and model.exists() else None
  if args.evidence:
    # Its statement is of the files in it, so they are replayed there.
    claim = args.claim[0] if args.claim else None
    options = _options(args, _claimed(args))
    digest = evidence.write_evidence(
      args.evidence, population or opened, model=model, claim=claim, **options
    )
    print(f'fl-dpftrl: digest of {args.evidence}: {digest}', file=sys.stderr)
  if args.registry:
    from fl_dpftrl.prove.reports import registry_entry

    entry = registry_entry.write_entry(
      args.registry, statement, result.facts, model=model, evidence=args.evidence, audit=audit
    )
    if args.model_card:
      registry_entry.write_card(args.model_card, entry, os.path.basename(args.registry))


def verdict(args: argparse.Namespace, replayed: Replayed) -> tuple[int, str] | None:
  """Returns the exit status and a line if the guarantee is void, not kept, or above the claim."""
  result = replayed.statement
  if void := result.void_reason or result.worst_case.void_reason:
    return flags.NOT_KEPT, f'the guarantee is void: {void}'
  planned = result.planned
  if planned and not planned.holds:
    number = result.violations and result.violations.num_devices
    who = number and f', by {number} {result.unit}{"s" * (number > 1)}'
    return flags.NOT_KEPT, f'{planned.broken}{who or ""}'
  judged = replayed.verdict
  return None if judged is None or judged.held else (flags.ABOVE_BUDGET, str(judged))


def _setting(
  args: argparse.Namespace, judged: verdicts.Verdict | None, audit: 'run_audit.RunAudit | None'
) -> 'settings.Setting':
  """Returns what a report says of the run beside its statement."""
  from fl_dpftrl.prove.reports import settings

  words = ['fl-dpftrl', 'replay', *args.runs]
  for name in (*named_runs.OF_ONE_RUN, 'sites', 'claim', 'delta', 'adjacency', 'group_size'):
    values = getattr(args, name)
    values = values if isinstance(values, list) else [values]
    words += [f'--{name}={value}' for value in values if value is not None]
  places = [pathlib.Path(os.path.normpath(p)) for p in args.log or args.runs or [args.from_counts]]
  # A log that is called as that of a run's folder has the name of its folder.
  names = [p.parent.name * (p.name == ledger_format.NAME) or p.name for p in places]
  return settings.Setting(
    run=', '.join(names),
    command=shlex.join(words),
    strategy=args.strategy and os.path.basename(args.strategy),
    canaries=audit,
    claimed=judged.claim if judged else None,
  )


def show(result: Replayed) -> str:
  """Formats the verdict, the guarantees, rounded up, and their assumptions."""
  return replay_text.text(result.statement, result.verdict)
