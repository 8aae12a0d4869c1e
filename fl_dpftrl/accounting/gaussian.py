"""Guarantees of the Gaussian mechanism, with all rounds as one release."""

import dataclasses
import math
import numbers
from typing import TYPE_CHECKING

import numpy as np
import scipy

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import arithmetic
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from fl_dpftrl.text import rounding as text

if TYPE_CHECKING:
  from dp_accounting.pld import privacy_loss_distribution


_DISCRETIZATION = 1e-4
# For μ outside these limits the closed-form bound is as tight as the PLD.
_LEAST_MU, _LARGEST_MU = 1e-10, 1e3
_ROUNDING = 1e-12
# dp_accounting stores and composes distributions of up to so many values in
# another way, which is quick.
_MOST_SPARSE = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Guarantee:
  """Guarantee of a run with one strategy for every device.

  Attributes:
    sensitivity: largest change of C x between neighbouring runs per unit of clip norm, or an
      upper bound on it.
    sensitivity_kind: 'exact' or 'upper_bound'.
    noise_multiplier: standard deviation of Z over the clip norm.
    effective_noise_multiplier: noise_multiplier / sensitivity, less what rounding adds.
    rho: ρ of zero-concentrated differential privacy (zCDP).
    epsilon: ε at delta.
    delta: δ.
    adjacency: 'zero_out' (one device's updates are replaced by zeros) or 'replace_one' (one
      device's data is replaced).
    group_size: number of devices protected together.
    schema: participation schema that every device keeps to.
    assumptions: sentences that must hold for the guarantee to be valid.
    rounding: what releases in whole numbers add, which the figures have; None for real numbers.
  """

  sensitivity: float
  sensitivity_kind: str
  noise_multiplier: float
  effective_noise_multiplier: float
  rho: float
  epsilon: float
  delta: float
  adjacency: str
  group_size: int
  schema: schemas.MinSep
  assumptions: tuple[str, ...]
  rounding: arithmetic.Rounding | None = None

  def __str__(self) -> str:
    noise, epsilon = (text.up(value) for value in (self.noise_multiplier, self.epsilon))
    return f'ε = {epsilon} at δ = {text.exact(self.delta)}, noise multiplier {noise}'

  @property
  def mu(self) -> float:
    """μ of Gaussian differential privacy."""
    return mu(self.effective_noise_multiplier)

  def epsilon_at(self, delta: float) -> float:
    """Returns ε at another δ; several calls trace the privacy curve."""
    return epsilon(self.effective_noise_multiplier, delta)


def check_positive(name: str, value: float) -> None:
  """Raises ValueError unless value is positive and finite."""
  if not (isinstance(value, numbers.Real) and math.isfinite(value) and value > 0.0):
    raise ValueError(f'{name} must be positive and finite, got {value!r}')


def check_delta(delta: float) -> None:
  """Raises ValueError unless 0 < delta < 1."""
  if not (isinstance(delta, numbers.Real) and 0.0 < delta < 1.0):
    raise ValueError(f'delta must lie strictly between 0 and 1, got {delta!r}')


def rho(effective_noise_multiplier: float) -> float:
  """Returns ρ of zCDP: 1 / (2 · multiplier²).

  Source: Bun and Steinke 2016, proposition 1.6.
  """
  check_positive('effective_noise_multiplier', effective_noise_multiplier)
  square = effective_noise_multiplier * effective_noise_multiplier
  value = 0.5 / square if square else math.inf
  if not math.isfinite(value):
    raise ValueError(
      f'effective_noise_multiplier={effective_noise_multiplier!r} is too'
      ' little noise: ρ is beyond the largest number'
    )
  return value


def mu(effective_noise_multiplier: float) -> float:
  """Returns μ of Gaussian differential privacy: 1 / multiplier.

  The trade-off between false positives and false negatives is that of N(0, 1) and N(μ, 1).

  Source: Dong, Roth and Su 2022, theorem 2.7.
  """
  check_positive('effective_noise_multiplier', effective_noise_multiplier)
  return 1.0 / effective_noise_multiplier


