"""Devices that may check in, in groups that can be sampled, and devices that wait to return."""

import heapq
import math

import numpy as np

_STEPS = 16  # of a block: few enough to be looked at each time


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
  """Devices with their times of return, rounded up to the end of a step, in blocks of steps."""

  def __init__(self, step: float = 1.0):
    self._step, self.size = step, 0
    self._blocks: dict[int, list[np.ndarray]] = {}
    self._order: list[int] = []
    # Steps, devices and tokens, of blocks that have begun.
    self._near = np.zeros((3, 0), np.int64)

  @property
  def earliest(self) -> float:
    """Returns the time of the next return; infinite if no device waits."""
    first = self._blocks[self._order[0]] if self._order else []
    steps = np.hstack([self._near, *first])[0]
    return float(steps.min() * self._step) if steps.size else math.inf

  def add(self, times: np.ndarray, devices: np.ndarray, tokens: np.ndarray) -> None:
    """Adds devices, each with a token that is returned with it."""
    if not devices.size:
      return
    batch = np.stack([np.ceil(times / self._step).astype(np.int64), devices, tokens])
    blocks = batch[0] // _STEPS
    since = blocks - blocks.min()
    # NumPy's stable sort is several times as fast for 16 bits.
    order = np.argsort(since.astype(np.min_scalar_type(since.max())), kind='stable')
    blocks, batch = blocks[order], batch[:, order]
    cuts = [0, *(np.flatnonzero(np.diff(blocks)) + 1).tolist(), blocks.size]
    for begin, end in zip(cuts, cuts[1:]):
      block = int(blocks[begin])
      if block not in self._blocks:
        self._blocks[block] = []
        heapq.heappush(self._order, block)
      self._blocks[block].append(batch[:, begin:end])
    self.size += devices.size

  def due(self, now: float) -> np.ndarray:
    """Removes and returns devices and tokens that return by now, [2, any], the earliest first."""
    last, begun = math.floor(now / self._step), [self._near]
    while self._order and self._order[0] <= last // _STEPS:
      begun += self._blocks.pop(heapq.heappop(self._order))
    near = np.hstack(begun)
    is_due = near[0] <= last
    self._near, due = near[:, ~is_due], near[:, is_due]
    self.size -= due.shape[1]
    return due[1:, np.argsort(due[0], kind='stable')]
