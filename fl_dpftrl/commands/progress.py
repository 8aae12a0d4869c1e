"""Progress lines on stderr for long work."""

import sys
import time
from typing import TYPE_CHECKING

from fl_dpftrl import messages

if TYPE_CHECKING:
  from fl_dpftrl.comparison import sweep

SECONDS = 5.0


class Progress:
  """Progress reporter that prints at most one line per `SECONDS`.

  Args:
    command: prefix of the lines.
  """

  def __init__(self, command: str):
    self._command = command
    self._start = self._last = time.monotonic()

  def say(self, text: str) -> None:
    """Prints the text, unless another line was printed just before."""
    now = time.monotonic()
    if now - self._last >= SECONDS:
      self._last = now
      print(
        messages.one_line(f'{self._command}: {now - self._start:.0f} s, {text}'),
        file=sys.stderr,
        flush=True,
      )


def watch(shown: Progress) -> 'sweep.Watch':
  """Returns callbacks that show the progress of a sweep and its optimisers."""

  def begin(contender, schema):
    where = (
      f'{contender.label} at n={schema.num_rounds}, b={schema.min_sep}, k={schema.participations}'
    )
    shown.say(where)

    def report(steps: int, loss: float) -> None:
      shown.say(f'{where}: {steps} steps, loss {loss:.6g}')

    return report

  return begin
