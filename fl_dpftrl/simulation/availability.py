"""When devices can be reached: always, or at night on their own chargers."""

import dataclasses
from typing import Protocol

import numpy as np

from fl_dpftrl.simulation import seeds

_HOUR = 3600
_DAY = 24 * _HOUR
_HABITS, _JITTER = 0, 1


@dataclasses.dataclass(frozen=True, eq=False)
class Windows:
  """One window a night for each device, in its own local time.

  A night runs from noon to noon, so that a window never spans two of them.

  Attributes:
    starts: shape [num_devices], usual start in seconds after local noon.
    lengths: shape [num_devices], seconds; start and length fit into a day.
    offsets: shape [num_devices], seconds that local time is ahead of UTC.
    jitter: a night's start moves by up to this many seconds, either way.
    seed: names the nights' draws.
  """

  starts: np.ndarray
  lengths: np.ndarray
  offsets: np.ndarray
  jitter: float
  seed: int

  def available(self, now: int) -> np.ndarray:
    """Who can be reached: bool, shape [num_devices]; now in UTC seconds."""
    local = now + self.offsets - _DAY // 2
    night, seconds = np.divmod(local, _DAY)
    starts = self.starts
    if self.jitter:
      starts = np.clip(
          starts + self._moved(night), 0.0, _DAY - self.lengths
      )
    return (starts <= seconds) & (seconds < starts + self.lengths)

  def _moved(self, night: np.ndarray) -> np.ndarray:
    moved = np.zeros(night.shape)
    for index in np.unique(night):
      draws = seeds.generator(self.seed, _JITTER, int(index) % 2**32)
      here = night == index
      moved[here] = draws.uniform(-self.jitter, self.jitter, night.size)[here]
    return moved


class Availability(Protocol):
  """A kind of population's habits, from which each device draws its own."""

  def windows(self, num_devices: int, seed: int) -> Windows:
    ...


@dataclasses.dataclass(frozen=True)
class Always:
  """Every device can be reached at any time."""

  def windows(self, num_devices: int, seed: int) -> Windows:
    zeros = np.zeros(num_devices)
    return Windows(
        zeros, np.full(num_devices, float(_DAY)), zeros, 0.0, seed
    )


@dataclasses.dataclass(frozen=True)
class Nightly:
  """Devices can be reached while they charge, idle, at night.

  Attributes:
    charging_hour: mean local hour at which devices are plugged in, 12 to 36
      (24.5 is half past midnight).
    charging_hour_spread: standard deviation between devices, in hours.
    window_hours: shortest and longest window; devices differ uniformly.
    jitter_hours: each night a device's start moves by up to this, either way.
    time_zones: hours ahead of UTC; each device lives in one of them, at random.

  Raises:
    ValueError: for values outside these ranges.

  Source: Bonawitz et al. 2019, "Towards federated learning at scale", section
  on diurnal variation: availability follows charging, idle and unmetered hours.
  """

  charging_hour: float = 22.5
  charging_hour_spread: float = 1.5
  window_hours: tuple[float, float] = (4.0, 9.0)
  jitter_hours: float = 1.0
  time_zones: tuple[float, ...] = (0.0,)

  def __post_init__(self):
    object.__setattr__(self, 'window_hours', tuple(self.window_hours))
    object.__setattr__(self, 'time_zones', tuple(self.time_zones))
    if not 12.0 <= self.charging_hour <= 36.0:
      raise ValueError(
          f'charging_hour must lie in 12 to 36, got {self.charging_hour!r}'
      )
    for name in ('charging_hour_spread', 'jitter_hours'):
      if not 0.0 <= getattr(self, name) <= 12.0:
        raise ValueError(
            f'{name} must lie in 0 to 12, got {getattr(self, name)!r}'
        )
    if (
        len(self.window_hours) != 2
        or not 0.0 < self.window_hours[0] <= self.window_hours[1] <= 24.0
    ):
      raise ValueError(
          'window_hours must be two lengths, the shortest first, in 0 to 24,'
          f' got {self.window_hours!r}'
      )
    if not self.time_zones or not all(
        -14.0 <= zone <= 14.0 for zone in self.time_zones
    ):
      raise ValueError(
          'time_zones must be hours ahead of UTC in -14 to 14, got'
          f' {self.time_zones!r}'
      )

  def windows(self, num_devices: int, seed: int) -> Windows:
    draws = seeds.generator(seed, _HABITS)
    lengths = draws.uniform(*self.window_hours, num_devices) * _HOUR
    starts = (self.charging_hour - 12.0) * _HOUR + (
        self.charging_hour_spread * _HOUR * draws.standard_normal(num_devices)
    )
    zones = np.asarray(self.time_zones, np.float64) * _HOUR
    return Windows(
        starts=np.clip(starts, 0.0, _DAY - lengths),
        lengths=lengths,
        offsets=zones[draws.integers(len(zones), size=num_devices)],
        jitter=self.jitter_hours * _HOUR,
        seed=seed,
    )
