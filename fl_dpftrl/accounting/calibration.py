"""The least noise that meets a target."""

import math

from scipy import optimize

from fl_dpftrl import participation
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.strategies import base

_PRECISION = 1e-9  # relative, of the noise multiplier
_STEP = 0.3  # of its logarithm


def calibrate(
    strategy: base.Strategy,
    schema: participation.MinSep,
    *,
    delta: float,
    epsilon: float | None = None,
    rho: float | None = None,
) -> gaussian.Guarantee:
  """The guarantee with the least noise multiplier that meets ε or ρ.

  Args:
    strategy: C as it is run, not normalised.
    schema: the participation that will be kept to.
    delta: δ at which ε is stated, and met where epsilon is given.
    epsilon: the most that ε may be.
    rho: the most that ρ may be; give this or epsilon.

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
  if rho is None:
    multiplier = effective_noise_multiplier(target, delta)
  else:
    multiplier = math.sqrt(0.5 / target)
  sensitivity = sensitivity_lib.sensitivity(strategy, schema)
  return gaussian.from_sensitivity(
      sensitivity,
      schema,
      noise_multiplier=multiplier * sensitivity.value,
      delta=delta,
  )


def effective_noise_multiplier(epsilon: float, delta: float) -> float:
  """The least multiplier whose ε at δ is at most epsilon.

  Raises:
    ValueError: where epsilon is not positive or delta not between 0 and 1.

  Source: the search starts from Bun and Steinke 2016, proposition 1.3.
  """
  if not (math.isfinite(epsilon) and epsilon > 0.0):
    raise ValueError(f'epsilon must be positive and finite, got {epsilon!r}')

  def excess(log_multiplier: float) -> float:
    return gaussian.epsilon(math.exp(log_multiplier), delta) - epsilon

  # ε ≤ ρ + 2 √(ρ ln 1/δ) starts the search where the target is met, close by.
  log_delta = math.log(1.0 / delta)
  root_rho = math.sqrt(log_delta + epsilon) - math.sqrt(log_delta)
  low = high = -math.log(math.sqrt(2.0) * root_rho)
  while excess(high) > 0.0:
    high += _STEP
  while low == high or excess(low) <= 0.0:
    low, high = low - _STEP, low
  root = optimize.brentq(excess, low, high, xtol=_PRECISION)
  # The root may lie a rounding below the target: step to the private side.
  step = _PRECISION
  while excess(root) > 0.0:
    root, step = root + step, 2.0 * step
  return math.exp(root)
