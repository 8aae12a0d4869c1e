"""Observers for machines: a line of JSON an event, and metrics for Prometheus."""

import collections
import json
import math
import os
import pathlib
import time
from typing import Any

from fl_dpftrl import checks
from fl_dpftrl.files import durable
from fl_dpftrl.observers import observer

BEGUN, RELEASED, FAILED, REFUSED = 'begun', 'released', 'failed', 'refused'
_LONGEST = 1 << 16  # bytes of a line


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

  A line has `time` (UTC seconds), `event` (begun, released, failed or refused), `round`, `seconds`
  since the round began, the type of the `error`, and the figures of `Status`. It has no ids,
  no measurements and nothing of single clients. After a restart of `train` its last round stands
  twice.

  Only the owner may read a file that is made here; a line that a crash tore is cut off.
  """

  def __init__(self, path: str | os.PathLike[str], *, every: int = 1):
    """Takes the path of the file; figures of `Status` follow `every` so many released rounds."""
    super().__init__(path, every=every)

  def _record(self, run, event, round_index, seconds, error):
    line = {
      'time': round(time.time(), 3),
      'event': event,
      'round': round_index,
      **({} if seconds is None else {'seconds': round(seconds, 3)}),
      **({} if error is None else {'error': error}),
      **self._status(run, event, round_index),
    }
    content = (json.dumps(line, allow_nan=False) + '\n').encode()
    handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(handle, 'r+b') as file:
      size = file.seek(0, os.SEEK_END)
      start = file.seek(max(0, size - _LONGEST))
      file.truncate(start + file.read().rfind(b'\n') + 1)
      file.seek(0, os.SEEK_END)
      file.write(content)


class OpenMetrics(_Events):
  """Writes the figures of a run to a text file of OpenMetrics, each time as a whole.

  Give a path that ends in .prom, in the folder of node exporter's textfile collector, which must
  be able to read it. The figures have no ids and nothing of single clients. Counters start anew
  with the process.
  """

  def __init__(self, path: str | os.PathLike[str], *, every: int = 1):
    """Takes the path of the file; ε follows `every` so many released rounds."""
    super().__init__(path, every=every)
    self._counts = collections.Counter[str]({RELEASED: 0, FAILED: 0, REFUSED: 0})
    self._gauges: dict[str, float] = {}

  def begin(self, run, round_index=None):
    super().begin(run, round_index)
    if round_index is None:
      self._write(run)

  def _record(self, run, event, round_index, seconds, error):
    self._counts[event] += 1
    if event == RELEASED:
      self._gauges['last_release_timestamp_seconds'] = time.time()
    if seconds is not None:
      self._gauges['last_round_seconds'] = seconds
    self._gauges |= {
      name: math.inf if name == 'epsilon' and value is None else value
      for name, value in self._status(run, event, round_index).items()
      if isinstance(value, (int, float)) or name == 'epsilon'
    }
    if event != BEGUN:
      self._write(run)

  def _write(self, run: Any) -> None:
    label = '{run="' + run.folder.name.translate(_ESCAPED) + '"}'
    lines = []
    for name in (RELEASED, FAILED, REFUSED):
      lines += [f'# TYPE fl_dpftrl_rounds_{name} counter']
      lines += [f'fl_dpftrl_rounds_{name}_total{label} {self._counts[name]}']
    for name, value in self._gauges.items():
      number = '+Inf' if value == math.inf else repr(value)
      lines += [f'# TYPE fl_dpftrl_{name} gauge', f'fl_dpftrl_{name}{label} {number}']
    text = '\n'.join([*lines, '# EOF', ''])
    durable.write_durably(self._path, text.encode())


_ESCAPED = str.maketrans({'\\': r'\\', '"': r'\"', '\n': r'\n'})
