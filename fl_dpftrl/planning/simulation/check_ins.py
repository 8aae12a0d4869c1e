"""Check-ins of the devices whose timers have run, drawn for a period of time."""

import numpy as np

from fl_dpftrl.planning.simulation import pools, populations, servers

_GRADES, _IN_AN_OCTAVE = 128, 4  # of rates
_STRETCH = 600.0
_HOUR = 3600.0
_SPARE, _LEARNING = 1.1, 0.3
_MOST_DRAWS = 1 << 20
_MOST_PACE = 24 * _HOUR
_STEEPEST = 4.0


class CheckIns:
  """Sampler of check-ins of all devices in `pool`, grouped by ceilings of presence and by rates.

  Attributes:
    records: record of each device.
    pool: devices whose timers have run.
  """

  def __init__(self, people: populations.SimulatedPopulation, start: int):
    from fl_dpftrl.support.kernels import check_in_loops as loops  # Slow to load.

    self._loops = loops
    self._start = start
    self.records = records = np.zeros(people.num_devices, populations.RECORD)
    rates = people.rates
    records['rate'], records['report_seconds'] = rates, people.report_seconds
    self._presence = people.availability.presence(records.size, people.seed, records['habits'])
    grades = np.ceil(_IN_AN_OCTAVE * np.log2(rates)).astype(np.int16)
    lowest = max(int(grades.min()), int(grades.max()) - _GRADES)
    grades = np.maximum(grades - lowest, 0)
    cells = self._presence.cells.astype(np.int16)
    num_cells = int(cells.max()) + 1
    records['group'] = grades * num_cells + cells
    self.pool = pools.Pool(records['group'], records['place'])
    groups = np.arange(self.pool.sizes.size)
    self._cells = groups % num_cells
    # Rounding to float32 must not lift a rate above its group's.
    self._rates = 1.000001 * np.exp2((groups // num_cells + lowest) / _IN_AN_OCTAVE)
    self._share = 0.5

  def choose(
    self, now: float, until: float, wanted: int, pace: float, rng: np.random.Generator
  ) -> tuple[np.ndarray, np.ndarray, float]:
    """Chooses the first devices that check in, `wanted` at most.

    Args:
      now: start of the period, in seconds from the start.
      until: its end at the latest.
      pace: seconds by which all devices were told to come back later.

    Returns:
      Devices, times of their check-ins, ascending, and the end of the period.
    """
    pool, records = self.pool, self.records
    end = min(now + _STRETCH, until)
    presence = self._presence.ceiling(now + self._start, end + self._start)
    ceilings = presence[self._cells] / (_HOUR / self._rates + pace)
    total = float(pool.sizes @ ceilings)
    if total == 0.0:
      return np.zeros(0, np.int64), np.zeros(0), end
    enough = min(wanted / self._share, total * (end - now))
    draws = min(int(_SPARE * enough) + 20, _MOST_DRAWS)
    points, needed = rng.random((2, draws))
    gaps = rng.standard_exponential(draws)
    groups = ceilings, pool.sizes, pool.first, pool.members
    devices, times, least, end = self._loops.candidates(
      points, gaps, needed, now, end, *groups, records['rate'], pace
    )
    here = self._presence.at(devices, times + self._start)
    chosen, at = self._loops.choose(devices, times, least, here, records['is_chosen'], wanted)
    end = float(at[-1]) if chosen.size == wanted else end
    # How many are drawn at once has no effect on who checks in.
    share = (chosen.size + 1.0) / (total * (end - now) + 2.0)
    self._share += _LEARNING * (share - self._share)
    return chosen, at, end


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
