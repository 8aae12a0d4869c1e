"""Participation followed round by round, with the last round of each device at hand."""

from collections.abc import Sequence

import numpy as np

from fl_dpftrl.participation.counts import participation_counts

_LEAST = 1 << 10  # devices or slots
_LOAD = 0.5

Ids = Sequence[str] | Sequence[int] | np.ndarray


class Seen(participation_counts.Totals):
  """Participation so far: 8 bytes a device, and 12 for each of 2 to 4 slots of its id.

  Ids that are whole numbers are kept as they are. Text is kept as a hash of 64 bits, keyed anew
  in each process. Two texts with one hash count as one device, which overstates participation
  and so never lets a device in too often. Among ten million devices that happens with a
  probability of 3 in a million.
  """

  def __init__(self, *, numbered: bool = False):
    """Starts with no rounds; numbered: ids are numbers from 0 on, which take no slots."""
    self.num_rounds = 0
    self._numbers = None if numbered else Numbers()
    self._lasts = np.zeros(_LEAST, np.int32)
    self._times = np.zeros(_LEAST, np.int32)
    self._separations = np.zeros(_LEAST, np.int64)

  def of(self, device_ids: Ids) -> np.ndarray:
    """Returns last round, −1 without one, and number of rounds of each device, [2, num_ids]."""
    numbers, is_known = self._known(device_ids)
    times = np.where(is_known, self._times[numbers * is_known], 0)
    return np.stack([np.where(times > 0, self._lasts[numbers * is_known], -1), times])

  def add(self, device_ids: Ids) -> None:
    """Adds the next round's devices, each of which is given once."""
    self._add(self._numbered(device_ids))

  def _known(self, device_ids: Ids) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of each device, and whether it has a place."""
    numbers = np.asarray(device_ids) if self._numbers is None else self._numbers.of(device_ids)
    return numbers, (numbers >= 0) & (numbers < self._times.size)

  def _numbered(self, device_ids: Ids) -> np.ndarray:
    return np.asarray(device_ids) if self._numbers is None else self._numbers.add(device_ids)

  def _add(self, numbers: np.ndarray) -> None:
    if numbers.size:
      self._grow(int(numbers.max()) + 1)
      times = self._times[numbers]
      again = numbers[np.flatnonzero(times)]
      apart = np.bincount(self.num_rounds - self._lasts[again])
      self._separations = grown(self._separations, apart.size)
      self._separations[: apart.size] += apart
      self._lasts[numbers] = self.num_rounds
      self._times[numbers] = times + 1
    self.num_rounds += 1

  def _grow(self, size: int) -> None:
    self._lasts = grown(self._lasts, size)
    self._times = grown(self._times, self._lasts.size)

  @property
  def separations(self) -> participation_counts.Counts:
    return participation_counts.Counts.of_bins(self._separations)

  @property
  def participations(self) -> participation_counts.Counts:
    return participation_counts.Counts.of(self._times[self._times > 0])


class Numbers:
  """Numbers of device ids, from 0 on in a hash table of which half is empty at least.

  Attributes:
    size: numbers that were given.
  """

  def __init__(self):
    from fl_dpftrl.support.kernels import device_loops as loops  # Numbered devices need none.

    self._loops, self.size = loops, 0
    self._allocate(_LEAST)

  def _allocate(self, slots: int) -> None:
    self._keys = np.zeros(slots, np.uint64)
    self._numbers = np.full(slots, -1, np.int32)  # −1 in an empty slot.

  def of(self, device_ids: Ids) -> np.ndarray:
    """Returns the number of each device; −1 for one that was not added."""
    return self._loops.number(hashes(device_ids), self._keys, self._numbers, 0, False)[0]

  def add(self, device_ids: Ids) -> np.ndarray:
    """Returns the numbers of the devices, each once; new ones get the next numbers."""
    keys = np.unique(hashes(device_ids))  # Two texts may have one hash.
    while self.size + keys.size > _LOAD * self._keys.size:
      used = np.flatnonzero(self._numbers >= 0)
      used = used[np.argsort(self._numbers[used])]  # In the order of their numbers.
      previous = self._keys[used]
      self._allocate(2 * self._keys.size)
      self._loops.number(previous, self._keys, self._numbers, 0, True)
    tables = self._keys, self._numbers
    numbers, self.size = self._loops.number(keys, *tables, self.size, True)
    return numbers


def grown(values: np.ndarray, size: int) -> np.ndarray:
  """Returns an array with zeros after it, so that it has a size at least."""
  if size <= values.size:
    return values
  return np.pad(values, (0, max(size, 2 * values.size) - values.size))


def hashes(device_ids: Ids) -> np.ndarray:
  """Returns a hash of 64 bits for each device id: a whole number itself."""
  ids = np.asarray(device_ids)
  if ids.dtype.kind in 'iu':
    return ids.astype(np.int64).view(np.uint64)
  return np.fromiter(map(hash, ids.tolist()), np.int64, ids.size).view(np.uint64)
