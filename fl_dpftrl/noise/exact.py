"""One standard normal, scaled and rounded, from as many bits as the rounding takes."""

import decimal
import functools
import math
from typing import NamedTuple

import numpy as np


class Bits(NamedTuple):
  """The leading bits of a binary fraction, which lies in [bits, bits + 1]/2^length."""

  bits: int
  length: int

  def then(self, text: bytes) -> 'Bits':
    """These bits, and then those of a text."""
    more = 8 * len(text)
    return Bits(self.bits << more | int.from_bytes(text, 'big'), self.length + more)


def rounded(u: Bits, v: Bits, is_sine: bool, scale: float) -> int | None:
  """Returns round(scale · ξ) if the bits decide it, else None.

  ξ = √(−2 ln u)·cos(v·π/2), or the sine. The ends of the intervals in which u and v lie bound ξ.
  They decide where they are rounded to the same integer. `decimal` rounds logarithms, roots,
  products and quotients correctly, here to more than twice as many digits as there are bits.

  Args:
    u, v: what is known of both fractions.
    is_sine: whether the second normal of the pair is meant.
    scale: by which ξ is multiplied; a float64, meant exactly.
  """
  if not u.bits:  # u may be as small as one likes, and ξ as large.
    return None
  digits = math.ceil(2 * u.length * math.log10(2.0)) + 60
  with decimal.localcontext(decimal.Context(prec=digits)):
    radii = [(-2 * _quotient(k, 1 << u.length).ln()).sqrt() for k in (u.bits + 1, u.bits)]
    half_pi = _pi(digits) / 2
    middle = _wave(half_pi * _quotient(2 * v.bits + 1, 2 << v.length), is_sine)
    # Half an interval of the angle, and far more than the errors of all digits.
    off = half_pi * _quotient(1, 2 << v.length) + decimal.Decimal(10) ** (-digits // 2)
    ends = [decimal.Decimal(scale) * r * (middle + side) for r in radii for side in (-off, off)]
    low, high = (int(end.to_integral_value()) for end in (min(ends), max(ends)))
  return low if low == high else None


def units_off_log(points: np.ndarray, values: np.ndarray) -> float:
  """The largest error of values of ln at points, in units in their last place."""
  with decimal.localcontext(decimal.Context(prec=60)):
    return max(
      float(abs(_decimal(value) - _decimal(point).ln()) / _decimal(np.spacing(abs(value))))
      for point, value in zip(points, values)
    )


def _decimal(number: np.floating) -> decimal.Decimal:
  return _quotient(*number.as_integer_ratio())


def _quotient(numerator: int, denominator: int) -> decimal.Decimal:
  return decimal.Decimal(numerator) / decimal.Decimal(denominator)


def _wave(angle: decimal.Decimal, is_sine: bool) -> decimal.Decimal:
  """The cosine or sine of an angle between 0 and π/2, in the context's precision."""
  power = 1 if is_sine else 0
  term = total = angle if is_sine else decimal.Decimal(1)
  smallest = decimal.Decimal(10) ** -decimal.getcontext().prec
  while abs(term) > smallest:
    term = -term * angle * angle / ((power + 1) * (power + 2))
    total += term
    power += 2
  return total


@functools.cache
def _pi(digits: int) -> decimal.Decimal:
  """π to more digits than asked for, as 16·arctan(1/5) − 4·arctan(1/239) (Machin)."""
  unit = 10 ** (digits + 10)
  machin = 4 * (4 * _inverse_arctan(5, unit) - _inverse_arctan(239, unit))
  return decimal.Decimal(machin).scaleb(-digits - 10, decimal.Context(prec=digits + 12))


def _inverse_arctan(number: int, unit: int) -> int:
  """arctan(1/number) in units of 1/unit, to within some tens of them."""
  power, total, odd, sign = unit // number, 0, 1, 1
  while power:
    total += sign * (power // odd)
    power, odd, sign = power // (number * number), odd + 2, -sign
  return total
