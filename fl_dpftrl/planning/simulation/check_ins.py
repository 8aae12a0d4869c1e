"""Check-ins of the devices whose timers have run, drawn for a period of time."""

import numpy as np

from fl_dpftrl.planning.simulation import pools, populations, servers

_OCTAVES = 32
_STRETCH = 600.0
_HOUR = 3600.0
_SPARE = 1.2
_LEARNING = 0.3
_MOST_PACE = 24 * _HOUR
_STEEPEST = 4.0


class CheckIns:
  """Sampler of check-ins of all devices in `pool`, grouped by ceilings of presence and by rates."""

  def __init__(self, people: populations.SimulatedPopulation, start: int):
    self._people = people
    self._start = start
    octaves = np.ceil(np.log2(people.rates)).astype(np.int16)
    lowest = int(octaves.max()) - _OCTAVES
    octaves = np.maximum(octaves - lowest, 0)
    cells = people.presence.cells.astype(np.int16)
    num_cells = int(cells.max()) + 1
    self.pool = pools.Pool((octaves * num_cells + cells).astype(np.int16))
    groups = np.arange(self.pool.sizes.size)
    self._cells = groups % num_cells
    # Rounding to float32 must not lift a rate above its group's.
    self._rates = 1.000001 * np.exp2(groups // num_cells + float(lowest))
    self._share = 0.5

  def draw(
    self, now: float, until: float, wanted: int, pace: float, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray, float]:
    """Draws check-ins for about as long as slightly more than `wanted` take.

    Args:
      now: start of the period, in seconds from the start.
      pace: seconds by which all devices were told to come back later.

    Returns:
      Distinct devices, times of their first check-ins, ascending, and the end of the period.
    """
    end = min(now + _STRETCH, until)
    ceilings = self._ceilings(now, end, pace)
    rates = self.pool.sizes * ceilings
    total = float(rates.sum())
    if total > 0.0:
      enough = _SPARE * wanted + 20.0
      end = min(end, now + enough / (total * self._share))
    counts = rng.poisson(rates * (end - now))
    drawn = int(counts.sum())
    devices = self.pool.draw(counts, rng.random(drawn))
    times = rng.uniform(now, end, drawn)
    device_rates = self._slowed(self._people.rates.take(devices), pace)
    needed = rng.random(drawn) * np.repeat(ceilings, counts)
    # Presence is at most 1, and only matters to those that would check in with it.
    indices = np.flatnonzero(needed < device_rates)
    devices, times = devices[indices], times[indices]
    here = self._people.presence.at(devices, times + self._start)
    indices = np.flatnonzero(needed[indices] < here * device_rates[indices])
    # The length of a period has no effect on who checks in.
    self._share += _LEARNING * ((indices.size + 1.0) / (drawn + 2.0) - self._share)
    devices, times = devices[indices], times[indices]
    order = np.argsort(times)
    devices, times = devices[order], times[order]
    first = _first(devices)
    return devices[first], times[first], end

  def _ceilings(self, start: float, end: float, pace: float) -> np.ndarray:
    """Returns the maximum check-in rate of a device of each group, per second."""
    presence = self._people.presence.ceiling(start + self._start, end + self._start)
    return presence[self._cells] * self._slowed(self._rates, pace)

  def _slowed(self, rates: np.ndarray, pace: float) -> np.ndarray:
    """Converts hourly check-in rates to rates per second after a wait."""
    return 1.0 / (_HOUR / rates + pace)


def _first(devices: np.ndarray) -> np.ndarray:
  """Returns the index at which each device is first, in ascending order."""
  # A sort of numbers that hold device and index is faster than one of indices.
  both = np.sort(devices << 32 | np.arange(devices.size))
  is_first = np.diff(both >> 32, prepend=-1) > 0
  return np.sort(both[is_first] & 0xFFFFFFFF)


class Pace:
  """Time by which devices are told to come back later, so that rounds take pace_minutes to fill."""

  def __init__(self, server: servers.Server, check_ins_per_hour: float):
    self._target = 60.0 * server.pace_minutes
    self._usual = _HOUR / check_ins_per_hour
    self.seconds = 0.0

  def learn(self, took: float, share: float) -> None:
    """Adapts to a round that chose a fraction of its devices in `took` seconds."""
    if self._target:
      factor = self._target * share / max(took, 1e-3)
      factor = min(max(factor, 1.0 / _STEEPEST), _STEEPEST)
      waited = factor * (self.seconds + self._usual) - self._usual
      self.seconds = min(max(waited, 0.0), _MOST_PACE)
