"""Availability of devices from recorded traces of real devices."""

import dataclasses

import numpy as np

from fl_dpftrl.simulation import seeds

MONDAY = 345600
"""1970-01-05 00:00 UTC, a Monday, in UTC seconds: second 0 of every trace."""

DAY = 86400
LONGEST = 18262 * DAY
_DEVICES = 6
_CELLS = 48
_HOUR = 3600
_HOURS = 24
_SLOT = 900
_MOST_SLOTS = 8192
_FEWEST_KINDS = 3
_WIDTHS = (8, 16)


@dataclasses.dataclass(frozen=True, eq=False)
class Traces:
  """Repeating times at which each of many real devices could be reached.

  Each simulated device follows one random trace; several devices may follow the same one. A
  trace repeats after its own period. Times are whole seconds from a Monday, 00:00 UTC. A trace
  whose period is whole weeks thus keeps weekdays and time of day, and one whose period is whole
  days keeps the time of day.

  Attributes:
    starts: int64, shape [num_intervals]: starts of the intervals in seconds of the period,
      trace by trace, ascending in each trace.
    ends: int64, shape [num_intervals]: ends of the intervals, exclusive. Intervals of a trace
      neither overlap nor touch.
    offsets: int64, shape [num_traces + 1]: trace i has the intervals from offsets[i] up to
      offsets[i + 1]; it may have none.
    periods: int64, shape [num_traces], seconds after which each trace repeats.
  """

  starts: np.ndarray
  ends: np.ndarray
  offsets: np.ndarray
  periods: np.ndarray

  @classmethod
  def from_intervals(
    cls, owners: np.ndarray, starts: np.ndarray, ends: np.ndarray, periods: np.ndarray
  ) -> 'Traces':
    """Builds traces from unsorted intervals, folded into the traces' periods.

    Intervals of a trace that overlap or touch are joined, and empty ones are dropped. An
    interval that runs past the end of the period is split; the rest continues at its start.

    Args:
      owners: trace of each interval: int64, shape [num_intervals].
      starts: seconds from a Monday, 00:00 UTC: int64, shape [num_intervals].
      ends: the same, each at or after its start.
      periods: seconds after which each trace repeats, 1 to LONGEST: int64, shape [num_traces].
    """
    lengths = np.minimum(ends - starts, periods[owners])
    starts = np.mod(starts, periods[owners])
    over = np.maximum(starts + lengths - periods[owners], 0)
    wraps = over > 0
    # All traces share one time line, one period after the other.
    zeros = np.cumsum(periods) - periods
    begins = zeros[owners] + starts
    stops = begins + lengths - over
    begins = np.concatenate([begins, zeros[owners[wraps]]])
    stops = np.concatenate([stops, (zeros[owners] + over)[wraps]])
    owners = np.concatenate([owners, owners[wraps]])
    kept = np.flatnonzero(stops > begins)
    kept = kept[np.argsort(begins[kept], kind='stable')]
    owners, begins, stops = owners[kept], begins[kept], stops[kept]
    reach = np.maximum.accumulate(stops)
    is_last = np.ones(begins.size, bool)
    is_last[:-1] = (begins[1:] > reach[:-1]) | (owners[1:] != owners[:-1])
    is_first = np.roll(is_last, 1)
    owners, begins, stops = owners[is_first], begins[is_first], reach[is_last]
    offsets = np.append(0, np.cumsum(np.bincount(owners, minlength=periods.size)))
    return cls(begins - zeros[owners], stops - zeros[owners], offsets, periods)

  @property
  def num_traces(self) -> int:
    return self.periods.size

  @property
  def owners(self) -> np.ndarray:
    """Trace of each interval: int64, shape [num_intervals]."""
    return np.repeat(np.arange(self.num_traces), np.diff(self.offsets))

  def presence(self, num_devices: int, seed: int) -> 'TracedPresence':
    draws = seeds.generator(seed, _DEVICES)
    return TracedPresence(self, draws.integers(self.num_traces, size=num_devices, dtype=np.int32))


class TracedPresence:
  """Presence of devices that each follow a trace.

  Args:
    traces: traces to follow.
    followed: trace of each device: whole numbers, shape [num_devices].

  Attributes:
    cells: int16, shape [num_devices]; traces of one cell have one period and, as far as
      possible, similar times of day.
  """

  def __init__(self, traces: Traces, followed: np.ndarray):
    self._followed = followed
    self._periods = traces.periods
    # Starts and ends alternate, so a position after an odd number of them is inside an
    # interval. One more, never reached, keeps the list from being empty.
    self._edges = np.zeros(2 * traces.starts.size + 1, np.int32)
    self._edges[0:-1:2] = traces.starts
    self._edges[1:-1:2] = traces.ends
    self._first = 2 * traces.offsets
    most = int(np.diff(self._first).max())
    self._steps = [1 << bit for bit in reversed(range(most.bit_length()))]
    self._ceilings, self.cells = group_into_cells(traces, followed)

  def ceiling(self, start: float, end: float) -> np.ndarray:
    return self._ceilings.between(start - MONDAY, end - MONDAY)

  def at(self, devices: np.ndarray, times: np.ndarray) -> np.ndarray:
    followed = self._followed[devices]
    # Intervals are whole seconds, so flooring loses nothing.
    seconds = np.floor(times).astype(np.int64) - MONDAY
    seconds = np.mod(seconds, self._periods[followed]).astype(np.int32)
    # A binary search per trace touches far less memory than one over all.
    before, last = self._first[followed], self._first[followed + 1]
    for step in self._steps:
      ahead = before + step
      edges = self._edges[np.minimum(ahead, last) - 1]
      passed = (ahead <= last) & (edges <= seconds)
      before = np.where(passed, ahead, before)
    return (before & 1).astype(np.float64)


