"""Simulated population: devices and their properties."""

import dataclasses
import functools
import math

import numpy as np

from fl_dpftrl.planning.simulation import availabilities, seeds
from fl_dpftrl.support import checks, machine

_RATES, _SPEEDS = 3, 4
_BYTES_A_DEVICE = 64  # of its record, and of pools and logs

# One device, in half a line of the processor's cache: what a check-in reads of it lies together.
RECORD = np.dtype(
  [
    ('rate', np.float32),
    ('report_seconds', np.float32),
    ('habits', np.float32, availabilities.HABITS),
    ('last_round', np.int32),
    ('place', np.int32),
    ('group', np.uint16),
    ('is_chosen', np.bool_),
    ('has_ended', np.bool_),
  ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimulatedPopulation:
  """Devices whose rates, speeds and habits are drawn from a seed.

  Device i has number i. If devices are replaced, new ones get the numbers from num_devices on.

  Attributes:
    check_ins_per_hour: median over the devices of the check-ins per hour while a device can be
      reached.
    rate_spread: standard deviation of the natural logarithm of that rate.
    report_minutes: median over the devices of the minutes from being chosen to reporting; each
      report takes 0.5 to 1.5 times its device's value.
    speed_spread: standard deviation of the natural logarithm of that time.
    dropout: probability that a chosen device never reports.
    turnover_per_day: fraction of the devices replaced by new ones per day.
    forgetting_per_day: fraction of the devices that lose the state of their timer per day.

  Source: Bonawitz et al. 2019, "Towards federated learning at scale: system design", section 9,
  for dropout (6 to 10 %) and rounds of a few minutes. The log-normal spreads and two
  check-ins an hour are a choice, not measured.
  """

  num_devices: int
  seed: int = 0
  availability: availabilities.Availability = availabilities.Always()
  check_ins_per_hour: float = 2.0
  rate_spread: float = 1.0
  report_minutes: float = 3.0
  speed_spread: float = 0.5
  dropout: float = 0.0
  turnover_per_day: float = 0.0
  forgetting_per_day: float = 0.0

  def __post_init__(self):
    checks.whole(0, math.inf, seed=self.seed)
    checks.keep(self, functools.partial(checks.whole, 1, 2**31 - 1), 'num_devices')
    checks.positive(check_ins_per_hour=self.check_ins_per_hour, report_minutes=self.report_minutes)
    checks.between(0.0, 5.0, rate_spread=self.rate_spread, speed_spread=self.speed_spread)
    changes = {name: getattr(self, name) for name in ('turnover_per_day', 'forgetting_per_day')}
    checks.between(0.0, 1.0, dropout=self.dropout, **changes)
    if self.dropout == 1.0:
      raise ValueError(f'dropout must be below 1, got {self.dropout!r}')

  @property
  def changes(self) -> bool:
    """True if devices can return although their timers would never run out."""
    return self.turnover_per_day > 0.0 or self.forgetting_per_day > 0.0

  @property
  def rates(self) -> np.ndarray:
    """Returns each device's check-ins per hour while it can be reached."""
    return self._spread(_RATES, self.check_ins_per_hour, self.rate_spread)

  @property
  def report_seconds(self) -> np.ndarray:
    """Returns each device's mean seconds from being chosen to reporting."""
    return self._spread(_SPEEDS, 60.0 * self.report_minutes, self.speed_spread)

  def _spread(self, purpose: int, median: float, spread: float) -> np.ndarray:
    draws = seeds.generator(self.seed, purpose)
    values = draws.standard_normal(self.num_devices, dtype=np.float32)
    values *= np.float32(spread)
    np.exp(values, out=values)
    values *= np.float32(median)
    return values


def check_memory(num_devices: int) -> None:
  """Raises ValueError where there is not the memory for so many devices."""
  needed, free = _BYTES_A_DEVICE * num_devices, machine.free_memory()
  if free is not None and needed > free:
    raise ValueError(
      f'num_devices={num_devices} need about {needed / 2**30:.1f} GiB of memory and'
      f' {free / 2**30:.1f} GiB are free; at most {free // _BYTES_A_DEVICE} devices would do'
    )
