"""Devices that may check in, in groups that can be sampled, and devices that wait to return."""

import heapq
import math
from collections.abc import Iterator

import numpy as np


class Pool:
  """Set of devices in groups, all of them members at first.

  Members of a group are in no particular order, and a removed one is replaced from the end. So no
  cost depends on the number of devices.

  Attributes:
    members: devices, of which those of group g are at first[g] to first[g] + sizes[g] − 1.
    first: first place of each group.
    sizes: members of each group.
  """

  def __init__(self, groups: np.ndarray, places: np.ndarray):
    """Starts with all devices.

    Args:
      groups: group of each device, whole numbers from 0.
      places: memory for the place of each device, int32; below 0 for devices that are no members.
    """
    from fl_dpftrl.support.kernels import check_in_loops as loops  # Slow to load.

    self._loops = loops
    self._groups = groups
    self.sizes = np.bincount(groups).astype(np.int64)
    self.first = np.cumsum(self.sizes) - self.sizes
    self.members = np.argsort(groups, kind='stable').astype(np.int32)
    self._places = places
    self._places[self.members] = np.arange(groups.size, dtype=np.int32)

  @property
  def size(self) -> int:
    return int(self.sizes.sum())

  def add(self, devices: np.ndarray) -> None:
    """Adds devices; members stay."""
    self._loops.add(devices, self._groups, self._places, self.members, self.first, self.sizes)

  def remove(self, devices: np.ndarray) -> None:
    """Removes those devices that are members."""
    self._loops.remove(devices, self._groups, self._places, self.members, self.first, self.sizes)


class Waiting:
  """Batches of devices with their times of return, rounded up to the end of a step."""

  def __init__(self, step: float = 1.0):
    self._step = step
    self._batches: dict[int, list[tuple[np.ndarray, np.ndarray]]] = {}
    self._order: list[int] = []
    self.size = 0

  @property
  def earliest(self) -> float:
    """Returns the time of the next return; infinite if no device waits."""
    return self._order[0] * self._step if self._order else math.inf

  def add(self, times: np.ndarray, devices: np.ndarray, tokens: np.ndarray) -> None:
    """Adds devices, each with a token that is returned with it."""
    if not devices.size:
      return
    steps = np.ceil(times / self._step).astype(np.int64)
    since = steps - steps.min()
    # NumPy's stable sort is several times as fast for 16 bits.
    order = np.argsort(since.astype(np.min_scalar_type(since.max())), kind='stable')
    steps = steps[order]
    devices, tokens = devices[order], tokens[order]
    cuts = [0, *(np.flatnonzero(np.diff(steps)) + 1).tolist(), steps.size]
    for begin, end in zip(cuts, cuts[1:]):
      first = int(steps[begin])
      if first not in self._batches:
        self._batches[first] = []
        heapq.heappush(self._order, first)
      self._batches[first].append((devices[begin:end], tokens[begin:end]))
    self.size += devices.size

  def due(self, now: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Removes and yields batches of devices and tokens that return by now."""
    while self._order and self._order[0] * self._step <= now:
      for devices, tokens in self._batches.pop(heapq.heappop(self._order)):
        self.size -= devices.size
        yield devices, tokens
