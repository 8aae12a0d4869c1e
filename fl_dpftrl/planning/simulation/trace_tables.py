"""Availability of devices from a table of times at which real devices could be reached."""

import dataclasses
import os
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fl_dpftrl.planning.simulation import seeds
from fl_dpftrl.support import machine
from fl_dpftrl.support.text import messages

MONDAY = 345600
"""1970-01-05 00:00 UTC, a Monday, in UTC seconds."""

_DAY, _HOUR, _SLOT = 86400, 3600, 900
_HOURS = 24
_DEVICES = 6
_MOST_DAYS = 3650
_COLUMNS = ['device', 'start', 'end']
_UNITS = {'s': 1, 'ms': 10**3, 'us': 10**6, 'ns': 10**9}  # of a second
_BYTES_A_ROW = 160  # of memory


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
  with open(path, 'rb') as stream:  # No name is a pattern.
    try:
      return _traces(stream)
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
      raise ValueError(
        f'{path} must be a Parquet table with the columns device, start and end, the last two'
        f' timestamps: {messages.one_line(error, limit=100)}'
      ) from None


def _traces(stream: BinaryIO) -> Traces:
  with pq.ParquetFile(stream) as file:
    needed, free = _BYTES_A_ROW * file.metadata.num_rows, machine.free_memory()
    if free is not None and needed > free:
      raise ValueError(f'it needs {needed >> 20} MiB of memory, and {free >> 20} are free')
    table = file.read(_COLUMNS).select(_COLUMNS)
  for name, column in zip(_COLUMNS, table.columns):
    if column.null_count:
      raise ValueError(f'{name} is missing in a row')
  device, *times = table.columns
  if not all(pa.types.is_timestamp(column.type) for column in times):
    raise ValueError('start and end are none')
  if pa.types.is_dictionary(device.type):
    device = device.cast(device.type.value_type)
  owners = pc.rank(device, tiebreaker='dense').to_numpy().astype(np.int64) - 1
  starts, ends = (column.cast(pa.int64()).to_numpy() for column in times)
  units = [_UNITS[column.type.unit] for column in times]
  return Traces(owners, starts // units[0], -(-ends // units[1]))
