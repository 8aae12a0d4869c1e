"""Sensitivities of runs and their privacy losses, for the worst participation and that of a log.

All are in units of the first run's noise multiplier. Over independent runs the squares of
sensitivity over noise multiplier add up.
"""

import functools
import math
from collections.abc import Callable, Sequence

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import arithmetic, gaussian, run_noise
from fl_dpftrl.accounting import guarantee as guarantee_lib
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.replaying import tally as tally_lib

Sensitivity = sensitivity_lib.Sensitivity
Spend = Callable[..., guarantee_lib.Guarantee]


def of_largest(tally: tally_lib.Tally, group_size: int) -> Sensitivity:
  """Returns the largest sensitivity of a group of devices in the rounds that they took part in.

  That of several devices is the sum of the largest ones, an upper bound by the triangle
  inequality.
  """
  value = sum(math.sqrt(exposed.square) for exposed in tally.most_exposed[:group_size])
  is_exact = tally.exact and group_size == 1
  return Sensitivity(value, sensitivity_lib.EXACT if is_exact else sensitivity_lib.UPPER_BOUND)


def quantiles(tally: tally_lib.Tally, shares: Sequence[float]) -> list[tuple[float, float]]:
  """Returns for each share a sensitivity that covers that share of the devices.

  At least that share of the devices has no larger sensitivity. Values are rounded up, by at
  most 0.14 %.
  """
  return [(share, _at_most(tally, share)) for share in shares]


def _at_most(tally: tally_lib.Tally, share: float) -> float:
  counts = tally.exposures.counts.cumsum()
  place = int((counts < share * counts[-1]).sum())
  upper = tally_lib.upper_squares(tally.exposures.values[place])
  return math.sqrt(min(float(upper), tally.most_exposed[0].square))


def histogram(
  tally: tally_lib.Tally, loss: Callable[[float], float], num_bars: int
) -> list[tuple[float, float, int]]:
  """Histogram of devices by privacy loss: lower end, upper end and count.

  Args:
    tally: counts of all devices.
    loss: privacy loss of a sensitivity; increasing.
    num_bars: number of bars of equal width from the least to the largest loss.
  """
  bins = tally.exposures
  losses = [loss(math.sqrt(square)) for square in tally_lib.upper_squares(bins.values)]
  low, width = losses[0], (losses[-1] - losses[0]) / num_bars
  bars = [0] * num_bars
  for value, count in zip(losses, bins.counts.tolist()):
    place = int((value - low) / width) if width else 0
    bars[min(place, num_bars - 1)] += count
  return [(low + i * width, low + (i + 1) * width, count) for i, count in enumerate(bars)]


def spending(
  noises: Sequence[run_noise.RunNoise], *, deltas: Sequence[float], adjacency: str, group_size: int
) -> Spend:
  """Returns the function from the sensitivity to one device's updates to what runs spend on it.

  It takes the sensitivity and, for several devices that each have it, group_size. Nothing is
  guaranteed if any round has no noise.

  Raises:
    ValueError: for an argument outside its range.
  """
  for delta in deltas:
    gaussian.check_delta(delta)
  adjacency_lib.check(adjacency, group_size)
  has_noise = all(noise.noise_multiplier for noise in noises)
  return functools.partial(
    guarantee_lib.Guarantee.of,
    noise_multiplier=noises[0].noise_multiplier if has_noise else 0.0,
    delta=deltas,
    adjacency=adjacency,
    rounding=run_noise.rounding(noises) or arithmetic.Rounding(),
  )


def of_schemas(
  noises: Sequence[run_noise.RunNoise],
  schemas: Sequence[participation.MinSep],
  deltas: Sequence[float],
  adjacency: str,
  group_size: int,
) -> guarantee_lib.Guarantee:
  """Returns the guarantee of a group of devices that keep to a schema in all rounds of each run.

  Args:
    noises: noise of each run.
    schemas: schema of each run.
    deltas, adjacency, group_size: see `spending`.
  """
  noises = [noise.until(s.num_rounds) for noise, s in zip(noises, schemas, strict=True)]
  spend = spending(noises, deltas=deltas, adjacency=adjacency, group_size=group_size)
  return spend(run_noise.worst_case(noises, schemas), group_size=group_size)
