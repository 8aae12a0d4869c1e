"""A hash table of whole numbers with open addressing, for `participation.counts.seen`."""

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
def find(wanted, keys, numbers):
  """Returns the number of each key; −1 for one that is not in the table."""
  result = np.empty(wanted.size, np.int32)
  for i in range(wanted.size):
    result[i] = numbers[_slot(wanted[i], keys, numbers)]
  return result


@compiled.loop
def insert(wanted, keys, numbers, size):
  """Returns the number of each key and the table's new size; new keys get the next numbers."""
  result = np.empty(wanted.size, np.int32)
  for i in range(wanted.size):
    slot = _slot(wanted[i], keys, numbers)
    if numbers[slot] < 0:
      keys[slot], numbers[slot] = wanted[i], size
      size += 1
    result[i] = numbers[slot]
  return result, size
