"""Repeating intervals of time, normalised to neither overlap nor touch."""

import numpy as np


def fold(
  owners: np.ndarray, starts: np.ndarray, ends: np.ndarray, periods: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Folds each interval into the period of its owner.

  Intervals of an owner that overlap or touch are joined, and empty ones are dropped. An
  interval that runs past the end of the period is split; the rest continues at the start of the
  period.

  Args:
    owners: int64, shape [num_intervals], indices into periods.
    starts: int64, shape [num_intervals].
    ends: int64, shape [num_intervals].
    periods: int64, shape [num_owners].

  Returns:
    Owners, starts and ends of the folded intervals, ascending.

  Raises:
    ValueError: if an interval ends before it starts, or an owner is unknown.
  """
  if not owners.size == starts.size == ends.size:
    raise ValueError(
      'owners, starts and ends must be equally many, got'
      f' {owners.size}, {starts.size} and {ends.size}'
    )
  unknown = (owners < 0) | (owners >= periods.size)
  if unknown.any():
    raise ValueError(f'owners must lie in 0 to {periods.size - 1}, got {owners[unknown][0]}')
  negative = ends < starts
  if negative.any():
    raise ValueError(
      f'ends must not be before starts, got {starts[negative][0]} to {ends[negative][0]}'
    )
  lengths = np.minimum(ends - starts, periods[owners])
  starts = np.mod(starts, periods[owners])
  over = np.maximum(starts + lengths - periods[owners], 0)
  wraps = over > 0
  # All owners share one time line, one period after the other.
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
  return owners, begins - zeros[owners], stops - zeros[owners]
