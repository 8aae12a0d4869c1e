"""Conservative rounding of numbers in text: a rounded figure promises no more.

A noise multiplier copied from a table must give at least the guarantee printed beside it. Noise
multipliers of future runs, sensitivity, rho, epsilon and delta are therefore rounded up.
Min-sep, and the noise of a finished run relative to its sensitivity, are rounded down. Inputs
of a command are repeated exactly. No number beside a guarantee is rounded to nearest.
"""

import decimal
import math

DIGITS = 4  # default number of significant digits
ROUNDING = 1e-12  # relative; errors of float64 in what is computed are smaller
UNBOUNDED = 'unbounded'  # text for an ε, ρ or μ of ∞: none is proven


def up(value: float, *, digits: int = DIGITS) -> str:
  """Returns the number with `digits` significant digits, never below it; `UNBOUNDED` for ∞."""
  return UNBOUNDED if value == math.inf else _rounded(value, decimal.ROUND_CEILING, digits)


def computed(value: float, *, digits: int = DIGITS) -> str:
  """Returns `up` of a sensitivity, error or loss, but 10 for one that rounding left above 10."""
  return up(value * (1.0 - ROUNDING), digits=digits)


def computed_down(value: float) -> str:
  """Returns `down` of noise over a sensitivity, but 2 for one that rounding left below 2."""
  return down(value * (1.0 + ROUNDING))


def down(value: float, *, digits: int = DIGITS) -> str:
  """Returns the number with `digits` significant digits, never above it."""
  return _rounded(value, decimal.ROUND_FLOOR, digits)


def exact(value: float) -> str:
  """Returns the shortest text that parses to the same number."""
  return repr(float(value)).removesuffix('.0')


def _rounded(value: float, way: str, digits: int) -> str:
  if isinstance(value, int):
    return f'{value:,}'
  value = float(value)
  if not value or not math.isfinite(value):
    return exact(value)
  number = decimal.Decimal(repr(value))
  place = decimal.Decimal(1).scaleb(number.adjusted() - digits + 1)
  short = number.quantize(place, rounding=way)
  return f'{float(short):.{digits}g}'
