"""Numbers as text for people, rounded to the side that promises less.

Whoever copies a noise multiplier from a table has to get at least the guarantee
that is printed beside it. So noise multipliers of runs to come are rounded up,
and so are sensitivity, rho, epsilon and delta; min-sep, and the noise that a
finished run is shown to have had in units of its sensitivity, are rounded down.
What was given to a command is repeated exactly. Nothing is rounded to nearest
beside a guarantee.
"""

import decimal
import math

DIGITS = 4
"""Significant digits, unless more are asked for."""


def up(value: float, *, digits: int = DIGITS) -> str:
  """Returns the number to so many digits, never below it."""
  return _rounded(value, decimal.ROUND_CEILING, digits)


def down(value: float, *, digits: int = DIGITS) -> str:
  """Returns the number to so many digits, never above it."""
  return _rounded(value, decimal.ROUND_FLOOR, digits)


def exact(value: float) -> str:
  """Returns the shortest text that is read as the very same number."""
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
