"""Loops for `participation.counts`: a hash table with open addressing, and returns by meters."""

import numpy as np

from fl_dpftrl.support.kernels import compiled

_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@compiled.loop
def _slot(key, keys, numbers):
  """Returns the slot of a key, or the empty one that it would take."""
  mask = np.uint64(keys.size - 1)
  mixed = (key ^ key >> np.uint64(32)) * _FACTOR
  slot = (mixed ^ mixed >> np.uint64(32)) & mask
  while numbers[slot] >= 0 and keys[slot] != key:
    slot = (slot + np.uint64(1)) & mask
  return slot


@compiled.loop
def number(wanted, keys, numbers, size, inserts):
  """Returns the number of each key, and the table's size.

  A key that is not in the table is inserted with the next number, or has −1.
  """
  result = np.empty(wanted.size, np.int32)
  for i in range(wanted.size):
    slot = _slot(wanted[i], keys, numbers)
    if inserts and numbers[slot] < 0:
      keys[slot], numbers[slot] = wanted[i], size
      size += 1
    result[i] = numbers[slot]
  return result, size


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
