"""The least noise that meets a target."""

import math

import numpy as np
from scipy import optimize
from scipy import special

from fl_dpftrl import participation
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.families import base

_PRECISION = 1e-7  # relative, of the noise multiplier


def calibrate(
    strategy: base.Strategy,
    schema: participation.MinSep,
    *,
    delta: float,
    epsilon: float | None = None,
    rho: float | None = None,
    adjacency: str = adjacency_lib.ZERO_OUT,
    group_size: int = 1,
) -> gaussian.Guarantee:
  """The guarantee with the least noise multiplier that meets ε or ρ.

  Args:
    strategy: C as it is run, not normalised.
    schema: the participation that will be kept to.
    delta: δ at which ε is stated, and met where epsilon is given.
    epsilon: the most that ε may be.
    rho: the most that ρ may be; give this or epsilon.
    adjacency: 'zero_out' or 'replace_one', which doubles the sensitivity.
    group_size: devices protected together, by which it is multiplied.

  Raises:
    ValueError: where both targets or none are given, an argument is outside its
      range, or the schema has more rounds than the strategy can run.
  """
  if (epsilon is None) == (rho is None):
    raise ValueError('give epsilon or rho, and not both')
  name, target = ('epsilon', epsilon) if rho is None else ('rho', rho)
  if not (math.isfinite(target) and target > 0.0):
    raise ValueError(f'{name} must be positive and finite, got {target!r}')
  gaussian.check_delta(delta)
  adjacency_lib.check(adjacency, group_size)
  if rho is None:
    multiplier = effective_noise_multiplier(target, delta)
  else:
    multiplier = math.sqrt(0.5 / target)
  sensitivity = sensitivity_lib.sensitivity(strategy, schema)
  scaled = adjacency_lib.scaled(sensitivity, adjacency, group_size)
  return gaussian.from_sensitivity(
      sensitivity,
      schema,
      noise_multiplier=multiplier * scaled.value,
      delta=delta,
      adjacency=adjacency,
      group_size=group_size,
  )


def effective_noise_multiplier(epsilon: float, delta: float) -> float:
  """The least multiplier whose ε at δ is at most epsilon, to 2 parts in 10⁶.

  The search is in the Gaussian's closed form; the privacy loss distribution,
  which may lie a little above it, then has the last word.

  Raises:
    ValueError: where epsilon is not positive or delta not between 0 and 1.

  Source: Balle and Wang 2018, theorem 8, for the closed form.
  """
  if not (math.isfinite(epsilon) and epsilon > 0.0):
    raise ValueError(f'epsilon must be positive and finite, got {epsilon!r}')
  gaussian.check_delta(delta)

  def excess(log_multiplier: float) -> float:
    mu = math.exp(-log_multiplier)
    return log_delta(mu, epsilon) - math.log(delta)

  # ε ≤ ρ + 2 √(ρ ln 1/δ) gives a multiplier that is enough (Bun and Steinke
  # 2016, proposition 1.3).
  log_inverse = -math.log(delta)
  root_rho = math.sqrt(log_inverse + epsilon) - math.sqrt(log_inverse)
  high = -math.log(math.sqrt(2.0) * root_rho)
  low = high - 1.0
  while excess(low) <= 0.0:
    low -= 1.0
  multiplier = math.exp(optimize.brentq(excess, low, high, xtol=_PRECISION))
  step = _PRECISION
  while gaussian.epsilon(multiplier, delta) > epsilon:
    multiplier, step = multiplier * (1.0 + step), 2.0 * step
  return multiplier


def log_delta(
    mu: float, epsilon: float | np.ndarray
) -> float | np.ndarray:
  """ln δ of a Gaussian with shift mu: Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
  near = special.log_ndtr(0.5 * mu - epsilon / mu)
  far = special.log_ndtr(-0.5 * mu - epsilon / mu)
  return near + np.log(-np.expm1(np.minimum(epsilon + far - near, -1e-300)))
