"""The `verify` command: checks a bundle of a run, and writes its public form."""

import argparse
import pathlib
from typing import NamedTuple

from fl_dpftrl.bundles import publishing, verification, writing
from fl_dpftrl.commands import flags, output
from fl_dpftrl.files import json_files
from fl_dpftrl.text import messages

HELP = 'computes everything in a bundle again, and says what does not fit'

EXAMPLE = 'fl-dpftrl verify bundle'

_LONGEST = 1000  # maximum number of characters of a sentence


class Verified(NamedTuple):
  """The result of the command: checks, and the public form if one was written."""

  checked: verification.Verification
  published: publishing.PublicBundle | None = None

  def to_json(self) -> json_files.Object:
    """Returns the checks, and the digest and salt of the public form."""
    result = self.checked.to_json()
    if self.published is not None:
      result['public_bundle'] = self.published._asdict()
    return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
  add = parser.add_argument
  words = 'bundle that replay --bundle=FOLDER or --public_bundle=FOLDER wrote'
  add('folder', metavar='FOLDER', help=words)
  add(
    '--digest',
    metavar='HEX',
    help='digest of the bundle from elsewhere; without one, a consistent forgery of the whole'
    ' bundle cannot be found',
  )
  add(
    '--public_bundle',
    metavar='FOLDER',
    help='folder to write with the public form of a bundle that fits: no log, no digest of it',
  )
  add(
    '--private',
    metavar='FOLDER',
    help='for a public bundle: the bundle with the logs to compare it with; give --salt too',
  )
  add('--salt', metavar='HEX', help='salt of the public bundle, as it was printed when written')


def run(args: argparse.Namespace) -> Verified:
  """Verifies the bundle, and writes its public form if asked to."""
  for one, other in (('private', 'salt'), ('salt', 'private')):
    if getattr(args, one) is not None and getattr(args, other) is None:
      raise ValueError(f'--{one} needs --{other}: a public bundle is compared with both')
  say = output.Progress('verify').say
  if args.public_bundle:
    if args.private is not None:
      raise ValueError('--public_bundle is for a bundle with logs, and --private for a public one')
    writing.check_folder(pathlib.Path(args.public_bundle))
    output.check_writable('public_bundle', args.public_bundle)
  checked = verification.verify(
    args.folder, digest=args.digest, private=args.private, salt=args.salt, progress=say
  )
  failed = {check.name for check in checked.checks if not check.passed}
  # A void guarantee may be published, as the report for publication does.
  if not args.public_bundle or failed - {'guarantee'}:
    return Verified(checked)
  return Verified(
    checked, publishing.write_public_bundle(args.public_bundle, args.folder, progress=say)
  )


def verdict(args: argparse.Namespace, result: Verified) -> tuple[int, str] | None:
  """Returns the exit status and a line if a check failed."""
  failed = [check.name for check in result.checked.checks if not check.passed]
  return (flags.NOT_KEPT, f'the bundle does not fit: {", ".join(failed)}') if failed else None


def show(result: Verified) -> str:
  """Formats each check with its result."""
  checked = result.checked
  width = max(len(check.name) for check in checked.checks) + 2
  lines = []
  for check in checked.checks:
    says = check.found or (check.detail,)
    for index, sentence in enumerate(says):
      head = f'{"ok" if check.passed else "FAILED":<8}{check.name:<{width}}'
      text = messages.one_line(sentence, limit=_LONGEST)
      lines.append((head if index == 0 else ' ' * len(head)) + text)
  lines += ['', f'digest  {checked.digest}']
  if checked.compared:
    lines.append('It was compared with the digest that was given.')
  lines += checked.caveats()
  for name in checked.other_releases:
    made = messages.one_line(checked.made_with.get(name, 'none'), limit=40)
    lines.append(
      f'{messages.one_line(name, limit=40)} {made} made the bundle, and'
      f' {checked.checked_with.get(name, "none")} checked it: last digits may differ.'
    )
  if result.published is not None:
    lines += [
      '',
      f'digest of the public bundle  {result.published.digest}   it may be published',
      f'salt of its commitments      {result.published.salt}   keep it as secret as the log',
    ]
  return '\n'.join(lines)
