"""Privacy accounting for compositions of sampled Gaussian releases, and for replaced examples."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy

from fl_dpftrl.participation.accounting import gaussian
from fl_dpftrl.participation.accounting.adjacencies import ONE, OPPOSITE
from fl_dpftrl.support import checks

_PRECISION = 1e-7  # relative precision of the noise multiplier
_SMALLEST_EPSILON = 1e-9  # searches clip smaller ε to this
# Approximate limits of the grid size of one release and of the composition.
_GRID, _COMPOSED_GRID = 2**17, 2**21
# Bound on the error of δ per release from Fourier transforms; observed errors are about 1e-16.
_ROUNDING = 5e-16
_LESS = 1.0 - 1e-15  # more than what the root, dividing and multiplying round
_DEVIATIONS = 10.0  # half-width of the grid; less than 1e-23 lies beyond


@functools.lru_cache(maxsize=256)
def epsilon(
  multiplier: float, delta: float, *, probability: float, count: int, pair: str = ONE
) -> float:
  """Returns ε at δ of `count` sampled Gaussian releases.

  The distribution is discretised, and δ is lowered by the largest possible rounding error, so
  that ε is not understated.

  Args:
    multiplier: standard deviation of the noise over the largest change of a release by one of
      its examples. That change is the example's contribution, or twice that if an example is
      replaced.
    pair: ONE for an example more or less, with Poisson samples; REPLACED for another in its place,
      with samples of a fixed size; OPPOSITE for the same with Poisson samples.

  Source: Koskela et al. 2020; Doroshenko et al. 2022 (connect the dots). For the others
  see `replaced_loss`.
  """
  from dp_accounting.pld import privacy_loss_distribution  # Slow to load.

  checks.positive(multiplier=multiplier)
  gaussian.check_delta(delta)
  if not 0.0 < probability <= 1.0:
    raise ValueError(f'probability must be above 0 and at most 1, got {probability!r}')
  checks.whole(count=count)
  if probability == 1.0:
    # One Gaussian release, where adding, removing and zeroing out are the same distance.
    return gaussian.epsilon(multiplier / math.sqrt(count) * _LESS, delta)
  resolved = delta - count * _ROUNDING
  if resolved < 0.5 * delta:
    raise ValueError(
      f'delta={delta!r} is too small for a privacy loss distribution of {count} releases;'
      f' {2 * count * _ROUNDING:.1g} and above can be resolved'
    )
  step = _step(multiplier, probability, count)
  if pair != ONE:
    release = replaced_loss(multiplier, probability, step, pair=pair)
  else:
    release = privacy_loss_distribution.from_gaussian_mechanism(
      standard_deviation=multiplier, value_discretization_interval=step, sampling_prob=probability
    )
  value = float(release.self_compose(count).get_epsilon_for_delta(resolved))
  if not math.isfinite(value):
    raise ValueError(
      f'delta={delta!r} is too small for a privacy loss distribution of'
      f' {count} releases with multiplier {multiplier!r}'
    )
  return value


_epsilon = epsilon  # alias that no argument shadows


def _step(multiplier: float, probability: float, count: int) -> float:
  """Returns a grid step whose added variance, step²/4 a release, is small beside the total."""
  mu = 1.0 / multiplier
  # The composition resembles many releases with a small share each, or as many
  # full releases as an example is drawn for at most.
  expected = probability * count
  drawn = min(count, expected + 10.0 * math.sqrt(expected) + 10.0)
  share = probability * math.sqrt(math.expm1(mu**2)) if mu < 5.0 else mu
  spread = min(math.sqrt(count) * share, math.sqrt(drawn) * mu)
  return max(
    min(0.02 * spread / math.sqrt(count), 1e-2),
    (0.5 * mu + 10.0) * mu / _GRID,
    (0.5 * spread + 20.0) * spread / _COMPOSED_GRID,
  )


def effective_noise_multiplier(
  epsilon: float, delta: float, *, probability: float, count: int, pair: str = ONE
) -> float:
  """Returns the smallest multiplier, to a relative 1e-6, whose ε at δ is at most epsilon."""
  whole = gaussian.effective_noise_multiplier(epsilon, delta)

  @functools.cache
  def excess(log_multiplier: float) -> float:
    value = _epsilon(
      math.exp(log_multiplier), delta, probability=probability, count=count, pair=pair
    )
    return math.log(max(value, _SMALLEST_EPSILON) / epsilon)

  # Without sampling there is a closed form, and sampling never needs more noise.
  # Otherwise the variance of the composition, nearly Gaussian, gives a start.
  root, step = math.log(whole) + 0.5 * math.log(count), 1e-12
  if probability < 1.0:
    variance = 1.0 / (whole * probability) ** 2 / count
    root = min(root, -0.5 * math.log(math.log1p(variance)))
    root = scipy.optimize.brentq(excess, *_bracket(excess, root), xtol=_PRECISION)
    step = _PRECISION
  while excess(root) > 0.0:
    root, step = root + step, 2.0 * step
  return math.exp(root)


def _bracket(falling: Callable[[float], float], start: float) -> tuple[float, float]:
  """Returns two points that bracket the root of a falling function."""
  low = high = start
  step = 0.02
  while falling(high) > 0.0:
    low, high, step = high, high + step, 2.0 * step
  step = 0.02
  while falling(low) <= 0.0:
    low, high, step = low - step, low, 2.0 * step
  return low, high


def replaced_loss(multiplier: float, probability: float, step: float, *, pair: str) -> Any:
  """Returns a loss distribution that dominates both directions of a replacement.

  Samples of a fixed size without replacement (`REPLACED`): if δ(ε) is the curve of the Gaussian
  release for samples that differ in one example, the curve of the sampled release is at most
  q δ(ε') with e^ε' = 1 + (e^ε − 1) / q, q the probability. Poisson samples (`OPPOSITE`): the pair
  (1 − q) N(0) + q N(±a), a half of the largest change, is the worst, also of updates that follow
  from earlier releases. Both are symmetric, so they hold for negative ε too, and they compose.
  Losses lie on a grid of this step.

  Source: Balle, Barthe and Gaboardi 2018, theorems 2 and 9; Zhu, Dong and Wang 2022, for pairs
  that dominate and compose; Doroshenko et al. 2022 (connect the dots). For the pair see
  docs/decisions/secret-participation.md.
  """
  from dp_accounting.pld import pld_pmf, privacy_loss_distribution  # Slow to load.

  mu = 1.0 / multiplier
  whole = mu * (0.5 * mu + _DEVIATIONS)
  most = whole + math.log(probability + (1.0 - probability) * math.exp(-whole))
  top = math.ceil(most / step)
  losses = step * np.arange(top + 1)
  rest = np.exp(-losses)
  if pair == OPPOSITE:
    above = _opposite_delta(0.5 * mu, probability, losses)
  else:
    above = probability * np.exp(log_delta(mu, losses + np.log((1.0 - rest) / probability + rest)))
  below = 1.0 - rest[1:] + rest[1:] * above[1:]  # δ(−ε) = 1 − e^−ε + e^−ε δ(ε)
  deltas = np.concatenate([below[::-1], above])
  return privacy_loss_distribution.PrivacyLossDistribution(
    pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
      step, -top, top, np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
    )
  )


def _opposite_delta(a: float, q: float, epsilons: np.ndarray) -> np.ndarray:
  """Returns δ of (1 − q) N(0, 1) + q N(±a, 1) for each ε ≥ 0, rounded up."""
  less, scale = (1.0 - q) * np.expm1(epsilons), q * math.exp(-0.5 * a * a)
  root = np.sqrt(less**2 + 4.0 * scale**2 * np.exp(epsilons))
  x = np.log((less + root) / (2.0 * scale)) / a
  far = np.exp(epsilons + scipy.special.log_ndtr(-a - x))
  return (q * (scipy.special.ndtr(a - x) - far) - less * scipy.special.ndtr(-x)) * (1.0 + 1e-9)


def log_delta(mu: float, epsilons: np.ndarray) -> np.ndarray:
  """Returns ln δ of a Gaussian in floating point; `gaussian` has the formula."""
  near, far = (scipy.special.log_ndtr(half - epsilons / mu) for half in (0.5 * mu, -0.5 * mu))
  return near + np.log(-np.expm1(np.minimum(epsilons + far - near, -1e-300)))
