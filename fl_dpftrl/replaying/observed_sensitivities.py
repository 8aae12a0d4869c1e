"""Sensitivities of the devices of a log, and their distribution.

All are in units of the first run's noise multiplier. Over independent runs the squares of
sensitivity over noise multiplier add up.
"""

import math
from collections.abc import Callable, Sequence

from fl_dpftrl import sensitivities
from fl_dpftrl.accounting import guarantees
from fl_dpftrl.replaying import device_tallies

Sensitivity = sensitivities.Sensitivity
Spend = Callable[..., guarantees.Guarantee]


def of_largest(tally: device_tallies.Tally, group_size: int) -> Sensitivity:
  """Returns the largest sensitivity of a group, a sum by the triangle inequality."""
  value = sum(math.sqrt(exposed.square) for exposed in tally.most_exposed[:group_size])
  is_exact = tally.exact and group_size == 1
  return Sensitivity(value, sensitivities.EXACT if is_exact else sensitivities.UPPER_BOUND)


def quantiles(tally: device_tallies.Tally, shares: Sequence[float]) -> list[tuple[float, float]]:
  """Returns a sensitivity that covers each share of the devices, at most 0.14 % too large."""
  return [(share, _at_most(tally, share)) for share in shares]


def _at_most(tally: device_tallies.Tally, share: float) -> float:
  counts = tally.exposures.counts.cumsum()
  place = int((counts < share * counts[-1]).sum())
  upper = device_tallies.upper_squares(tally.exposures.values[place])
  return math.sqrt(min(float(upper), tally.most_exposed[0].square))


def histogram(
  tally: device_tallies.Tally, loss: Callable[[float], float], num_bars: int
) -> list[tuple[float, float, int]]:
  """Histogram of devices by privacy loss: lower end, upper end and count."""
  bins = tally.exposures
  losses = [loss(math.sqrt(square)) for square in device_tallies.upper_squares(bins.values)]
  low, width = losses[0], (losses[-1] - losses[0]) / num_bars
  bars = [0] * num_bars
  for value, count in zip(losses, bins.counts.tolist()):
    place = int((value - low) / width) if width else 0
    bars[min(place, num_bars - 1)] += count
  return [(low + i * width, low + (i + 1) * width, count) for i, count in enumerate(bars)]
