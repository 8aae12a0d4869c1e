"""The interface of noise streams."""

from collections.abc import Callable
from typing import Any, NamedTuple


class NoiseStream(NamedTuple):
  """Rows of N·Z, one at a time, as pure functions: the same state gives the same row again.

  Attributes:
    init: () → state, before row 0.
    next: state → (row t of N·Z, state before row t + 1).
    skip: state → state before row t + 1, for a row that nobody gets.
  """

  init: Callable[[], Any]
  next: Callable[[Any], tuple[Any, Any]]
  skip: Callable[[Any], Any]
