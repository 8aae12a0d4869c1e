"""ε of Gaussian releases of which each includes an example by chance."""

import functools
import math
from typing import Callable

from dp_accounting.pld import privacy_loss_distribution
from scipy import optimize

from fl_dpftrl.accounting import calibration
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.accounting import replaced as replaced_lib

_PRECISION = 2e-6  # relative, of the noise multiplier
_SMALLEST_EPSILON = 1e-9  # below it, searches take ε for this
# About the most steps of the distribution of one release, and of all.
_GRID, _COMPOSED_GRID = 2**17, 2**21
# Fourier transforms of a composition blur δ by less than this for each release:
# about 1e-16 was seen.
_ROUNDING = 5e-16


def epsilon(
    multiplier: float,
    delta: float,
    *,
    probability: float,
    count: int,
    replaced: bool = False,
) -> float:
  """ε at δ of count sampled Gaussian releases.

  With add-or-remove and Poisson samples, or where an example is replaced and
  the samples are Poisson or of a fixed size.

  The distribution is discretised, and δ lowered by what rounding may do to it,
  so that ε is not understated.

  Args:
    multiplier: standard deviation of the noise over the most that an example
      moves a release in which it is: what it adds, twice that where replaced.
    delta: δ.
    probability: with which a release includes an example.
    count: number of releases.
    replaced: whether an example is replaced, and not more or less.

  Raises:
    ValueError: where the multiplier is not positive and finite, delta is not
      between 0 and 1, probability not above 0 and at most 1, or count not at
      least 1; and where delta is too small to be resolved.

  Source: Koskela et al. 2020; Doroshenko et al. 2022 (connect the
  dots); of an example that is replaced, as said in `replaced`.
  """
  gaussian.check_positive('multiplier', multiplier)
  gaussian.check_delta(delta)
  if not 0.0 < probability <= 1.0:
    raise ValueError(
        f'probability must be above 0 and at most 1, got {probability!r}'
    )
  if count < 1:
    raise ValueError(f'count must be at least 1, got {count!r}')
  if probability == 1.0:
    # Gaussian releases compose to one, and one more or less is as far apart as
    # one zeroed out.
    return gaussian.epsilon(multiplier / math.sqrt(count), delta)
  resolved = delta - count * _ROUNDING
  if resolved < 0.5 * delta:
    raise ValueError(
        f'delta={delta!r} is too small for a privacy loss distribution of'
        f' {count} releases; {2 * count * _ROUNDING:.1g} and above can be'
        ' resolved'
    )
  step = _step(multiplier, probability, count)
  if replaced:
    release = replaced_lib.loss_distribution(multiplier, probability, step)
  else:
    release = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=multiplier,
        value_discretization_interval=step,
        sampling_prob=probability,
    )
  value = float(
      release.self_compose(count).get_epsilon_for_delta(resolved)
  )
  if not math.isfinite(value):
    raise ValueError(
        f'delta={delta!r} is too small for a privacy loss distribution of'
        f' {count} releases with multiplier {multiplier!r}'
    )
  return value


def _step(multiplier: float, probability: float, count: int) -> float:
  """A discretisation that costs little ε and little time.

  It adds to the variance of each release's loss about a quarter of its square,
  which is to be small against the variance of all of them.
  """
  mu = 1.0 / multiplier
  # Either many releases with a small share in each, or as many whole ones as an
  # example is drawn for at the very most.
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
    epsilon: float,
    delta: float,
    *,
    probability: float,
    count: int,
    replaced: bool = False,
) -> float:  # pylint: disable=redefined-outer-name
  """The least multiplier whose ε at δ is at most epsilon, to a part in 10⁵.

  Args and errors as of `epsilon`, which must itself be positive and finite.
  """
  whole = calibration.effective_noise_multiplier(epsilon, delta)

  @functools.lru_cache(maxsize=None)
  def excess(log_multiplier: float) -> float:
    value = _epsilon(
        math.exp(log_multiplier),
        delta,
        probability=probability,
        count=count,
        replaced=replaced,
    )
    return math.log(max(value, _SMALLEST_EPSILON) / epsilon)

  # Without sampling the answer is closed, and sampling never does harm. Many
  # releases compose to nearly one Gaussian, whose variance guides otherwise.
  root, step = math.log(whole) + 0.5 * math.log(count), 1e-12
  if probability < 1.0:
    variance = 1.0 / (whole * probability) ** 2 / count
    root = min(root, -0.5 * math.log(math.log1p(variance)))
    root = optimize.brentq(excess, *_bracket(excess, root), xtol=_PRECISION)
    step = _PRECISION
  while excess(root) > 0.0:
    root, step = root + step, 2.0 * step
  return math.exp(root)


def _bracket(
    falling: Callable[[float], float], start: float
) -> tuple[float, float]:
  """Two points, the function above 0 at the first and not at the second."""
  low = high = start
  step = 0.02
  while falling(high) > 0.0:
    low, high, step = high, high + step, 2.0 * step
  step = 0.02
  while falling(low) <= 0.0:
    low, high, step = low - step, low, 2.0 * step
  return low, high


_epsilon = epsilon  # under a name that no argument has
