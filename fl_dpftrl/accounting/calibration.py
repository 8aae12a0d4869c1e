"""Calibration of the noise multiplier to a target ε or ρ."""

import math

import numpy as np
import scipy

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files

_PRECISION = 1e-7  # relative precision of the noise multiplier


def calibrate(
  strategy: files.Given,
  schema: schemas.MinSep,
  *,
  delta: float,
  epsilon: float | None = None,
  rho: float | None = None,
  adjacency: str = adjacency_lib.ZERO_OUT,
  group_size: int = 1,
  num_coordinates: int | None = None,
) -> gaussian.Guarantee:
  """Returns the guarantee with the smallest noise multiplier that meets ε or ρ.

  Args:
    strategy: C as it is run, not normalised; or its file or name, as `load_strategy` takes them.
    schema: participation schema that the run enforces.
    delta: δ at which ε is stated, and at which a given epsilon must be met.
    epsilon: upper limit of ε.
    rho: upper limit of ρ; give exactly one of epsilon and rho.
    adjacency, group_size, num_coordinates: see `gaussian.account`.

  Raises:
    ValueError: if not exactly one target is given, an argument is out of range, or the schema
      has more rounds than the strategy supports.
  """
  strategy = files.resolved(strategy)
  gaussian.check_delta(delta)
  adjacency_lib.check(adjacency, group_size)
  if epsilon is not None and rho is None:
    multiplier = effective_noise_multiplier(epsilon, delta)
  elif rho is not None and epsilon is None:
    gaussian.check_positive('rho', rho)
    multiplier = math.sqrt(0.5 / rho)
  else:
    raise ValueError('give epsilon or rho, and not both')
  sensitivity = sensitivity_lib.sensitivity(strategy, schema)
  scaled = adjacency_lib.scaled(sensitivity, adjacency, group_size)
  rounding = gaussian.rounding_of(strategy, schema, num_coordinates)
  if rounding is not None:  # The noise has to leave room for what rounding adds to μ.
    room = 1.0 - rounding.mu * multiplier
    if room <= 0.0:
      raise ValueError('num_coordinates: the rounding of so many alone would pass the target')
    multiplier *= (1.0 + _PRECISION) / room
  return gaussian.from_sensitivity(
    sensitivity,
    schema,
    noise_multiplier=multiplier * scaled.value,
    delta=delta,
    adjacency=adjacency,
    group_size=group_size,
    rounding=rounding,
  )


def effective_noise_multiplier(epsilon: float, delta: float) -> float:
  """Returns the smallest multiplier whose ε at δ is at most epsilon.

  The result is minimal up to a relative 2e-6. The search uses the closed form of the Gaussian
  mechanism. The result is then checked with, and if needed raised for, the privacy loss
  distribution, whose ε may be slightly larger.

  Source: Balle and Wang 2018, theorem 8, for the closed form.
  """
  gaussian.check_positive('epsilon', epsilon)
  gaussian.check_delta(delta)

  def excess(log_multiplier: float) -> float:
    mu = math.exp(-log_multiplier)
    return float(log_delta(mu, epsilon)) - math.log(delta)

  # The bound ε ≤ ρ + 2 √(ρ ln 1/δ) gives a sufficient multiplier to start from (Bun and Steinke
  # 2016, proposition 1.3).
  log_inverse = -math.log(delta)
  root_rho = math.sqrt(log_inverse + epsilon) - math.sqrt(log_inverse)
  high = -math.log(math.sqrt(2.0) * root_rho)
  low = high - 1.0
  while excess(low) <= 0.0:
    low -= 1.0
  multiplier = math.exp(scipy.optimize.brentq(excess, low, high, xtol=_PRECISION))
  step = _PRECISION
  while gaussian.epsilon(multiplier, delta) > epsilon:
    multiplier, step = multiplier * (1.0 + step), 2.0 * step
  return multiplier


def log_delta(mu: float, epsilon: float | np.ndarray) -> float | np.ndarray:
  """Returns ln δ of a Gaussian: δ = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)."""
  near = scipy.special.log_ndtr(0.5 * mu - epsilon / mu)
  far = scipy.special.log_ndtr(-0.5 * mu - epsilon / mu)
  return near + np.log(-np.expm1(np.minimum(epsilon + far - near, -1e-300)))
