"""The `audit` command: tests what a mechanism or a run releases against its claim."""

import argparse

from fl_dpftrl.commands import flags, output
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.prove import auditing
from fl_dpftrl.prove.auditing import run_audit
from fl_dpftrl.support import tables

EXAMPLE = (
  'fl-dpftrl audit --strategy=blt-b400 --noise_multiplier=2 --delta=1e-6'
  ' --num_rounds=32 --min_sep=8 --seed=1'
)

_DEFAULTS = {'clip_norm': 1.0, 'num_draws': 50_000}

Result = auditing.Audit | run_audit.RunAudit


def add_arguments(parser: argparse.ArgumentParser) -> None:
  words = 'folder of a run with canaries, in place of --strategy and its flags'
  parser.add_argument('run', nargs='?', metavar='RUN', help=words)
  flags.add(parser, 'strategy')
  words = 'claimed standard deviation of Z over the clip norm'
  flags.add(parser, 'noise_multiplier', help=words)
  flags.add(parser, 'delta')
  add = parser.add_argument
  add('--clip_norm', type=float, help='claimed clip norm (default: 1)')
  flags.add_schema(parser, required=False)
  add('--num_draws', type=int, help='noise samples per round (default: 50000)')
  add('--seed', type=int, help='number that makes the audit repeatable; default: fresh randomness')
  parser.set_defaults(**_DEFAULTS)


def run(args: argparse.Namespace) -> Result:
  """Runs the audit of the flags, or of a run."""
  needed = dict.fromkeys(('strategy', 'noise_multiplier', 'num_rounds'))
  others = dict.fromkeys(('min_sep', 'max_participations', 'separation', 'seed'))
  for name, default in {**needed, **others, **_DEFAULTS}.items():
    if args.run and getattr(args, name) != default:
      raise ValueError(f'--{name} does not go with {args.run}: the folder of a run states it')
    if not args.run and name in needed and getattr(args, name) is None:
      raise ValueError(f'--{name} is needed, or the folder of a run with canaries')
  if args.run:
    return run_audit.audit_run(args.run, delta=args.delta)
  return auditing.audit(
    files.load_strategy(args.strategy),
    flags.schema(args),
    noise_multiplier=args.noise_multiplier,
    clip_norm=args.clip_norm,
    delta=args.delta,
    num_draws=args.num_draws,
    seed=args.seed,
    progress=output.Progress('audit').say,
  )


def verdict(args: argparse.Namespace, result: Result) -> tuple[int, str] | None:
  """Returns exit status 4 and what does not hold, or None if every check passed."""
  del args
  if result.names:
    return flags.NOT_KEPT, f'the claim does not hold; failed checks: {result.names}'
  if reason := getattr(result, 'void_reason', None):
    return flags.NOT_KEPT, f'the run is void: {reason}'
  return None


def show(result: Result) -> str:
  """Formats the verdict, the figures and all checks."""
  blocks = [tables.table(result.summary), tables.columns(result.rows)]
  if result.failed:
    meanings = [f'- {check.name} ({check.where}): {check.meaning}' for check in result.failed]
    blocks.append('\n'.join(['what the failed checks mean', *meanings]).replace(' ()', ''))
  blocks += [f'hint: {hint}' for hint in getattr(result, 'hints', ())]
  return '\n\n'.join(blocks)
