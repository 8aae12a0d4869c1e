"""Availability and presence of devices: always, or mostly at night on their chargers."""

import dataclasses
from typing import Protocol

import numpy as np

from fl_dpftrl.planning.simulation import seeds
from fl_dpftrl.support import checks


class Presence(Protocol):
  """Presence of each device of a population over time.

  Attributes:
    cells: whole numbers from 0, shape [num_devices]; devices of a cell share one ceiling.
  """

  @property
  def cells(self) -> np.ndarray: ...

  def ceiling(self, start: float, end: float) -> np.ndarray:
    """Returns an upper bound of the presence of each cell in [start, end)."""
    ...

  def at(self, devices: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Returns each device's check-in rate relative to its full rate, at most 1."""
    ...


class Availability(Protocol):
  """Availability of a population, from which each device draws its habits."""

  def presence(self, num_devices: int, seed: int, habits: np.ndarray | None = None) -> Presence:
    """Draws habits, which may lie in a given array, float32, shape [num_devices, HABITS]."""
    ...


_HOUR = 3600.0
_DAY = 24 * _HOUR
HABITS = 3
_HABITS = 0
_HOURS, _WIDTH = 24, 2 * _HOUR


@dataclasses.dataclass(frozen=True, eq=False)
class _Everywhere:
  cells: np.ndarray

  def ceiling(self, start, end):
    del start, end
    return np.ones(1)

  def at(self, devices, times):
    del times
    return np.ones(devices.shape)


@dataclasses.dataclass(frozen=True)
class Always:
  """Availability of devices that can be reached at any time."""

  def presence(self, num_devices: int, seed: int, habits: np.ndarray | None = None) -> Presence:
    del seed, habits
    return _Everywhere(np.zeros(num_devices, np.int16))


@dataclasses.dataclass(frozen=True)
class Nightly:
  """Availability at night, while devices charge, are idle and on Wi-Fi.

  Each device has a window that starts when it is usually plugged in, in its own local time. It
  checks in at its full rate inside the window, and at a fraction of that rate outside.

  Attributes:
    charging_hour: mean local hour at which windows start, 12 to 36 (24.5 is half past midnight).
    charging_hour_spread: standard deviation between devices, in hours.
    window_hours: shortest and longest window, in hours; window lengths are uniform between them.
    jitter_hours: largest shift of a device's window in one night, in hours, either way.
    charging_nights: probability that a device is plugged in on a night.
    weekend_delay_hours: delay of the windows in the nights to Saturday and Sunday, in hours.
    daytime: presence outside the window relative to that inside.
    time_zones: hours ahead of UTC; each device lives in one of them, at random.

  Source: Bonawitz et al. 2019, "Towards federated learning at scale: system design", section 9.
  For devices mostly in one region, the number that takes part is about four times as high at
  night as at its lowest. The defaults give this ratio. Hours, spreads and weekends are a
  choice, not measured.
  """

  charging_hour: float = 22.5
  charging_hour_spread: float = 1.5
  window_hours: tuple[float, float] = (4.0, 9.0)
  jitter_hours: float = 1.0
  charging_nights: float = 0.9
  weekend_delay_hours: float = 1.0
  daytime: float = 0.2
  time_zones: tuple[float, ...] = (0.0,)

  def __post_init__(self):
    object.__setattr__(self, 'window_hours', tuple(self.window_hours))
    object.__setattr__(self, 'time_zones', tuple(self.time_zones))
    checks.between(12.0, 36.0, charging_hour=self.charging_hour)
    checks.between(0.0, 1.0, charging_nights=self.charging_nights, daytime=self.daytime)
    for name in ('charging_hour_spread', 'jitter_hours', 'weekend_delay_hours'):
      checks.between(0.0, 12.0, **{name: getattr(self, name)})
    if (
      len(self.window_hours) != 2 or not 0.0 < self.window_hours[0] <= self.window_hours[1] <= 24.0
    ):
      raise ValueError(
        'window_hours must be two lengths, the shortest first, in 0 to 24,'
        f' got {self.window_hours!r}'
      )
    if not self.time_zones or not all(-14.0 <= zone <= 14.0 for zone in self.time_zones):
      raise ValueError(
        f'time_zones must be hours ahead of UTC in -14 to 14, got {self.time_zones!r}'
      )

  def presence(self, num_devices: int, seed: int, habits: np.ndarray | None = None) -> 'Nights':
    draws = seeds.generator(seed, _HABITS)
    if habits is None:
      habits = np.empty((num_devices, HABITS), np.float32)
    lengths = (_HOUR * draws.uniform(*self.window_hours, num_devices)).astype(np.float32)
    starts = _HOUR * (
      self.charging_hour - 12.0 + self.charging_hour_spread * draws.standard_normal(num_devices)
    )
    starts = np.clip(starts.astype(np.float32), 0.0, np.float32(_DAY) - lengths)
    zones = np.asarray(self.time_zones, np.float32) * np.float32(_HOUR)
    habits[:, 0], habits[:, 1] = starts, lengths
    habits[:, 2] = zones[draws.integers(len(zones), size=num_devices)]
    return Nights(self, habits, seed)


class Nights:
  """Presence with one window per night for each device.

  A night runs from noon to noon in local time, so that a window lies within one night.

  Args:
    habits: shape [num_devices, 3]: usual start of the window in seconds after local noon, its
      length in seconds, and the seconds that local time is ahead of UTC.
    seed: seed of the nights' draws.
  """

  def __init__(self, kind: Nightly, habits: np.ndarray, seed: int):
    self._kind = kind
    self._habits = habits
    self._seed = np.uint64(seed % 2**64)
    starts, lengths, offsets = habits.T
    begin = np.mod(starts - offsets + np.float32(_DAY / 2), np.float32(_DAY))
    hours = np.minimum((begin / np.float32(_HOUR)).astype(np.int16), _HOURS - 1)
    widths = (lengths / np.float32(_WIDTH)).astype(np.int16)
    self.cells = (widths - widths.min()) * np.int16(_HOURS) + hours
    # Start and length, in seconds of the UTC day, of the time when a window of
    # each cell may be open. Rounding to float32 is far below a second.
    self._first = np.arange(int(self.cells.max()) + 1) % _HOURS * _HOUR - 1.0
    self._first -= _HOUR * kind.jitter_hours
    margin = 2.0 + _HOUR * (1.0 + 2.0 * kind.jitter_hours + kind.weekend_delay_hours)
    longest = np.zeros(self._first.size, np.float32)
    np.maximum.at(longest, self.cells.astype(np.intp), lengths)  # A fast loop of NumPy for intp.
    self._longest = margin + longest

  def ceiling(self, start: float, end: float) -> np.ndarray:
    since = np.mod(start - self._first, _DAY)
    may_be_open = (since < self._longest) | (since + (end - start) >= _DAY)
    return np.where(may_be_open, 1.0, self._kind.daytime)

  def at(self, devices: np.ndarray, times: np.ndarray) -> np.ndarray:
    from fl_dpftrl.support.kernels import check_in_loops as loops  # Slow to load.

    kind = self._kind
    moves = _HOUR * kind.jitter_hours, _HOUR * kind.weekend_delay_hours
    shares = kind.charging_nights, kind.daytime
    return loops.nightly(devices, times, self._habits, self._seed, *moves, *shares)
