"""A line on stderr every few seconds of long work."""

import sys
import time

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
          f'{self._command}: {now - self._start:.0f} s, {text}',
          file=sys.stderr, flush=True,
      )
