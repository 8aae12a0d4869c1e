"""The `verify` command: checks the evidence of a run."""

import argparse

from fl_dpftrl.commands import flags, output, replay_text
from fl_dpftrl.prove.replaying import evidence, verification
from fl_dpftrl.support.text import messages

EXAMPLE = 'fl-dpftrl verify evidence'


def add_arguments(parser: argparse.ArgumentParser) -> None:
  words = 'evidence that replay --evidence=FOLDER wrote'
  parser.add_argument('folder', metavar='FOLDER', help=words)
  words = 'model to compare with the digest in the evidence'
  parser.add_argument('--model', metavar='FILE', help=words)


def run(args: argparse.Namespace) -> verification.Verification:
  """Verifies the evidence."""
  result = evidence.verify(args.folder, model=args.model, progress=output.Progress('verify').say)
  if result.statement is not None:
    replay_text.say_warnings(result.statement)
  return result


def verdict(args: argparse.Namespace, result: verification.Verification) -> tuple[int, str] | None:
  """Returns the exit status and a line if a check failed."""
  if result.passed:
    return None
  if result.failed == ('guarantee',):
    why = result.checks[-1].found[0]
    return flags.NOT_KEPT, f'the evidence fits, and the guarantee does not hold: {why}'
  return flags.NOT_KEPT, f'the evidence does not fit: {", ".join(result.failed)}'


def show(result: verification.Verification) -> str:
  """Formats each check with its result, and the statement."""
  width = max(len(check.name) for check in result.checks) + 2
  lines = []
  for check in result.checks:
    head = f'{"FAILED" if check.found else "ok":<8}{check.name:<{width}}'
    for index, sentence in enumerate(check.found or (check.detail,)):
      text = messages.one_line(sentence, limit=replay_text.LONGEST)
      lines.append((head if index == 0 else ' ' * len(head)) + text)
  if result.statement:
    lines += ['', replay_text.text(result.statement)]
  words = (
    f'Compare this digest of {evidence.SUMS} with one that was kept elsewhere: nothing in the'
    ' folder shows that all of it was not forged together.'
  )
  return '\n'.join([*lines, '', f'digest  {result.digest}', words])
