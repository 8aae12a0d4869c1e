"""Ends a run on Ctrl-C or SIGTERM between two steps, never within one.

An exception that a signal handler raises comes up wherever the main thread
happens to be: within a library that logs it, or a destructor that swallows it.
Here a handler notes the signal and does nothing else. The work is done in another
thread, which looks at the note between its steps, and the main thread waits.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

EXIT_STATUS = 130
_POLL_SECONDS = 0.05
# How long a step may go on that was under way, and then its clean-up.
_PATIENCE_SECONDS = 3.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupt:
  """A request that the run should end."""

  def __init__(self):
    self._asked = False
    self._callbacks: list[Callable[[], None]] = []

  @property
  def asked(self) -> bool:
    return self._asked

  def ask(self) -> None:
    """Records the request; safe in a signal handler, as it takes no lock."""
    self._asked = True

  def check(self) -> None:
    """Raises KeyboardInterrupt if an end was requested."""
    if self._asked:
      raise KeyboardInterrupt

  def on_abort(self, callback: Callable[[], None]) -> None:
    """Adds a callback that aborts a long step, for example ends its worker."""
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

  Args:
    work: done in the thread.

  Raises:
    KeyboardInterrupt: once a signal came, whatever work came to. Work may then
      still be under way: leave with `leave`.
    Exception: what work raised.
  """
  interrupt = Interrupt()
  raised: list[BaseException] = []

  def target():
    try:
      work(interrupt)
    except BaseException as error:
      raised.append(error)

  def handle(number, frame):
    del number, frame
    if interrupt.asked:
      os._exit(EXIT_STATUS)
    interrupt.ask()

  before = {
    number: signal.signal(number, handle)
    for number in _SIGNALS
    if signal.getsignal(number) is not signal.SIG_IGN
  }
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
      for number, handler in before.items():
        signal.signal(number, handler)
  if interrupt.asked:  # Also where the signal came as the work ended.
    raise KeyboardInterrupt
  if raised:
    raise raised[0]


def leave() -> None:
  """Ends the process with the status of an interrupted one.

  Threads that are still at work may hold locks that the interpreter's own end
  would wait for; what they wrote is whole on disk at any time.
  """
  sys.stdout.flush()
  sys.stderr.flush()
  os._exit(EXIT_STATUS)


def _wait(thread: threading.Thread) -> None:
  """Waits for a thread in slices, so that a second signal is handled at once."""
  deadline = time.monotonic() + _PATIENCE_SECONDS
  while thread.is_alive() and time.monotonic() < deadline:
    thread.join(_POLL_SECONDS)
