"""Last round and number of rounds of each device, in little memory."""

from collections.abc import Sequence

import numpy as np

from fl_dpftrl.participation import schemas

_LEAST = 1 << 10  # slots
_LOAD = 0.5


class Devices:
  """Participation so far, device by device: 16 bytes for each of 2 to 4 slots a device.

  Whole numbers are kept as they are. Text is kept as a hash of 64 bits, keyed
  anew in each process. Two texts with one hash count as one device, which
  overstates participation and so never lets a device in too often. Among ten
  million devices that happens with a probability of 3 in a million.

  Attributes:
    num_rounds: rounds that were added.
    num_devices: devices that took part.
    min_sep: least separation of two rounds of a device; None without any.
    max_participations: most rounds of a device.
  """

  def __init__(self):
    self.num_rounds = self.num_devices = self.max_participations = 0
    self.min_sep: int | None = None
    self._allocate(_LEAST)

  def _allocate(self, slots: int) -> None:
    self._keys = np.zeros(slots, np.uint64)
    self._lasts = np.zeros(slots, np.int32)
    self._counts = np.zeros(slots, np.int32)  # 0 for an empty slot.

  def of(self, device_ids: Sequence[str] | Sequence[int] | np.ndarray) -> np.ndarray:
    """Returns last round and number of rounds of each device, shape [2, num_ids].

    The last round of a device without any is −1.
    """
    slots = self._find(_keys(device_ids))
    counts = self._counts[slots]
    return np.stack([np.where(counts > 0, self._lasts[slots], -1), counts])

  def add(self, device_ids: Sequence[str] | Sequence[int] | np.ndarray) -> None:
    """Adds the next round's devices, each of which is given once."""
    keys = np.unique(_keys(device_ids))
    while self.num_devices + keys.size > _LOAD * self._keys.size:
      self._grow()
    slots = self._insert(keys)
    known = slots[self._counts[slots] > 1]
    if known.size:
      least = self.num_rounds - int(self._lasts[known].max())
      self.min_sep = least if self.min_sep is None else min(self.min_sep, least)
    self._lasts[slots] = self.num_rounds
    if slots.size:
      self.max_participations = max(self.max_participations, int(self._counts[slots].max()))
    self.num_rounds += 1

  def schema(self) -> schemas.MinSep:
    """Returns the tightest schema that all devices kept to; at least one round is needed."""
    return schemas.MinSep(
      num_rounds=self.num_rounds,
      min_sep=self.num_rounds if self.min_sep is None else self.min_sep,
      max_participations=max(1, self.max_participations),
    )

  def _find(self, keys: np.ndarray) -> np.ndarray:
    """Returns the slot of each key, or the empty slot where its search ends."""
    slots = self._first_slots(keys)
    searching = np.arange(keys.size)
    while searching.size:
      at = slots[searching]
      searching = searching[(self._counts[at] > 0) & (self._keys[at] != keys[searching])]
      slots[searching] = (slots[searching] + 1) & (self._keys.size - 1)
    return slots

  def _insert(self, keys: np.ndarray) -> np.ndarray:
    """Counts a round of each key, which are unique, and returns their slots."""
    slots = self._first_slots(keys)
    searching = np.arange(keys.size)
    while searching.size:
      at = slots[searching]
      empty = self._counts[at] == 0
      # Of several keys at one empty slot the last takes it; the others go on.
      self._keys[at[empty]] = keys[searching[empty]]
      found = self._keys[at] == keys[searching]
      self.num_devices += int((found & empty).sum())
      self._counts[at[found]] += 1
      searching = searching[~found]
      slots[searching] = (slots[searching] + 1) & (self._keys.size - 1)
    return slots

  def _first_slots(self, keys: np.ndarray) -> np.ndarray:
    mixed = keys * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(32)
    return (mixed & np.uint64(self._keys.size - 1)).astype(np.int64)

  def _grow(self) -> None:
    used = self._counts > 0
    keys, lasts, counts = (a[used] for a in (self._keys, self._lasts, self._counts))
    self._allocate(2 * self._counts.size)
    self.num_devices = 0
    slots = self._insert(keys)
    self._lasts[slots], self._counts[slots] = lasts, counts


def _keys(device_ids: Sequence[str] | Sequence[int] | np.ndarray) -> np.ndarray:
  """Returns a key of 64 bits for each device id."""
  ids = np.asarray(device_ids)
  if ids.dtype.kind in 'iu':
    return ids.astype(np.int64).view(np.uint64)
  return np.array([hash(text) for text in ids.tolist()], np.int64).view(np.uint64)
