"""Rounds of return of devices with meters, for `participation.counts.meter`."""

import numpy as np

from fl_dpftrl.support.kernels import compiled


@compiled.loop
def returns(rounds, room, table, weight, begin, last):
  """Returns the first round from one on that charges each device no more than its room.

  X, a table by the lag, falls with it: a device that may come may come later too. Rounds that a
  device was in are non-negative, [devices, any]. A device that may not come has last + 1.
  """
  result = np.empty(room.size, np.int64)
  for i in range(room.size):
    low, high, step = begin - 1, last + 1, 1
    while high - low > 1:  # Most come at once, within a few rounds, or never.
      t = low + min(step, (high - low) // 2)
      charge = table[0]
      for s in rounds[i]:
        if s >= 0:
          charge += 2.0 * table[t - s]
      if weight * charge <= room[i]:
        high = t
      else:
        low, step = t, 2 * step
    result[i] = high
  return result
