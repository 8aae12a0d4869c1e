"""The protocol of a noise stream."""

from collections.abc import Callable
from typing import Any, NamedTuple


class NoiseStream(NamedTuple):
  """Rows of N·Z, one at a time, as two pure functions.

  The state is all that a stream remembers: the same state always gives the same
  row and the same next state, so a saved state resumes a stream exactly.

  Attributes:
    init: () → state, before row 0.
    next: state → (row t of N·Z, state before row t + 1).
    skip: state → state before row t + 1, for a row that nobody gets.
  """

  init: Callable[[], Any]
  next: Callable[[Any], tuple[Any, Any]]
  skip: Callable[[Any], Any]
