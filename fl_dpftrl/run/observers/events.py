"""Observers for machines: a line of JSON an event, and metrics for Prometheus."""

import collections
import contextlib
import json
import math
import os
import pathlib
import stat
import sys
import time
from typing import Any

from fl_dpftrl.run.observers import observer
from fl_dpftrl.support import checks
from fl_dpftrl.support.files import durable

BEGUN, RELEASED, FAILED, REFUSED = 'begun', 'released', 'failed', 'refused'


class _Events(observer.Observer):
  """Base class that makes events of hooks: a round is begun, and then released or failed."""

  def __init__(self, path: str | os.PathLike[str], *, every: int):
    self._path, self._every = pathlib.Path(path), checks.whole(every=every)
    self._begun: tuple[int, float] | None = None

  def begin(self, run, round_index=None):
    if round_index is not None:
      self._begun = round_index, time.monotonic()
      self._record(run, BEGUN, round_index, None, None)

  def released(self, run, round_index, measurements):
    self._record(run, RELEASED, round_index, self._seconds(round_index), None)

  def end(self, run, round_index=None, error=None):
    if round_index is not None:
      seconds = self._seconds(round_index)
      event = REFUSED if seconds is None else FAILED
      self._record(run, event, round_index, seconds, error and type(error).__name__)

  def _seconds(self, round_index: int) -> float | None:
    """Returns how long the round took; None for one that was not begun here."""
    begun, self._begun = self._begun, None
    if begun is None or begun[0] != round_index:
      return None
    return time.monotonic() - begun[1]

  def _status(self, run: Any, event: str, round_index: int) -> dict[str, Any]:
    """Returns the figures of the run after some rounds, and where a round was lost."""
    is_due = event == RELEASED and (round_index + 1) % self._every == 0
    return run.status().to_json() if is_due or event in (FAILED, REFUSED) else {}

  def _record(
    self, run: Any, event: str, round_index: int, seconds: float | None, error: str | None
  ) -> None:
    raise NotImplementedError


class JsonLines(_Events):
  """Appends a line of JSON to a file for each event of a run; for `train` and any other loop.

  A line has `time` (UTC seconds), the identity of the `run`, `event` (begun, released, failed or
  refused), `round`, `seconds` since the round began, the type of the `error`, and the figures of
  `Status`. It has no ids, no measurements and nothing of single clients. After a restart of `train`
  its last round stands twice.

  Several runs may append to one file, as each line is one write at its end; after a line that a
  crash tore, the next is a line of its own. Only the owner may read a file that is made here.
  """

  def __init__(self, path: str | os.PathLike[str], *, every: int = 1):
    """Takes the path of the file; figures of `Status` follow `every` so many released rounds."""
    super().__init__(path, every=every)
    self._has_written = False

  def _record(self, run, event, round_index, seconds, error):
    line = {
      'time': round(time.time(), 3),
      'run': run.identity,
      'event': event,
      'round': round_index,
      **({} if seconds is None else {'seconds': round(seconds, 3)}),
      **({} if error is None else {'error': error}),
      **self._status(run, event, round_index),
    }
    content = (json.dumps(line, allow_nan=False) + '\n').encode()
    if (stream := _standard_stream(self._path)) is not None:
      _write(stream, content)
      return
    handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
      # Later, a line without its end is one that another process is writing.
      start = b'' if self._has_written else _separator(self._path, handle)
      _write(handle, start + content)
      self._has_written = True
    finally:
      os.close(handle)


class OpenMetrics(_Events):
  """Writes the figures of a run to a text file of OpenMetrics, each time as a whole.

  Give a path that ends in .prom, in the folder of node exporter's textfile collector, which must
  be able to read it. The figures have no ids and nothing of single clients. A process begins with
  the figures of the run as it stands; counters start anew.
  """

  def __init__(self, path: str | os.PathLike[str], *, every: int = 1):
    """Takes the path of the file; ε follows `every` so many released rounds."""
    super().__init__(path, every=every)
    self._counts = collections.Counter[str]({RELEASED: 0, FAILED: 0, REFUSED: 0})
    self._gauges: dict[str, float] = {}
    self._is_written = False

  def begin(self, run, round_index=None):
    super().begin(run, round_index)
    if run.identity is not None and not self._is_written:
      self._set_gauges(run.status().to_json())
      self._write(run)

  def _record(self, run, event, round_index, seconds, error):
    self._counts[event] += 1
    if event == RELEASED:
      self._gauges['last_release_timestamp_seconds'] = time.time()
    if seconds is not None:
      self._gauges['last_round_seconds'] = seconds
    self._set_gauges(self._status(run, event, round_index))
    if event != BEGUN:
      self._write(run)

  def _set_gauges(self, status: dict[str, Any]) -> None:
    self._gauges |= {
      name: math.inf if name == 'epsilon' and value is None else value
      for name, value in status.items()
      if isinstance(value, (int, float)) or name == 'epsilon'
    }

  def _write(self, run: Any) -> None:
    label = f'{{run="{run.folder.name.translate(_ESCAPED)}",id="{run.identity}"}}'
    lines = []
    for name in (RELEASED, FAILED, REFUSED):
      lines += [f'# TYPE fl_dpftrl_rounds_{name} counter']
      lines += [f'fl_dpftrl_rounds_{name}_total{label} {self._counts[name]}']
    for name, value in self._gauges.items():
      number = '+Inf' if value == math.inf else repr(value)
      lines += [f'# TYPE fl_dpftrl_{name} gauge', f'fl_dpftrl_{name}{label} {number}']
    durable.write_durably(self._path, '\n'.join([*lines, '# EOF', '']).encode())
    self._is_written = True


_ESCAPED = str.maketrans({'\\': r'\\', '"': r'\"', '\n': r'\n'})


def _standard_stream(path: pathlib.Path) -> int | None:
  """Returns the descriptor of stdout or stderr if it is this file, such as /dev/stdout."""
  for stream in (sys.stdout, sys.stderr):
    with contextlib.suppress(OSError, ValueError, AttributeError):  # It has no descriptor.
      stream.flush()
      if os.path.samestat(os.stat(path), os.fstat(stream.fileno())):
        return stream.fileno()
  return None


def _separator(path: pathlib.Path, handle: int) -> bytes:
  """Returns the end of the last line where a file lacks it."""
  facts = os.fstat(handle)
  if not stat.S_ISREG(facts.st_mode) or not facts.st_size:
    return b''
  with path.open('rb') as file:
    file.seek(-1, os.SEEK_END)
    return b'' if file.read() == b'\n' else b'\n'


def _write(handle: int, content: bytes) -> None:
  """Writes a line at once, unless the disk takes only a part of it."""
  while content:
    content = content[os.write(handle, content) :]
