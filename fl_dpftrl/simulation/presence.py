"""When devices can be reached: what every kind of availability has to say."""

from typing import Protocol

import numpy as np


class Presence(Protocol):
  """The presence of each device of a population, at any time.

  Attributes:
    cells: whole numbers from 0, shape [num_devices]; devices of a cell have one
      ceiling.
  """

  cells: np.ndarray

  def ceiling(self, start: float, end: float) -> np.ndarray:
    """The most presence of any device of each cell in [start, end).

    Args:
      start: UTC seconds.
      end: likewise.

    Returns:
      In 0 to 1, shape [number of cells].
    """
    ...

  def at(self, devices: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The share of its full rate at which each device checks in.

    Args:
      devices: whole numbers from 0.
      times: UTC seconds, of that shape.

    Returns:
      In 0 to 1, of that shape.
    """
    ...


class Availability(Protocol):
  """A kind of population's habits, from which each device draws its own."""

  def presence(self, num_devices: int, seed: int) -> Presence:
    ...
