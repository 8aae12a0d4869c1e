"""Checks of arguments, each a line at a call: the keyword is the argument's name in the error."""

import math
import numbers
import operator
from collections.abc import Callable, Iterable
from typing import Any

from fl_dpftrl.support.text import messages

MOST = 2**53  # float64 represents every whole number up to this


def is_number(value: object) -> bool:
  """Returns whether a value is a finite real number, and no bool."""
  is_real = isinstance(value, numbers.Real) and not isinstance(value, bool)
  return is_real and math.isfinite(value)  # type: ignore[arg-type]


def whole(least: int = 1, most: float = MOST, /, **values: Any) -> int:
  """Returns a value as an int; raises ValueError unless it is whole and from `least` to `most`."""
  for name, value in values.items():
    try:
      integer = operator.index(value)
    except TypeError:
      raise ValueError(f'{name} must be a whole number, got {messages.quoted(value)}') from None
    if isinstance(value, bool) or integer < least:
      raise ValueError(f'{name} must be at least {least}, got {messages.quoted(value)}')
    if integer > most:
      limit = '2**53' if most == MOST else most
      raise ValueError(f'{name} must be at most {limit}, got {messages.quoted(value)}')
  return integer


def positive(**values: Any) -> float:
  """Returns a value as a float; raises ValueError unless it is positive and finite."""
  return _number('positive and finite', lambda value: value > 0, values)


def not_negative(**values: Any) -> float:
  """Returns a value as a float; raises ValueError unless it is finite and at least 0."""
  return _number('finite and at least 0', lambda value: value >= 0, values)


def between(low: float, high: float, /, **values: Any) -> float:
  """Returns a value as a float; raises ValueError unless it is from `low` to `high`."""
  return _number(
    f'from {low:g} to {high:g}'.replace('e+', 'e'), lambda value: low <= value <= high, values
  )


def one_of(choices: Iterable[str], /, **values: Any) -> None:
  """Raises ValueError unless a value is one of the choices."""
  for name, value in values.items():
    if not isinstance(value, str) or value not in choices:
      raise ValueError(f'{name} must be one of {", ".join(choices)}, got {messages.quoted(value)}')


def instance(cls: type, /, **values: Any) -> None:
  """Raises ValueError unless a value is of a class."""
  for name, value in values.items():
    if not isinstance(value, cls):
      raise ValueError(f'{name} must be a {cls.__name__}, got {messages.quoted(value)}')


def keep(record: Any, check: Callable[..., Any], *names: str) -> None:
  """Makes attributes of a new frozen record what a check of them returns."""
  for name in names:
    object.__setattr__(record, name, check(**{name: getattr(record, name)}))


def _number(what: str, is_valid: Callable[[Any], bool], values: dict[str, Any]) -> float:
  for name, value in values.items():
    if not (is_number(value) and is_valid(value)):
      raise ValueError(f'{name} must be {what}, got {messages.quoted(value)}')
  return float(value)
