"""Devices that may check in, in groups that can be sampled, and devices that wait to return."""

import heapq
import math
from collections.abc import Iterator

import numpy as np


class Pool:
  """Set of devices in groups, all of them members at first.

  Members of group g are at first[g] to first[g] + sizes[g] − 1 of one array, in no particular
  order, and a removed one is replaced from the end. So no cost depends on the number of devices.
  """

  def __init__(self, groups: np.ndarray):
    self._groups = groups
    self.sizes = np.bincount(groups).astype(np.int64)
    self._first = np.cumsum(self.sizes) - self.sizes
    self._members = np.argsort(groups, kind='stable').astype(np.int32)
    self._places = np.empty(groups.size, np.int32)
    self._places[self._members] = np.arange(groups.size, dtype=np.int32)

  @property
  def size(self) -> int:
    return int(self.sizes.sum())

  def has(self, devices: np.ndarray) -> np.ndarray:
    """Returns True for each device that is a member."""
    return self._places.take(devices) >= 0

  def draw(self, counts: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Returns as many members of each group as counts say, chosen by uniform draws in 0 to 1."""
    sizes = np.repeat(self.sizes, counts)
    within = np.minimum((uniform * sizes).astype(np.int64), sizes - 1)
    within += np.repeat(self._first, counts)
    return self._members.take(within).astype(np.int64)

  def add(self, devices: np.ndarray) -> None:
    """Adds distinct devices that are not members."""
    devices, counts = self._grouped(devices)
    places = self._beyond(counts)
    self._members[places] = devices
    self._places[devices] = places
    self.sizes += counts

  def remove(self, devices: np.ndarray) -> None:
    """Removes distinct members."""
    devices, counts = self._grouped(devices)
    self.sizes -= counts
    holes = self._places.take(devices)
    self._places[devices] = -1
    # A group has as many members beyond its new end as holes before it.
    last = self._members.take(self._beyond(counts))
    last = last[np.flatnonzero(self._places.take(last) >= 0)]
    holes = holes[np.flatnonzero(holes < np.repeat(self._first + self.sizes, counts))]
    self._members[holes] = last
    self._places[last] = holes

  def _grouped(self, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the devices by group, and their number in each group."""
    groups = self._groups.take(devices)
    devices = devices.take(np.argsort(groups, kind='stable'))
    return devices, np.bincount(groups, minlength=self.sizes.size)

  def _beyond(self, counts: np.ndarray) -> np.ndarray:
    """Returns the first places after the members of each group, as many as counts say."""
    ends = self._first + self.sizes - (np.cumsum(counts) - counts)
    return np.repeat(ends, counts) + np.arange(counts.sum())


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
