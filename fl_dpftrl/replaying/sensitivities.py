"""Sensitivities of runs and their privacy losses, for the worst participation and that of a log.

All are in units of the first run's noise multiplier. Over independent runs the squares of
sensitivity over noise multiplier add up.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import arithmetic, gaussian, run_noise
from fl_dpftrl.accounting import losses as privacy_loss
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.replaying import tally as tally_lib

Sensitivity = sensitivity_lib.Sensitivity

_epsilon = functools.lru_cache(gaussian.epsilon)
# Of δ, whose own rounding is larger.
_NEGLIGIBLE = 1e-16


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


def of_schemas(
  noises: Sequence[run_noise.RunNoise],
  schemas: Sequence[participation.MinSep],
  deltas: Sequence[float],
  adjacency: str,
  group_size: int,
) -> privacy_loss.PrivacyLoss:
  """Returns the loss of a group of devices that keep to a schema in each run, in all its rounds.

  Args:
    noises: noise of each run.
    schemas: schema of each run.
    deltas, adjacency, group_size: see `Spending`.
  """
  noises = [noise.until(s.num_rounds) for noise, s in zip(noises, schemas, strict=True)]
  spend = Spending.of(noises, deltas=deltas, adjacency=adjacency, group_size=group_size)
  return spend.of_group(run_noise.worst_case(noises, schemas))


@dataclasses.dataclass(frozen=True)
class Spending:
  """Conversion of sensitivities to privacy losses; nothing is guaranteed without noise.

  Attributes:
    noise_multiplier: that of the first run; 0 if any run has no noise.
    deltas: δ, one or several.
    adjacency: 'zero_out' or 'replace_one'.
    group_size: devices that are protected together.
    rounding: what releases in whole numbers add; nothing where they are not covered.

  Raises:
    ValueError: for an attribute outside its range.
  """

  noise_multiplier: float
  deltas: Sequence[float]
  adjacency: str
  group_size: int
  rounding: arithmetic.Rounding = arithmetic.Rounding()

  def __post_init__(self):
    if not self.deltas:
      raise ValueError('deltas must hold at least one delta')
    for delta in self.deltas:
      gaussian.check_delta(delta)
    adjacency_lib.check(self.adjacency, self.group_size)

  @classmethod
  def of(
    cls,
    noises: Sequence[run_noise.RunNoise],
    *,
    deltas: Sequence[float],
    adjacency: str,
    group_size: int,
  ) -> 'Spending':
    """Returns the conversion for runs of one population."""
    has_noise = all(noise.noise_multiplier for noise in noises)
    multiplier = noises[0].noise_multiplier if has_noise else 0.0
    rounding = run_noise.rounding(noises) or arithmetic.Rounding()
    return cls(multiplier, deltas, adjacency, group_size, rounding)

  def of_one(self, sensitivity: Sensitivity) -> privacy_loss.PrivacyLoss:
    """Returns the loss of a device with that sensitivity; ValueError if it is a lower bound."""
    return self._loss(sensitivity, 1)

  def of_group(self, sensitivity: Sensitivity) -> privacy_loss.PrivacyLoss:
    """Returns the loss of a group of devices, each with that sensitivity; see `of_one`."""
    return self._loss(sensitivity, self.group_size)

  def _loss(self, sensitivity: Sensitivity, group_size: int) -> privacy_loss.PrivacyLoss:
    value, kind = adjacency_lib.scaled(sensitivity, self.adjacency, group_size)
    if kind not in (sensitivity_lib.EXACT, sensitivity_lib.UPPER_BOUND):
      raise ValueError(f'a guarantee cannot rest on a {kind} of sensitivity')
    effective = self.rounding.lengthened(self.noise_multiplier / value)
    return privacy_loss.PrivacyLoss(
      sensitivity=value,
      sensitivity_kind=kind,
      effective_noise_multiplier=effective,
      rho=gaussian.rho(effective) if effective else None,
      curve=tuple(
        privacy_loss.Point(d, self._epsilon(effective, d) if effective else None)
        for d in self.deltas
      ),
    )

  def _epsilon(self, effective: float, delta: float) -> float | None:
    """Returns ε at δ, of which δ₀ is taken away; None where nothing is left."""
    within = _epsilon(effective, delta)
    most = within + 1.0
    extra = self.rounding.delta(most) if self.rounding.chance else 0.0
    if extra < _NEGLIGIBLE * delta:
      return within
    value = _epsilon(effective, delta - extra) if extra < delta else math.inf
    return value if value <= most else None

  def rho(self, sensitivity: float) -> float:
    """Returns ρ of the sensitivity to one device."""
    value = sensitivity * adjacency_lib.factor(self.adjacency)
    return gaussian.rho(self.rounding.lengthened(self.noise_multiplier / value))
