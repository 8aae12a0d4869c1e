"""Entry point of the command line: fl-dpftrl COMMAND --flag=value …

It imports nothing of weight, so that a signal finds the program ready from the start.
"""

import contextlib
import sys
from collections.abc import Sequence

from fl_dpftrl.support import signals
from fl_dpftrl.support.text import streams


def main(argv: Sequence[str] | None = None) -> None:
  """Runs one command; on bad input prints one line and exits with status 2.

  Args:
    argv: name of the command and its flags, which run as a part of this program; None for those
      of the program itself, which a signal then ends in one line.
  """
  if argv is None:
    signals.end_at_once('fl-dpftrl: interrupted')
    streams.prepare()
  from fl_dpftrl.commands import dispatch
  from fl_dpftrl.logs import supervision

  if argv is not None:
    dispatch.run(argv)
    return
  with contextlib.ExitStack() as stack:
    if sys.argv[1:] and sys.argv[1] in supervision.COMMANDS:
      stack.enter_context(supervision.within_limits(f'fl-dpftrl {sys.argv[1]}'))
    dispatch.run(sys.argv[1:], signals.cleaned_up)


if __name__ == '__main__':
  main()
