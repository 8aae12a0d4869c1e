"""Runs a command that reads files of others in a child of its own, with limits.

The libraries that decode Parquet, CSV and JSON can crash, hang or exhaust memory on files that are
damaged or malicious. The child then ends without a word, and its parent says why.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator

from fl_dpftrl.logs import limits
from fl_dpftrl.support import signals

COMMANDS = ('replay', 'verify')
_PR_SET_PDEATHSIG = 1
_WHY = {
  'SIGXCPU': f'a part of a file took more than {limits.PART_CPU_SECONDS} s of computing; it is'
  ' damaged, or made to take long',
  'SIGKILL': 'it was killed, as happens where memory is short',
}


@contextlib.contextmanager
def within_limits(program: str) -> Iterator[None]:
  """Runs the block in a child with limits; its parent exits as it does, or with status 2.

  The child ends before its interpreter does, in which threads of the libraries may crash. A system
  without forks has no child, and the block no limits.
  """
  if not hasattr(os, 'fork'):
    yield
    return
  sys.stdout.flush()
  sys.stderr.flush()
  # A signal waits until both processes know what to do with it.
  previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals.SIGNALS)
  child = os.fork()
  if child:
    signals.handle(lambda number, frame: _forward(number, child))
  signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
  if not child:
    with contextlib.suppress(AttributeError):  # Linux ends a child with its parent.
      ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    limits.apply()
    child_status = 1
    atexit.register(lambda: _end(child_status))  # After all that is registered later.
    try:
      yield
      child_status = 0
    except SystemExit as end:
      child_status = end.code if isinstance(end.code, int) else int(end.code is not None)
      raise
    return
  status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
  if status < 0:
    name = signal.Signals(-status).name
    why = _WHY.get(name, f'a file crashed what read it ({name}); it is damaged, or made to')
    os.write(2, f'{program}: {why}\n'.encode())
  os._exit(2 if status < 0 else status)


def _end(status: int) -> None:
  with contextlib.suppress(OSError):
    sys.stdout.flush()
    sys.stderr.flush()
  os._exit(status)


def _forward(number: int, child: int) -> None:
  with contextlib.suppress(ProcessLookupError):  # The child has just ended: its status is enough.
    os.kill(child, number)
