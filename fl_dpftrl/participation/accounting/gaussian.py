"""ρ and ε of one Gaussian release, and the noise for an ε, from the exact curve δ(ε).

N(0, 1) against N(μ, 1), with a = ε/μ − μ/2 and b = a + μ, has

  δ(ε) = Φ(−a) − e^ε Φ(−b) = φ(a) (R(a) − R(b)),   R(x) = Φ(−x) / φ(x), Mills' ratio.

Source: Balle and Wang 2018, theorem 8. Newton's method solves ln δ(ε) = ln δ, in decimals. Three
facts prove that ε is never below the root, and noise never below what ε needs:

- ln δ(ε) is concave in ε: δ(ε) = ∫ e^−s P[loss > ε + s] ds over s > 0 is a convolution of functions
  whose logarithms are concave (Prékopa 1973), as the loss is normal. The tangent of a concave
  falling function meets a level at or above the root, so each step ends there, from any start.
- ln δ(ε) is concave in μ at a fixed ε. Its derivative is 1 / (R(a) − R(b)), and R(a) − R(b) rises
  with μ: its derivative is (b Q(a) − a Q(b)) / μ, where Q(x) = −R′(x) = 1 − x R(x) is positive and
  falls. So each step ends at or below the root.
- Decimals are rounded correctly, also exp and ln. μ ≥ 10^−m takes 70 + 2 m digits. R(x) then has a
  relative error below 1e-60 · 10^−2m, R(a) − R(b) at least 3e-4 · 10^−m of R(a) if μ < 1 and
  a < 40, and so a relative error below 1e-55. That moves a by 1e-55 (R(a) − R(b)) / (μ R(b)), which
  is below 1e-38, as δ from 5e-324 to 1 − 1e-16 means −8.3 < a < 40. `_MARGIN` is added to a.
"""

import decimal
import functools
import math
import numbers
import statistics
from contextlib import AbstractContextManager
from decimal import Decimal

from fl_dpftrl.support import checks

_DIGITS = 70
_SERIES_BELOW = 5
_MARGIN = Decimal('1e-25')
_CLOSE = Decimal('1e-8')  # A last step this small leaves its square.
_LESS_MU = Decimal(1) - Decimal('1e-13')  # ε falls by as much or more, as ε/μ falls too.
_MOST_NOISE, _EPSILONS = 1e30, (1e-20, 1e20)
_ROOT_TWO_PI = Decimal(
  '2.506628274631000502415765284811045253006986740609938316629923576342293654607841974946595838'
)
_NORMAL = statistics.NormalDist()


def check_delta(delta: float) -> None:
  """Raises ValueError unless 0 < delta < 1."""
  if not (isinstance(delta, numbers.Real) and 0.0 < delta < 1.0):
    raise ValueError(f'delta must lie strictly between 0 and 1, got {delta!r}')


def rho(effective_noise_multiplier: float) -> float:
  """Returns ρ of zCDP, 1 / (2 · multiplier²) (Bun and Steinke 2016, proposition 1.6)."""
  checks.positive(effective_noise_multiplier=effective_noise_multiplier)
  square = effective_noise_multiplier * effective_noise_multiplier
  value = 0.5 / square if square else math.inf
  if not math.isfinite(value):
    raise ValueError(
      f'effective_noise_multiplier={effective_noise_multiplier!r} is too'
      ' little noise: ρ is beyond the largest number'
    )
  return value


def epsilon(effective_noise_multiplier: float, delta: float) -> float:
  """Returns ε at δ, never below the exact one and less than 1e-12 of it above; 1e30 is the most."""
  check_delta(delta)
  rho(effective_noise_multiplier)  # raises if ε would overflow
  return _epsilon(min(float(effective_noise_multiplier), _MOST_NOISE), float(delta))


@functools.lru_cache(maxsize=4096)
def _epsilon(multiplier: float, delta: float) -> float:
  with _decimals(multiplier):
    mu, log_delta = 1 / Decimal(multiplier), _log(delta)
    # ε/μ. It would be that without the second term of δ(ε).
    step = ratio = mu / 2 - Decimal(_NORMAL.inv_cdf(delta))
    while ratio > 0 and abs(step) > _CLOSE * ratio + _MARGIN:
      a = ratio - mu / 2
      far = _mills(a + mu)
      gap = _mills(a) - far
      step = (gap.ln() - a * a / 2 - log_delta) * gap / (mu * far)
      ratio += step
    ratio += _MARGIN
    return math.nextafter(float(mu * ratio), math.inf) if ratio > 0 else 0.0


def effective_noise_multiplier(epsilon: float, delta: float) -> float:
  """Returns the smallest multiplier whose ε at δ is at most epsilon, up to 2e-13 of it."""
  checks.positive(epsilon=epsilon)
  check_delta(delta)
  if not _EPSILONS[0] <= epsilon <= _EPSILONS[1]:
    raise ValueError(f'epsilon must be from {_EPSILONS[0]} to {_EPSILONS[1]}, got {epsilon!r}')
  # ε ≤ ρ + 2 √(ρ ln 1/δ) gives a μ that suffices (Bun and Steinke 2016, proposition 1.3).
  log_inverse = -math.log(delta)
  enough = math.sqrt(2.0) * epsilon / (math.sqrt(log_inverse + epsilon) + math.sqrt(log_inverse))
  with _decimals(enough):
    step = mu = Decimal(enough)
    while abs(step) > _CLOSE * mu:
      a = Decimal(float(epsilon)) / mu - mu / 2
      gap = _mills(a) - _mills(a + mu)
      step = (_log(delta) + a * a / 2 - gap.ln()) * gap
      mu += step
    return math.nextafter(float(1 / (mu * _LESS_MU)), math.inf)


def _decimals(scale: float) -> AbstractContextManager:
  """Returns a context whose decimals have enough digits for a μ, or its inverse, of that scale."""
  digits = _DIGITS + 2 * abs(Decimal(scale).adjusted())
  return decimal.localcontext(
    decimal.Context(prec=digits, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)
  )


def _log(delta: float) -> Decimal:
  """Returns ln(δ √(2π)): that of φ(a) gap / δ is ln gap − a²/2 less this."""
  return (Decimal(float(delta)) * _ROOT_TWO_PI).ln()


def _mills(x: Decimal) -> Decimal:
  """Returns R(x) = Φ(−x) / φ(x); x ≥ −9 for speed."""
  least, k = Decimal(1).scaleb(-decimal.getcontext().prec), 0
  if x < _SERIES_BELOW:  # (Φ(x) − ½) / φ(x) = x + x³/3 + x⁵/(3·5) + …, all of one sign
    total = term = x
    while abs(term) > least * abs(total):
      k += 1
      term *= x * x / (2 * k + 1)
      total += term
    return _ROOT_TWO_PI / 2 * (x * x / 2).exp() - total
  # Laplace's continued fraction 1/(x + 1/(x + 2/(x + …))): the terms are the differences of its
  # convergents, which are above and below R in turn, so the next one bounds the error.
  previous, last, product = Decimal(1), x, Decimal(1)
  total = term = 1 / x
  while abs(term) > least * total:
    k += 1
    previous, last, product = last, x * last + k * previous, -k * product
    term = product / (previous * last)
    total += term
  return total
