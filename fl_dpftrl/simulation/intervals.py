"""Intervals of time that repeat, made to neither overlap nor touch."""

import numpy as np


def fold(
    owners: np.ndarray,
    starts: np.ndarray,
    ends: np.ndarray,
    periods: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """Intervals in any order, each folded into the period of its owner.

  Intervals of an owner that overlap or touch become one, empty ones none; one
  that runs past the end of the period becomes two, the rest at its start.

  Args:
    owners: int64, shape [num_intervals], places in periods.
    starts: int64, of that shape.
    ends: int64, of that shape.
    periods: int64, shape [num_owners].

  Returns:
    Owners, starts and ends of the folded intervals, ascending.

  Raises:
    ValueError: for intervals that end before they start, and for unknown
      owners.
  """
  if not owners.size == starts.size == ends.size:
    raise ValueError(
        'owners, starts and ends must be equally many, got'
        f' {owners.size}, {starts.size} and {ends.size}'
    )
  unknown = (owners < 0) | (owners >= periods.size)
  if unknown.any():
    raise ValueError(
        f'owners must lie in 0 to {periods.size - 1}, got'
        f' {owners[unknown][0]}'
    )
  negative = ends < starts
  if negative.any():
    raise ValueError(
        f'ends must not be before starts, got {starts[negative][0]} to'
        f' {ends[negative][0]}'
    )
  lengths = np.minimum(ends - starts, periods[owners])
  starts = np.mod(starts, periods[owners])
  over = np.maximum(starts + lengths - periods[owners], 0)
  wraps = over > 0
  # All owners on one line of time, one period behind the other.
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
