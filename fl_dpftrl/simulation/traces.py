"""Availability of devices from recorded traces of real devices."""

import dataclasses

import numpy as np

from fl_dpftrl.simulation import intervals, seeds, trace_cells

MONDAY = 345600
"""1970-01-05 00:00 UTC, a Monday, in UTC seconds: second 0 of every trace."""

DAY = 86400
LONGEST = 18262 * DAY
_DEVICES = 6


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
    left_out: number of devices of the source without a trace here.

  Raises:
    ValueError: if the arrays are inconsistent.
  """

  starts: np.ndarray
  ends: np.ndarray
  offsets: np.ndarray
  periods: np.ndarray
  left_out: int = 0

  def __post_init__(self):
    for name in ('starts', 'ends', 'offsets', 'periods'):
      array = _whole_seconds(name, getattr(self, name)).copy()
      array.setflags(write=False)
      object.__setattr__(self, name, array)
    _check_periods(self.periods)
    if self.starts.size != self.ends.size:
      raise ValueError(f'ends must be as many as starts, {self.starts.size}, got {self.ends.size}')
    sizes = np.diff(self.offsets)
    if (
      self.offsets.size != self.num_traces + 1
      or self.offsets[0] != 0
      or self.offsets[-1] != self.starts.size
      or np.any(sizes < 0)
    ):
      raise ValueError(
        f'offsets must ascend from 0 to {self.starts.size} in'
        f' {self.num_traces + 1} values, got {self.offsets.tolist()!r:.80}'
      )
    owners = self.owners
    bad = (self.starts >= self.ends) | (self.starts < 0)
    bad |= self.ends > self.periods[owners]
    same = owners[1:] == owners[:-1]
    bad[1:] |= same & (self.starts[1:] <= self.ends[:-1])
    if bad.any():
      first = int(np.argmax(bad))
      raise ValueError(
        f'starts and ends must be intervals in order within the period, got {self.starts[first]} to'
        f' {self.ends[first]} in trace {owners[first]}'
      )

  @classmethod
  def from_intervals(
    cls,
    owners: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    periods: np.ndarray,
    *,
    left_out: int = 0,
  ) -> 'Traces':
    """Builds traces from unsorted intervals, folded into the traces' periods.

    Intervals of a trace that overlap or touch are joined, and empty ones are dropped. An
    interval past the end of a period continues at its start.

    Args:
      owners: trace of each interval: whole numbers, shape [num_intervals].
      starts: whole seconds from a Monday, 00:00 UTC.
      ends: whole seconds from a Monday, 00:00 UTC.
      periods: shape [num_traces], seconds after which each trace repeats.
      left_out: number of devices of the source without a trace here.

    Raises:
      ValueError: if the arrays are inconsistent, or an interval ends before it starts.
    """
    periods = _whole_seconds('periods', periods)
    _check_periods(periods)
    owners, starts, ends = intervals.fold(
      _whole_seconds('owners', owners),
      _whole_seconds('starts', starts),
      _whole_seconds('ends', ends),
      periods,
    )
    counts = np.bincount(owners, minlength=periods.size)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return cls(starts, ends, offsets, periods, left_out)

  @property
  def num_traces(self) -> int:
    return self.periods.size

  @property
  def owners(self) -> np.ndarray:
    """Trace of each interval: int64, shape [num_intervals]."""
    return np.repeat(np.arange(self.num_traces), np.diff(self.offsets))

  @property
  def shares(self) -> np.ndarray:
    """Fraction of its period that each trace is present: shape [num_traces]."""
    seconds = np.bincount(self.owners, self.ends - self.starts, minlength=self.num_traces)
    return seconds / self.periods

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
    self._ceilings, self.cells = trace_cells.group(
      traces.owners, traces.starts, traces.ends, traces.periods, followed
    )

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


def _whole_seconds(name: str, values: np.ndarray) -> np.ndarray:
  values = np.asarray(values)
  if not values.size:
    values = values.astype(np.int64)
  if values.ndim != 1 or values.dtype.kind not in 'iu':
    raise ValueError(
      f'{name} must be a list of whole numbers, got {values.dtype} of shape {values.shape}'
    )
  return values.astype(np.int64)


def _check_periods(periods: np.ndarray) -> None:
  if not periods.size:
    raise ValueError('periods must hold at least one trace, got none')
  if np.any((periods < 1) | (periods > LONGEST)):
    raise ValueError(
      f'periods must lie in 1 to {LONGEST} seconds (half a century), got'
      f' {periods.min()} to {periods.max()}'
    )
