"""The `verify` command: checks a bundle of a run."""

import argparse

from fl_dpftrl import messages
from fl_dpftrl.bundles import verification
from fl_dpftrl.commands import flags, progress

HELP = 'computes everything in a bundle again, and says what does not fit'

EXAMPLE = 'fl-dpftrl verify bundle'

_LONGEST = 1000  # maximum number of characters of a sentence


def add_arguments(parser: argparse.ArgumentParser) -> None:
  parser.add_argument('folder', metavar='FOLDER', help='bundle that replay --bundle=FOLDER wrote')
  parser.add_argument(
    '--digest',
    metavar='HEX',
    help='digest of the bundle from elsewhere; without one, a consistent forgery of the whole'
    ' bundle cannot be found',
  )


def run(args: argparse.Namespace) -> verification.Verification:
  """Verifies the bundle."""
  return verification.verify(
    args.folder, digest=args.digest, progress=progress.Progress('verify').say
  )


def verdict(args: argparse.Namespace, result: verification.Verification) -> tuple[int, str] | None:
  """Returns the exit status and a line if a check failed."""
  failed = [check.name for check in result.checks if not check.passed]
  return (flags.NOT_KEPT, f'the bundle does not fit: {", ".join(failed)}') if failed else None


def show(result: verification.Verification) -> str:
  """Formats each check with its result."""
  width = max(len(check.name) for check in result.checks) + 2
  lines = []
  for check in result.checks:
    says = check.found or (check.detail,)
    for index, sentence in enumerate(says):
      head = f'{"ok" if check.passed else "FAILED":<8}{check.name:<{width}}'
      text = messages.one_line(sentence, limit=_LONGEST)
      lines.append((head if index == 0 else ' ' * len(head)) + text)
  lines += ['', f'digest  {result.digest}']
  if result.compared:
    lines.append('It was compared with the digest that was given.')
  else:
    lines.append(f'{verification.CAVEAT} --digest=HEX compares it.')
  for name in result.other_releases:
    made = messages.one_line(result.made_with.get(name, 'none'), limit=40)
    lines.append(
      f'{messages.one_line(name, limit=40)} {made} made the bundle, and'
      f' {result.checked_with.get(name, "none")} checked it: last digits may differ.'
    )
  return '\n'.join(lines)