class Ceilings:
  """Times of the period at which any device of a cell is present.

  Args:
    cells: cell of each interval.
    starts: starts of the intervals, in seconds of the period.
    ends: ends of the intervals, in seconds of the period.
    periods: seconds, shape [num_cells]; 0 if no period is known, in which case the ceiling is
      always 1.
  """

  def __init__(self, cells: np.ndarray, starts: np.ndarray, ends: np.ndarray, periods: np.ndarray):
    self._unknown = periods == 0
    self._periods = np.maximum(periods, 1)
    longest = int(self._periods.max())
    self._slot = max(_SLOT, -(-longest // _MOST_SLOTS))
    width = -(-longest // self._slot) + 1
    size = width * periods.size
    opened = np.bincount(cells * width + starts // self._slot, minlength=size)
    closed = np.bincount(cells * width + (ends - 1) // self._slot + 1, minlength=size)
    there = np.cumsum(opened - closed).reshape(periods.size, width) > 0
    # Occupied slots before each slot; differences give any interval's count.
    self._before = np.zeros((periods.size, width + 1), np.int32)
    np.cumsum(there, axis=1, out=self._before[:, 1:])
    self._all = self._before[:, -1]

  def between(self, start: float, end: float) -> np.ndarray:
    """Returns 1 for each cell with a device present in [start, end), else 0."""
    first = np.mod(np.floor(start), self._periods)
    # The interval starts within a second, so it may reach into one more.
    length = np.ceil(end - start) + 1.0
    last = first + length
    any_lap = length >= self._periods
    over = np.where(any_lap, 0, last - self._periods)
    until = np.minimum(last, self._periods)
    count = self._within(first, until) + self._within(0.0 * over, over)
    count = np.where(any_lap, self._all, count)
    return ((count > 0) | self._unknown).astype(np.float64)

  def _within(self, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Counts occupied slots of each cell that [first, last) touches."""
    rows = np.arange(first.size)
    low = (first // self._slot).astype(np.int64)
    high = np.ceil(last / self._slot).astype(np.int64)
    high = np.maximum(high, low)
    return self._before[rows, high] - self._before[rows, low]


def group_into_cells(traces: Traces, followed: np.ndarray) -> tuple[Ceilings, np.ndarray]:
  """Groups the devices that follow traces into cells with ceilings.

  Traces of one period are divided by the hours of day that they span. Traces that span most of
  the day have a cell of their own. If there are many periods, the traces of rare periods share
  one cell whose ceiling is 1.

  Returns:
    The ceilings, and the cell of each device as int16.
  """
  devices = np.bincount(followed, minlength=traces.num_traces)
  lengths, which = np.unique(traces.periods, return_inverse=True)
  common = np.argsort(-np.bincount(which, devices), kind='stable')
  common = common[: _CELLS // _FEWEST_KINDS - 1]
  kinds = (_CELLS - 1) // common.size
  rank = np.full(lengths.size, common.size)
  rank[common] = np.arange(common.size)
  is_common = rank[which] < common.size
  labels = rank[which] * kinds + np.where(is_common, _kinds(traces, kinds), 0)
  is_used = devices > 0
  used, cells = np.unique(labels[is_used], return_inverse=True)
  cell_of = np.zeros(traces.num_traces, np.int16)
  cell_of[is_used] = cells
  known = np.append(lengths[common], 0)[used // kinds]
  kept = np.flatnonzero((is_used & is_common)[traces.owners])
  of_kept = cell_of[traces.owners[kept]].astype(np.int64)
  return Ceilings(of_kept, traces.starts[kept], traces.ends[kept], known), cell_of[followed]


def _kinds(traces: Traces, num_kinds: int) -> np.ndarray:
  """Returns a kind per trace, below num_kinds, by the hours of day it spans.

  The span runs from the end of the longest daily absence to its start. A kind is given by the
  middle of the span and, with many kinds, by its length.
  """
  there = np.zeros((traces.num_traces, _HOURS), bool)
  # Periods that are not whole days have no time of day.
  there[traces.periods % DAY != 0] = True
  owners, first = traces.owners, traces.starts // _HOUR
  num_hours = (traces.ends - 1) // _HOUR - first + 1
  for ahead in range(_HOURS):
    more = np.flatnonzero(num_hours > ahead)
    there[owners[more], (first[more] + ahead) % _HOURS] = True
  # The clock is gone around twice, so that an absence over midnight is one.
  run = np.zeros(traces.num_traces, np.int64)
  longest, until = run.copy(), run.copy()
  for hour in range(2 * _HOURS):
    run = np.where(there[:, hour % _HOURS], 0, np.minimum(run + 1, _HOURS))
    until = np.where(run > longest, hour + 1, until)
    longest = np.maximum(longest, run)
  spans = _HOURS - longest
  middles = np.mod(until + spans / 2.0, _HOURS)
  widths = _WIDTHS if num_kinds > _HOURS else _WIDTHS[-1:]
  num_places = (num_kinds - 1) // len(widths)
  width = np.searchsorted(widths, spans)
  place = (middles * (num_places / _HOURS)).astype(np.int64)
  return np.where(width < len(widths), place * len(widths) + width, num_places * len(widths))