def epsilon(effective_noise_multiplier: float, delta: float) -> float:
  """Returns ε at δ from the privacy loss distribution, for zero-out adjacency.

  The discretisation is pessimistic: ε is never understated. If the noise or δ is too small for
  the distribution, ε is the bound of `_epsilon_bound`.

  Source: Koskela et al. 2020; Doroshenko et al. 2022 (connect the dots).
  """
  check_delta(delta)
  rho(effective_noise_multiplier)  # raises if ε would overflow
  distance = mu(effective_noise_multiplier)
  bound = _epsilon_bound(distance, delta)
  if not _LEAST_MU < distance < _LARGEST_MU:
    return bound
  # The loss has mean μ²/2 and standard deviation μ. Steps in proportion to them bound time and
  # memory when the noise is small.
  step = _DISCRETIZATION * max(1.0, distance, distance**2 / 50.0)
  losses = distribution(effective_noise_multiplier, step)
  return min(bound, float(losses.get_epsilon_for_delta(delta)))  # ∞ if δ is tiny


def _epsilon_bound(mu: float, delta: float) -> float:
  """Returns ε ≤ μ²/2 + μ Φ⁻¹(1 − δ), rounded up; 0 if δ(0) ≤ δ.

  The exact curve is δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ). The bound drops the second term,
  which vanishes as μ grows.

  Source: Balle and Wang 2018, theorem 8.
  """
  if math.erf(mu / math.sqrt(8.0)) * (1.0 + _ROUNDING) <= delta:
    return 0.0
  mean, deviation = 0.5 * mu * mu, -mu * float(scipy.special.ndtri(delta))
  rounding = _ROUNDING * (mean + abs(deviation))
  return max(0.0, mean + deviation + rounding)


def account(
  strategy: files.Given,
  schema: schemas.MinSep,
  *,
  noise_multiplier: float,
  delta: float,
  adjacency: str = adjacency_lib.ZERO_OUT,
  group_size: int = 1,
  num_coordinates: int | None = None,
) -> Guarantee:
  """Returns the guarantee of a run with this strategy, schema and noise.

  Args:
    strategy: C as it is run, not normalised; or its file or name, as `load_strategy` takes them.
    schema: number of rounds that use noise, and participation in them.
    noise_multiplier: standard deviation of Z over the clip norm.
    delta: δ of (ε, δ).
    adjacency: 'zero_out' or 'replace_one', which doubles the sensitivity.
    group_size: number of devices protected together; multiplies the sensitivity.
    num_coordinates: parameters of the model, for releases in whole numbers, as
      `CorrelatedNoiseFactory` makes them in process; None for real numbers.

  Raises:
    ValueError: if an argument is out of range, or the schema has more rounds than the strategy
      supports.
  """
  strategy = files.resolved(strategy)
  check_positive('noise_multiplier', noise_multiplier)
  check_delta(delta)
  adjacency_lib.check(adjacency, group_size)
  sensitivity = sensitivity_lib.sensitivity(strategy, schema)
  return from_sensitivity(
    sensitivity,
    schema,
    noise_multiplier=noise_multiplier,
    delta=delta,
    adjacency=adjacency,
    group_size=group_size,
    rounding=rounding_of(strategy, schema, num_coordinates),
  )


def rounding_of(
  strategy: base.Strategy, schema: schemas.MinSep, num_coordinates: int | None
) -> arithmetic.Rounding | None:
  """Returns what releases in whole numbers add to one run; None for real numbers."""
  if num_coordinates is None:
    return None
  schemas.positive_integer('num_coordinates', num_coordinates)
  return arithmetic.rounding([(strategy, schema.num_rounds)], num_coordinates)


