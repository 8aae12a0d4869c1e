"""Waiting devices, sorted by the time of their return."""

import heapq
import math
from collections.abc import Iterator

import numpy as np


class Waiting:
  """Batches of devices with the time of return of each device.

  Times are rounded up to the end of a step, so that no device returns early.

  Args:
    step: length of a step.
  """

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
    order = np.argsort(steps, kind='stable')
    steps = steps[order]
    cuts = np.flatnonzero(np.diff(steps)) + 1
    firsts = steps[np.append(0, cuts)].tolist()
    parts = zip(firsts, np.split(devices[order], cuts), np.split(tokens[order], cuts))
    for first, *part in parts:
      if first not in self._batches:
        self._batches[first] = []
        heapq.heappush(self._order, first)
      self._batches[first].append((part[0], part[1]))
    self.size += devices.size

  def due(self, now: float) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Removes and yields batches of devices and tokens that return by now."""
    while self._order and self._order[0] * self._step <= now:
      for devices, tokens in self._batches.pop(heapq.heappop(self._order)):
        self.size -= devices.size
        yield devices, tokens
