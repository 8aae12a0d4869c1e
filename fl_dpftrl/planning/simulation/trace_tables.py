"""Availability of devices from a table of times at which real devices could be reached."""

import dataclasses
import os
import tempfile
from typing import Any

import numpy as np

from fl_dpftrl.planning.simulation import seeds
from fl_dpftrl.support import machine
from fl_dpftrl.support.text import messages

MONDAY = 345600
"""1970-01-05 00:00 UTC, a Monday, in UTC seconds."""

_DAY, _HOUR, _SLOT = 86400, 3600, 900
_HOURS = 24
_DEVICES = 6
_MOST_DAYS = 3650
_MOST_MEMORY = 2 * 10**9  # bytes, of what sorts the table
_QUERY = """
  SELECT device, dense_rank() OVER (ORDER BY device) - 1 AS owner,
    CAST(floor(epoch("start")) AS BIGINT) AS "start", CAST(ceil(epoch("end")) AS BIGINT) AS "end"
  FROM read_parquet(?)
"""


@dataclasses.dataclass(frozen=True, eq=False)
class Traces:
  """Times at which each of many real devices could be reached, which repeat.

  Each simulated device follows the times of a random one of them. The times repeat after the least
  whole number of days that covers all of them, or of weeks beyond a week. So they keep their time
  of day, and their weekdays where they last over a week.

  Attributes:
    owners: device of each interval, whole numbers from 0, shape [num_intervals].
    starts: starts of the intervals in UTC seconds, int64, same shape.
    ends: ends of the intervals, exclusive, same shape.
  """

  owners: np.ndarray
  starts: np.ndarray
  ends: np.ndarray

  def __post_init__(self):
    if not self.owners.size:
      raise ValueError('there is no time at which a device could be reached')
    if not (self.starts < self.ends).all():
      raise ValueError('end must be after start in every row')
    if self.period > _MOST_DAYS * _DAY:
      raise ValueError(f'times last {self.period // _DAY} days, more than {_MOST_DAYS}')

  @property
  def period(self) -> int:
    """Seconds after which the times repeat."""
    days = -(-int(self.ends.max() - self.starts.min()) // _DAY)
    return _DAY * (days if days <= 7 else 7 * -(-days // 7))

  def presence(
    self, num_devices: int, seed: int, habits: np.ndarray | None = None
  ) -> 'TracedPresence':
    del habits
    draws, count = seeds.generator(seed, _DEVICES), self.owners.max() + 1
    return TracedPresence(self, draws.integers(count, size=num_devices, dtype=np.int32))


class TracedPresence:
  """Presence of devices that follow traces, in cells by the hour of their longest interval."""

  def __init__(self, traces: Traces, followed: np.ndarray):
    self._followed, self._period = followed, traces.period
    owners, starts, ends = traces.owners, traces.starts, traces.ends
    longest = np.lexsort((starts - ends, owners))
    longest = longest[np.unique(owners[longest], return_index=True)[1]]
    hours = starts[longest] % _DAY // _HOUR
    self.cells = hours[followed].astype(np.int16)
    # An interval past the end of the period goes on at its start.
    firsts = (starts - MONDAY) % self._period
    lasts = firsts + (ends - starts)
    over = lasts > self._period
    owners = np.concatenate([owners, owners[over]])
    firsts = np.concatenate([firsts, np.zeros(over.sum(), np.int64)])
    lasts = np.concatenate([np.minimum(lasts, self._period), lasts[over] - self._period])
    self._edges = _edges(owners * self._period + firsts, owners * self._period + lasts)
    self._occupied = _occupied(hours[owners], firsts, lasts, self._period // _SLOT)

  def ceiling(self, start: float, end: float) -> np.ndarray:
    """Returns 1 for each cell with a device that may be present in [start, end), else 0."""
    slots = self._period // _SLOT
    first = int((start - MONDAY) // _SLOT)
    count = min(int((end - MONDAY) // _SLOT) - first + 1, slots)
    first %= slots
    return (self._occupied[:, first + count] > self._occupied[:, first]).astype(np.float64)

  def at(self, devices: np.ndarray, times: np.ndarray) -> np.ndarray:
    inside = np.mod(np.floor(times).astype(np.int64) - MONDAY, self._period)
    places = self._followed[devices].astype(np.int64) * self._period + inside
    # Starts and ends alternate: after an odd number of them, a place is in an interval.
    return (np.searchsorted(self._edges, places, side='right') & 1).astype(np.float64)


def _edges(begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
  """Returns starts and ends in turn of intervals, after those that overlap or touch are joined."""
  order = np.argsort(begins, kind='stable')
  begins, reach = begins[order], np.maximum.accumulate(ends[order])
  is_first = np.append(True, begins[1:] > reach[:-1])
  is_last = np.append(is_first[1:], True)
  return np.column_stack([begins[is_first], reach[is_last]]).ravel()


def _occupied(cells: np.ndarray, firsts: np.ndarray, lasts: np.ndarray, slots: int) -> np.ndarray:
  """Returns how many slots before each one have a device present, over two periods."""
  width, size = slots + 1, _HOURS * (slots + 1)
  opened = np.bincount(cells * width + firsts // _SLOT, minlength=size)
  closed = np.bincount(cells * width + (lasts - 1) // _SLOT + 1, minlength=size)
  there = np.cumsum((opened - closed).reshape(_HOURS, width), axis=1)[:, :-1] > 0
  counts = np.cumsum(np.hstack([there, there]), axis=1, dtype=np.int32)
  return np.pad(counts, ((0, 0), (1, 0)))


def read_traces(path: str | os.PathLike[str]) -> Traces:
  """Reads a Parquet table with the columns device, start and end, the last two UTC timestamps."""
  try:
    import duckdb  # Slow to load.
  except ImportError as error:
    raise ValueError(f"{path} needs DuckDB: pip install 'fl_dpftrl[traces]' ({error})") from error
  free = machine.free_memory()
  limit = _MOST_MEMORY if free is None else min(_MOST_MEMORY, free // 2)
  with (
    open(path, 'rb') as file,
    tempfile.TemporaryDirectory(prefix='fl_dpftrl-') as folder,  # Only its owner may read it.
    duckdb.connect(config=_engine(folder, limit)) as engine,
  ):
    opened = f'/dev/fd/{file.fileno()}'  # The engine would take a name for a pattern.
    try:
      columns = engine.execute(_QUERY, [opened]).fetchnumpy()
    except (duckdb.Error, MemoryError) as error:
      if folder in str(error) or isinstance(error, (duckdb.OutOfMemoryException, MemoryError)):
        raise ValueError(
          f'{path} needs more memory than {limit >> 20} MiB, or more room for temporary files in'
          f' the folder that TMPDIR names: {messages.one_line(error, limit=100)}'
        ) from None
      raise ValueError(
        f'{path} must be a Parquet table with the columns device, start and end, the last two'
        f' timestamps: {messages.one_line(str(error).replace(opened, "it"), limit=100)}'
      ) from None
  for name, column in columns.items():
    if np.ma.is_masked(column):
      raise ValueError(f'{path}: {name} is missing in a row')
  try:
    return Traces(*(np.asarray(columns[name], np.int64) for name in ('owner', 'start', 'end')))
  except ValueError as error:
    raise ValueError(f'{path}: {error}') from None


def _engine(folder: str, limit: int) -> dict[str, Any]:
  """Returns settings of DuckDB, whose temporary files have ids and times of presence."""
  return {
    'memory_limit': f'{limit}B',
    'temp_directory': folder,
    'autoinstall_known_extensions': False,
  }
