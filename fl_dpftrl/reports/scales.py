"""Log scale of an axis, and its round numbers."""

import math
from collections.abc import Sequence

_MANTISSAS = (
  (1,),
  (1, 3),
  (1, 2, 5),
  (1, 1.5, 2, 3, 5, 7),
  tuple(range(1, 10)),
  (1, 1.2, 1.5, 1.7, 2, 2.5, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9),
  tuple(m / 10 for m in range(10, 100)),
)
_MOST_TICKS = 6


class Scale:
  """Log scale of an axis; log(1 + value) if the axis starts at 0.

  Args:
    values: values to show; above 0, unless from_zero.
    start: coordinate of the start of the axis in the drawing.
    end: coordinate of its end.
    from_zero: True if the axis starts at 0.
  """

  def __init__(self, values: Sequence[float], start: float, end: float, *, from_zero: bool = False):
    self._plus = 1.0 if from_zero else 0.0
    low, high = 0.0 if from_zero else min(values), max(values)
    if high + self._plus < 1.2 * (low + self._plus):
      low, high = low / 1.1, 1.1 * high + 0.1
    self.low, self.high = low, high
    self._start, self._end = start, end

  def __call__(self, value: float) -> float:
    """Returns the coordinate of a value."""
    low, here, high = (math.log(v + self._plus) for v in (self.low, value, self.high))
    share = (here - low) / (high - low)
    return round(self._start + share * (self._end - self._start), 2)

  def ticks(self) -> list[float]:
    """Returns round numbers, few enough to read."""
    least = self.low or 1.0
    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(self.high)) + 1)
    found: list[float] = []
    for mantissas in _MANTISSAS:
      marks = [m * 10.0**d for d in decades for m in mantissas]
      inside = [mark for mark in marks if least <= mark <= self.high]
      if found and len(inside) > _MOST_TICKS:
        break
      found = max(found, inside, key=len)
    found = found[:: -(-len(found) // _MOST_TICKS) or 1]
    return [0.0, *found] if self._plus else found
