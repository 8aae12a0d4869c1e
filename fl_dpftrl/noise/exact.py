"""One standard normal, scaled and rounded, from more bits than the rounding takes.

The half of the normal density on which x ≥ 0, f(x) = exp(−x²/2), is covered by 512 layers of equal
area v, as in Marsaglia and Tsang 2000. Layer i ≥ 1 is the rectangle of width xᵢ between the heights
f(xᵢ) and f(xᵢ₊₁), where x₅₁₂ = 0. Layer 0 is the rectangle of width x₁ and height f(x₁) with the
tail beyond x₁; its width is said to be x₀ = v/f(x₁). The widths are real numbers.
"""

import decimal
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

LAYERS = 512
FIXED = 192
"""Bits after the point of widths as integers, which are off by less than 1."""
# x₁ and v.
_TAIL = '3.852046150368391248117897697222247720777662137028570198410760666005884512307168079651'
_AREA = '0.002456766351541355733732756638387104250962868434891707275195496396666996548421388954300'
# `decimal` rounds each operation correctly, exponentials and logarithms too.
_CONTEXT = decimal.Context(prec=80)
# Far more than the errors of the widths and of what is computed from them, in absolute terms.
_ERROR = decimal.Decimal(10) ** -65


class Fraction(NamedTuple):
  """A binary fraction in [bits, bits + 1]/2^length."""

  bits: int
  length: int

  def ends(self) -> tuple[decimal.Decimal, decimal.Decimal]:
    """The ends of the interval in which it lies."""
    whole = decimal.Decimal(1 << self.length)
    return self.bits / whole, (self.bits + 1) / whole


def _in_decimals(function: Callable[..., Any]) -> Callable[..., Any]:
  @functools.wraps(function)
  def computed(*args):
    with decimal.localcontext(_CONTEXT):
      return function(*args)

  return computed


def _decided(function: Callable[..., Any]) -> Callable[..., Any]:
  """Makes a function that returns None where the bits of its fractions do not decide raise."""
  asked = _in_decimals(function)

  @functools.wraps(function)
  def computed(*args):
    if (answer := asked(*args)) is None:
      raise RuntimeError('180 bits did not decide a normal')
    return answer

  return computed


@functools.cache
@_in_decimals
def widths() -> tuple[decimal.Decimal, ...]:
  """Returns x₀, x₁, …, x₅₁₂."""
  area, x = decimal.Decimal(_AREA), decimal.Decimal(_TAIL)
  edges = [area / height(x), x]
  for _ in range(LAYERS - 2):
    x = (-2 * (area / x + height(x)).ln()).sqrt()
    edges.append(x)
  return *edges, decimal.Decimal(0)


def height(x: decimal.Decimal) -> decimal.Decimal:
  """Returns f(x) = exp(−x²/2), in the context's precision."""
  return (-x * x / 2).exp()


@functools.cache
@_in_decimals
def inner(layer: int) -> int:
  """Returns ⌊2¹⁹² xᵢ₊₁/xᵢ⌋: the part of a layer that is below the density at all heights."""
  return int(widths()[layer + 1] / widths()[layer] * 2**FIXED)


@functools.cache
@_in_decimals
def _width(layer: int) -> int:
  """Returns ⌊2¹⁹² xᵢ⌋."""
  return int(widths()[layer] * 2**FIXED)


@_decided
def is_inner(layer: int, u: Fraction) -> bool | None:
  """Returns whether u < xᵢ₊₁/xᵢ."""
  shift = FIXED - u.length
  if u.bits + 1 << shift <= inner(layer):
    return True
  return False if u.bits << shift > inner(layer) else None


@_decided
def is_below(layer: int, u: Fraction, v: Fraction) -> bool | None:
  """Returns whether a point of a layer above 0, at the height of part v, is below the density."""
  x = widths()[layer]
  low, high = height(x), height(widths()[layer + 1])
  bottom, top = (low + end * (high - low) for end in v.ends())
  most, least = (height(end * x) for end in u.ends())
  if top < least - _ERROR:
    return True
  return False if bottom > most + _ERROR else None


@_decided
def is_in_tail(u: Fraction, v: Fraction) -> bool | None:
  """Returns whether x₁ + a, a = −ln(u)/x₁, is taken: if −2 ln v > a² (Marsaglia 1964)."""
  if not (u.bits and v.bits):
    return None
  (most, least), (high, low) = _beyond(u), (-2 * end.ln() for end in v.ends())
  if low > most * most + _ERROR:
    return True
  return False if high < least * least - _ERROR else None


def _beyond(u: Fraction) -> tuple[decimal.Decimal, decimal.Decimal]:
  """The most and the least that a = −ln(u)/x₁ may be."""
  low, high = u.ends()
  return -low.ln() / widths()[1], -high.ln() / widths()[1]


@_decided
def rounded(layer: int, u: Fraction, scale: float) -> int | None:
  """Returns round(scale · u·xᵢ); the scale is a float64, meant exactly."""
  above, below = scale.as_integer_ratio()
  shift = FIXED + u.length + below.bit_length() - 1  # below is a power of 2.
  half = 1 << shift - 1
  low = above * _width(layer) * u.bits + half >> shift
  high = above * (_width(layer) + 1) * (u.bits + 1) + half >> shift
  return low if low == high else None


@_decided
def rounded_in_tail(u: Fraction, scale: float) -> int | None:
  """Returns round(scale · (x₁ − ln(u)/x₁)); the scale is a float64, meant exactly."""
  if not u.bits:
    return None
  high, low = (decimal.Decimal(scale) * (widths()[1] + end) for end in _beyond(u))
  error = decimal.Decimal(scale) * _ERROR
  ends = {int(end.to_integral_value()) for end in (low - error, high + error)}
  return ends.pop() if len(ends) == 1 else None


def units_off(name: str, points: np.ndarray, values: np.ndarray) -> float:
  """Returns the largest error of values of 'log' or 'exp', in units in their last place."""
  function = {'log': decimal.Decimal.ln, 'exp': decimal.Decimal.exp}[name]
  places = zip(points.tolist(), values.tolist(), np.spacing(np.abs(values)).tolist())
  with decimal.localcontext(decimal.Context(prec=30)):
    return max(
      float(abs(decimal.Decimal(value) - function(decimal.Decimal(point))) / decimal.Decimal(unit))
      for point, value, unit in places
    )
