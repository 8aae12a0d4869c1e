"""Cells of traces: groups with similar absences that share a ceiling."""

import numpy as np

_CELLS = 48
_HOUR = 3600
_HOURS = 24
_SLOT = 900
_MOST_SLOTS = 8192
_FEWEST_KINDS = 3
_WIDTHS = (8, 16)


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


def group(
  owners: np.ndarray,
  starts: np.ndarray,
  ends: np.ndarray,
  periods: np.ndarray,
  followed: np.ndarray,
) -> tuple[Ceilings, np.ndarray]:
  """Groups the devices that follow traces into cells with ceilings.

  Traces of one period are divided by the hours of day that they span. Traces that span most of
  the day have a cell of their own. If there are many periods, the traces of rare periods share
  one cell whose ceiling is 1.

  Args:
    owners: trace of each interval.
    starts: starts of the intervals, in seconds of the period.
    ends: ends of the intervals, in seconds of the period.
    periods: period of each trace, in seconds.
    followed: trace of each device.

  Returns:
    The ceilings, and the cell of each device as int16.
  """
  devices = np.bincount(followed, minlength=periods.size)
  lengths, which = np.unique(periods, return_inverse=True)
  common = np.argsort(-np.bincount(which, devices), kind='stable')
  common = common[: _CELLS // _FEWEST_KINDS - 1]
  kinds = (_CELLS - 1) // common.size
  rank = np.full(lengths.size, common.size)
  rank[common] = np.arange(common.size)
  labels = rank[which] * kinds
  labels += np.where(rank[which] < common.size, _kinds(owners, starts, ends, periods, kinds), 0)
  is_used = devices > 0
  used, cells = np.unique(labels[is_used], return_inverse=True)
  cell_of = np.zeros(periods.size, np.int16)
  cell_of[is_used] = cells
  known = np.append(lengths[common], 0)[used // kinds]
  kept = np.flatnonzero(is_used[owners] & (rank[which] < common.size)[owners])
  ceilings = Ceilings(cell_of[owners[kept]].astype(np.int64), starts[kept], ends[kept], known)
  return ceilings, cell_of[followed]


def _kinds(
  owners: np.ndarray, starts: np.ndarray, ends: np.ndarray, periods: np.ndarray, num_kinds: int
) -> np.ndarray:
  """Returns a kind per trace, below num_kinds, by the hours of day it spans.

  The span runs from the end of the longest daily absence to its start. A kind is given by the
  middle of the span and, with many kinds, by its length.
  """
  there = np.zeros((periods.size, _HOURS), bool)
  # Periods that are not whole days have no time of day.
  there[periods % (_HOURS * _HOUR) != 0] = True
  first = starts // _HOUR
  num_hours = (ends - 1) // _HOUR - first + 1
  for ahead in range(_HOURS):
    more = np.flatnonzero(num_hours > ahead)
    there[owners[more], (first[more] + ahead) % _HOURS] = True
  # The clock is gone around twice, so that an absence over midnight is one.
  run = np.zeros(periods.size, np.int64)
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
