"""Runs commands on mutated files, and judges how they end."""

import collections
import contextlib
import io
import resource
import signal
import traceback
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fl_dpftrl.commands import main

SECONDS = 60
MEMORY = 2 << 30  # bytes, resident, of each process


class Ending(NamedTuple):
  """How a command ended.

  Attributes:
    kind: 'success' or 'refused'; anything else is a defect.
    detail: the line that it was refused with, or what went wrong.
  """

  kind: str
  detail: str = ''

  @property
  def good(self) -> bool:
    return self.kind in ('success', 'refused')


class _TooLong(BaseException):
  """A command that has had its time; nothing catches it on the way."""


def run(arguments: Sequence[str]) -> Ending:
  """Runs `fl-dpftrl` with arguments in this process, which a crash would end."""
  output, errors = io.StringIO(), io.StringIO()
  before = signal.signal(signal.SIGALRM, _stop)
  peaks = _peaks()
  signal.alarm(SECONDS)
  status = 0
  try:
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
      main.main(arguments)
  except SystemExit as e:
    status = e.code or 0
  except _TooLong:
    return Ending('hang', f'over {SECONDS} s')
  except BaseException:
    return Ending('traceback', traceback.format_exc(limit=-4))
  finally:
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
  # Peaks are those of a whole life: only a higher one is this command's.
  own, children = (new if new > old else 0 for old, new in zip(peaks, _peaks()))
  used = max(own - peaks[0], children)
  if used > MEMORY:
    return Ending('memory', f'{used >> 20} MiB')
  if status in (0, 3, 4):
    return Ending('success')
  lines = errors.getvalue().split('\n')[:-1]
  lines = [line for line in lines if 'warning: ' not in line]
  good = status == 2 and len(lines) == 1 and lines[0].isprintable()
  # The line begins with the command's name.
  if not good or len(lines[0]) > 300 + len('fl-dpftrl replay: '):
    return Ending('not one line', f'status {status}: {lines!r:.2000}')
  return Ending('refused', lines[0])


def peak_memory() -> int:
  """Returns the most resident bytes of this process or of any that it ended."""
  return max(_peaks())


def _peaks() -> tuple[int, int]:
  """Returns the most resident bytes, of this process and of those it ended."""
  own, children = (
    resource.getrusage(kind).ru_maxrss << 10
    for kind in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
  )
  return own, children


def summary(endings: Iterable[Ending]) -> str:
  """Returns how many ended in each way."""
  counts = collections.Counter(ending.kind for ending in endings)
  return ', '.join(f'{kind}: {count}' for kind, count in counts.most_common())


def _stop(unused_signal, unused_frame):
  raise _TooLong()
