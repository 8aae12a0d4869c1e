"""Ends a run on Ctrl-C, SIGTERM or SIGHUP between two steps, never within one.

An exception that a signal handler raises comes up wherever the main thread
happens to be: within a library that logs it, or a destructor that swallows it.
Here a handler notes the signal and does nothing else. The work is done in another
thread, which looks at the note between its steps, and the main thread waits.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from fl_dpftrl.support import signals

_POLL_SECONDS = 0.05
# How long a step may go on that was under way, and then its clean-up.
_PATIENCE_SECONDS = 3.0


class Interrupt:
  """A request that the run should end."""

  def __init__(self):
    self._number: int | None = None
    self._callbacks: list[Callable[[], None]] = []

  @property
  def asked(self) -> bool:
    return self._number is not None

  def ask(self, number: int) -> None:
    """Records the request by a signal; safe in its handler, as it takes no lock."""
    self._number = number

  def check(self) -> None:
    """Raises Interrupted if an end was requested."""
    if self._number is not None:
      raise signals.Interrupted(self._number)

  def on_abort(self, callback: Callable[[], None]) -> None:
    """Adds a callback that aborts a long step, for example ends its actors."""
    self._callbacks.append(callback)

  def abort(self) -> None:
    for callback in self._callbacks:
      callback()


def run(work: Callable[[Interrupt], None]) -> None:
  """Does work in a thread of its own, which signals cannot tear.

  The first signal makes work end at its next look at the note. A step that does
  not get there within seconds is aborted, and left where that does not end it.
  The second signal ends the process at once. A signal that was ignored when the
  process started, as in the background of a shell script, stays ignored.

  Raises:
    Interrupted: once a signal came, whatever work came to. Work may then still be
      under way: leave with `leave`.
  """
  interrupt = Interrupt()
  raised: list[BaseException] = []

  def target():
    try:
      work(interrupt)
    except BaseException as error:
      raised.append(error)

  def handle(number: int, frame: Any) -> None:
    del frame
    if interrupt.asked:
      os._exit(signals.Interrupted(number).status)
    interrupt.ask(number)

  before = signals.handle(handle)
  try:
    thread = threading.Thread(target=target, name='run', daemon=True)
    thread.start()
    while thread.is_alive() and not interrupt.asked:
      thread.join(_POLL_SECONDS)
    if interrupt.asked:
      _wait(thread)
      if thread.is_alive():
        interrupt.abort()
        _wait(thread)
  finally:
    if not interrupt.asked:  # Else the second signal still ends all at once.
      signals.restore(before)
  interrupt.check()  # Also where the signal came as the work ended.
  if raised:
    raise raised[0]


def leave(status: int) -> NoReturn:
  """Ends the process at once.

  Threads that are still at work may hold locks that the interpreter's own end
  would wait for; what they wrote is whole on disk at any time.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


def _wait(thread: threading.Thread) -> None:
  """Waits for a thread in slices, so that a second signal is handled at once."""
  deadline = time.monotonic() + _PATIENCE_SECONDS
  while thread.is_alive() and time.monotonic() < deadline:
    thread.join(_POLL_SECONDS)
