"""Protocols of availability: when the devices of a population can be reached."""

from typing import Protocol

import numpy as np


class Presence(Protocol):
  """Presence of each device of a population over time.

  Attributes:
    cells: whole numbers from 0, shape [num_devices]; devices of a cell share one ceiling.
  """

  @property
  def cells(self) -> np.ndarray: ...

  def ceiling(self, start: float, end: float) -> np.ndarray:
    """Returns an upper bound of the presence of each cell in [start, end).

    Args:
      start: start of the interval, in UTC seconds.
      end: end of the interval, in UTC seconds.

    Returns:
      Bounds from 0 to 1, shape [number of cells].
    """
    ...

  def at(self, devices: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Returns each device's check-in rate relative to its full rate.

    Args:
      devices: device numbers, from 0.
      times: UTC seconds, of the same shape.

    Returns:
      Fractions from 0 to 1, of the same shape.
    """
    ...


class Availability(Protocol):
  """Availability of a population, from which each device draws its habits."""

  def presence(self, num_devices: int, seed: int) -> Presence: ...
