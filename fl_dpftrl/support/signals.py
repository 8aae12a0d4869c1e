"""Ends a program on Ctrl-C, SIGTERM or SIGHUP with one line and the exit status 130, 143 or 129.

While a program imports its modules it has nothing to clean up, and ends at once. While it works,
the signal is raised as KeyboardInterrupt, so that temporary files and other processes go.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

_HANGUP = [signal.SIGHUP] if hasattr(signal, 'SIGHUP') else []  # Not on every system.
SIGNALS = (signal.SIGINT, signal.SIGTERM, *_HANGUP)
# How long further signals wait for the clean-up, and a lost one for its destructor.
_PATIENCE_SECONDS = 3.0
_AGAIN_SECONDS = 0.01


class Interrupted(KeyboardInterrupt):
  """A signal that ends work, with the exit status that says so."""

  def __init__(self, number: int):
    super().__init__()
    self.status = 128 + number


def end_at_once(line: str) -> None:
  """Makes a signal, unless it is ignored, end this process at once from now on."""

  def end(number: int, frame: Any) -> None:
    del frame
    with contextlib.suppress(OSError):
      os.write(2, f'{line}\n'.encode())
    os._exit(128 + number)

  handle(end)


def handle(handler: Callable[[int, Any], None]) -> dict[int, Any]:
  """Sets the handler of each signal that is not ignored, and returns the ones before."""
  heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
  return {number: signal.signal(number, handler) for number in heard}


def restore(handlers: dict[int, Any]) -> None:
  """Sets the handlers that `handle` returned."""
  for number, handler in handlers.items():
    signal.signal(number, handler)


@contextlib.contextmanager
def hidden_from_children() -> Iterator[None]:
  """Holds Ctrl-C back within the block, and for ever from processes that are started in it.

  A terminal sends Ctrl-C to all of them, and a process that still imports would print a
  traceback. Their parent ends them.
  """
  from multiprocessing import resource_tracker  # Not for a program that starts none.

  resource_tracker.ensure_running()  # Its start would let the signal through again.
  previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
  try:
    yield
  finally:
    signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


@contextlib.contextmanager
def cleaned_up(line: str) -> Iterator[None]:
  """Raises a signal in the block, and ends the process once the block is left.

  What the block raises after a signal counts as its end, since a library may turn one exception
  into another. A signal that is lost, because it came up in a destructor, is raised again.
  Further signals wait for the clean-up, for some seconds.
  """
  first: list[tuple[int, float]] = []

  def interrupt(number: int, frame: Any) -> None:
    del frame
    if not first:
      first.append((number, time.monotonic()))
      raise Interrupted(number)
    if time.monotonic() - first[0][1] > _PATIENCE_SECONDS:
      os._exit(128 + number)

  def interrupt_again(number: int, frame: Any) -> None:
    del number, frame
    raise Interrupted(first[0][0])

  def lost(unraisable: Any) -> None:
    if first and issubclass(unraisable.exc_type, Interrupted):
      signal.setitimer(signal.ITIMER_REAL, _AGAIN_SECONDS)
    else:
      previous_hook(unraisable)

  previous_hook, sys.unraisablehook = sys.unraisablehook, lost
  handlers = {signal.SIGALRM: signal.signal(signal.SIGALRM, interrupt_again), **handle(interrupt)}
  try:
    yield
  except BaseException:
    if not first:
      raise
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    sys.unraisablehook = previous_hook
    if not first:  # Else further signals are not heard until the process has ended.
      restore(handlers)
  if first:
    with contextlib.suppress(OSError):  # A terminal that hung up takes no line.
      print(line, file=sys.stderr)
    raise SystemExit(128 + first[0][0])
