"""A line on stderr every few seconds of long work."""

import sys
import time

from fl_dpftrl import messages
from fl_dpftrl.comparison import sweep

SECONDS = 5.0


class Progress:
  """Says how far it is, at most once in every `SECONDS`.

  Args:
    command: what the lines start with.
  """

  def __init__(self, command: str):
    self._command = command
    self._start = self._last = time.monotonic()

  def say(self, text: str) -> None:
    """Shows the text, unless something was shown a moment ago."""
    now = time.monotonic()
    if now - self._last >= SECONDS:
      self._last = now
      print(
          messages.one_line(
              f'{self._command}: {now - self._start:.0f} s, {text}'
          ),
          file=sys.stderr, flush=True,
      )


def watch(shown: Progress) -> sweep.Watch:
  """What shows how far a sweep is, and the optimiser within it."""

  def begin(contender, schema):
    where = (
        f'{contender.label} at n={schema.num_rounds}, b={schema.min_sep},'
        f' k={schema.participations}'
    )
    shown.say(where)

    def report(steps: int, loss: float) -> None:
      shown.say(f'{where}: {steps} steps, loss {loss:.6g}')

    return report

  return begin