def from_sensitivity(
  sensitivity: sensitivity_lib.Sensitivity,
  schema: schemas.MinSep,
  *,
  noise_multiplier: float,
  delta: float,
  adjacency: str = adjacency_lib.ZERO_OUT,
  group_size: int = 1,
  rounding: arithmetic.Rounding | None = None,
) -> Guarantee:
  """Returns the guarantee for a sensitivity that is exact or an upper bound.

  Args:
    sensitivity: sensitivity to one device's updates, before adjacency and group_size.
    schema: participation schema for which the sensitivity holds.
    noise_multiplier, delta, adjacency, group_size: see `account`.
    rounding: what releases in whole numbers add; None for real numbers.
  """
  if sensitivity.kind not in (sensitivity_lib.EXACT, sensitivity_lib.UPPER_BOUND):
    raise ValueError(
      f'a guarantee needs an exact sensitivity or an upper bound, got {sensitivity.kind!r}'
    )
  check_positive('sensitivity', sensitivity.value)
  sensitivity = adjacency_lib.scaled(sensitivity, adjacency, group_size)
  check_positive('noise_multiplier', noise_multiplier)
  effective = noise_multiplier / sensitivity.value
  if rounding is not None:
    effective = rounding.lengthened(effective)
  return Guarantee(
    sensitivity=sensitivity.value,
    sensitivity_kind=sensitivity.kind,
    noise_multiplier=noise_multiplier,
    effective_noise_multiplier=effective,
    rho=rho(effective),
    epsilon=epsilon(effective, delta),
    delta=delta,
    adjacency=adjacency,
    group_size=group_size,
    schema=schema,
    assumptions=assumptions(schema) + adjacency_lib.assumptions(adjacency, group_size),
    rounding=rounding,
  )


def assumptions(schema: schemas.MinSep) -> tuple[str, ...]:
  """Returns the assumptions of a guarantee under this schema, in words."""
  if schema.participations == 1:
    pattern = f'no device takes part twice in {schema.num_rounds} rounds'
  else:
    apart = 'exactly' if isinstance(schema, schemas.FixedSeparation) else 'at least'
    pattern = (
      f'every device takes part in at most {schema.participations} of'
      f' {schema.num_rounds} rounds, {apart} {schema.min_sep} apart'
    )
  return (
    pattern,
    'every update of a device is clipped to the clip norm, and what it adds'
    ' to a sum depends on that device alone',
    'Z is independent Gaussian noise, secret, and none of its rows enters two sums',
    'which devices take part, and when, does not depend on their data',
  )


def distribution(
  effective_noise_multiplier: float, step: float
) -> 'privacy_loss_distribution.PrivacyLossDistribution':
  """Returns the distribution with losses at multiples of step, never optimistic.

  It is computed as arrays, where dp_accounting goes value by value in Python; with the locked
  release, the numbers are the same to the last bit.

  Source: Doroshenko et al. 2022, algorithm 1 (connect the dots).
  """
  # This import is slow, and a command that computes no ε does without it.
  from dp_accounting.pld import pld_pmf, privacy_loss_distribution, privacy_loss_mechanism

  loss = privacy_loss_mechanism.GaussianPrivacyLoss(
    effective_noise_multiplier, adjacency_type=privacy_loss_mechanism.AdjacencyType.REMOVE
  )
  bounds = loss.connect_dots_bounds()
  last = math.ceil(bounds.epsilon_upper / step)
  first = math.floor(bounds.epsilon_lower / step)
  # δ(ε) = P[loss > ε] − e^ε P'[loss > ε]; the loss is above ε below the cutoff.
  epsilons = np.arange(first, last + 1) * step
  cutoffs = -0.5 - epsilons * effective_noise_multiplier**2
  deltas = loss.mu_upper_cdf(cutoffs) - np.exp(epsilons + loss.mu_lower_log_cdf(cutoffs))
  deltas = np.clip(deltas, 0, 1)
  if deltas.size <= _MOST_SPARSE:
    masses = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, first, last, deltas)
  else:
    changes, growth = np.diff(deltas), math.expm1(step)
    probabilities = np.empty_like(deltas)
    probabilities[0] = 1 - deltas[0] + changes[0] / growth
    probabilities[1:-1] = (changes[1:] - changes[:-1] * math.exp(step)) / growth
    probabilities[-1] = changes[-1] / math.expm1(-step)
    masses = pld_pmf.DensePLDPmf(step, first, np.maximum(0.0, probabilities), deltas[-1], True)
  # The accountant of dp_accounting composes with nothing first, which cuts the tails.
  nothing = privacy_loss_distribution.identity(step)
  return nothing.compose(privacy_loss_distribution.PrivacyLossDistribution(masses))
