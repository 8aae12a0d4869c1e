"""Check-ins of the devices that are free to: drawn for a stretch of time."""

import numpy as np

from fl_dpftrl.simulation import pool as pool_lib
from fl_dpftrl.simulation import population as population_lib
from fl_dpftrl.simulation import server as server_lib

_OCTAVES = 32
_STRETCH = 600.0
_HOUR = 3600.0
_SPARE = 1.2
_LEARNING = 0.3
_MOST_PACE = 24 * _HOUR
_STEEPEST = 4.0


class CheckIns:
  """Draws from the check-ins of all devices in the pool.

  Devices are in groups of alike ceilings of presence and, within a factor of
  two, of alike rates.

  Attributes:
    pool: devices that check in.
  """

  def __init__(self, people: population_lib.Population, start: int):
    self._people = people
    self._start = start
    octaves = np.ceil(np.log2(people.rates)).astype(np.int16)
    lowest = int(octaves.max()) - _OCTAVES
    octaves = np.maximum(octaves - lowest, 0)
    cells = people.presence.cells.astype(np.int16)
    num_cells = int(cells.max()) + 1
    self.pool = pool_lib.Pool((octaves * num_cells + cells).astype(np.int16))
    groups = np.arange(self.pool.sizes.size)
    self._cells = groups % num_cells
    # Rounding of float32 must not lift a rate above its group's.
    self._rates = 1.000001 * np.exp2(groups // num_cells + float(lowest))
    self._kept = 0.5

  def draw(
      self,
      now: float,
      until: float,
      wanted: int,
      pace: float,
      rng: np.random.Generator,
  ) -> tuple[np.ndarray, np.ndarray, float]:
    """Check-ins from now on, as long as a few more than wanted may take.

    Args:
      now: seconds from the start.
      until: the latest end.
      wanted: how many there should be.
      pace: seconds by which all devices were told to come back later.
      rng: to draw from.

    Returns:
      Devices, none twice, the times of their first check-ins, ascending, and
      the end of the stretch of time; there may be none.
    """
    end = min(now + _STRETCH, until)
    ceilings = self._ceilings(now, end, pace)
    rates = self.pool.sizes * ceilings
    total = float(rates.sum())
    if total > 0.0:
      enough = _SPARE * wanted + 20.0
      end = min(end, now + enough / (total * self._kept))
    groups = np.repeat(
        np.arange(rates.size),
        rng.poisson(rates * (end - now)),
    )
    devices = self.pool.draw(groups, rng.random(groups.size))
    times = rng.uniform(now, end, groups.size)
    here = self._people.presence.at(devices, times + self._start)
    own = here * self._slowed(self._people.rates[devices], pace)
    kept = np.flatnonzero(rng.random(groups.size) * ceilings[groups] < own)
    self._learn(kept.size, groups.size)
    kept = kept[np.argsort(times[kept], kind='stable')]
    _, first = np.unique(devices[kept], return_index=True)
    kept = kept[np.sort(first)]
    return devices[kept], times[kept], end

  def _ceilings(self, start: float, end: float, pace: float) -> np.ndarray:
    """The most that a device of each group checks in, per second."""
    presence = self._people.presence.ceiling(
        start + self._start, end + self._start
    )
    return presence[self._cells] * self._slowed(self._rates, pace)

  def _slowed(self, rates: np.ndarray, pace: float) -> np.ndarray:
    """Check-ins an hour as check-ins a second, with a wait before each."""
    return 1.0 / (_HOUR / rates + pace)

  def _learn(self, kept: int, drawn: int) -> None:
    """Adapts how long a stretch is; no matter to who checks in."""
    share = (kept + 1.0) / (drawn + 2.0)
    self._kept += _LEARNING * (share - self._kept)


class Pace:
  """How much later the server tells devices to come back.

  It knows how long the last round took to choose its devices, and aims at the
  server's pace_minutes.

  Attributes:
    seconds: that all devices wait in addition.
  """

  def __init__(self, server: server_lib.Server, check_ins_per_hour: float):
    self._target = 60.0 * server.pace_minutes
    self._usual = _HOUR / check_ins_per_hour
    self.seconds = 0.0

  def learn(self, took: float, share: float) -> None:
    """Adapts to a round that chose a share of its devices in so many seconds."""
    if self._target:
      factor = self._target * share / max(took, 1e-3)
      factor = min(max(factor, 1.0 / _STEEPEST), _STEEPEST)
      waited = factor * (self.seconds + self._usual) - self._usual
      self.seconds = min(max(waited, 0.0), _MOST_PACE)
