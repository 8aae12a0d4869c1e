"""Sensitivities of runs and their privacy losses, for the worst participation and that of a log.

All are in units of the first run's noise multiplier. Over several independent streams of noise,
the squares of sensitivity over noise multiplier add up.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian, run_noise
from fl_dpftrl.accounting import losses as privacy_loss
from fl_dpftrl.replaying import tally as tally_lib

Sensitivity = sensitivity_lib.Sensitivity

_epsilon = functools.lru_cache(gaussian.epsilon)


def occurred(tally: tally_lib.Tally) -> Sensitivity:
  """Largest sensitivity of any device in the rounds that it took part in."""
  kind = sensitivity_lib.EXACT if tally.exact else sensitivity_lib.UPPER_BOUND
  return Sensitivity(math.sqrt(tally.most_exposed[0].square), kind)


def of_group(tally: tally_lib.Tally, group_size: int) -> Sensitivity:
  """Sensitivity of any group of devices: the sum of the largest ones.

  The triangle inequality makes it an upper bound.
  """
  worst = tally.most_exposed[:group_size]
  return Sensitivity(
    sum(math.sqrt(exposed.square) for exposed in worst), sensitivity_lib.UPPER_BOUND
  )


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


@dataclasses.dataclass(frozen=True)
class Spending:
  """Conversion of sensitivities to privacy losses; nothing is guaranteed without noise.

  Attributes:
    noise_multiplier: that of round 0 of the first run; 0 if any round has no noise.
    adjacency: 'zero_out' or 'replace_one'.
    deltas: δ, one or several.
  """

  noise_multiplier: float
  adjacency: str
  deltas: Sequence[float]

  @classmethod
  def of(
    cls, noises: Sequence[run_noise.RunNoise], adjacency: str, deltas: Sequence[float]
  ) -> 'Spending':
    """Returns the conversion for runs of one population."""
    has_noise = all(all(noise.noise_multipliers) for noise in noises)
    return cls(noises[0].noise_multiplier if has_noise else 0.0, adjacency, deltas)

  def loss(
    self, sensitivity: sensitivity_lib.Sensitivity, group_size: int = 1
  ) -> privacy_loss.PrivacyLoss:
    """Returns the loss of a sensitivity; ValueError if that is a lower bound."""
    value, kind = adjacency_lib.scaled(sensitivity, self.adjacency, group_size)
    if kind not in (sensitivity_lib.EXACT, sensitivity_lib.UPPER_BOUND):
      raise ValueError(f'a guarantee cannot rest on a {kind} of sensitivity')
    effective = self.noise_multiplier / value
    return privacy_loss.PrivacyLoss(
      sensitivity=value,
      sensitivity_kind=kind,
      effective_noise_multiplier=effective,
      rho=gaussian.rho(effective) if effective else None,
      curve=tuple(
        privacy_loss.Point(d, _epsilon(effective, d) if effective else None) for d in self.deltas
      ),
    )

  def rho(self, sensitivity: float) -> float:
    """Returns ρ of the sensitivity to one device."""
    return gaussian.rho(
      self.noise_multiplier / (sensitivity * adjacency_lib.factor(self.adjacency))
    )
