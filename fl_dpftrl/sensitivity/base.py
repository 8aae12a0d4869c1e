"""What a sensitivity is."""

from typing import NamedTuple


EXACT = 'exact'
UPPER_BOUND = 'upper_bound'
LOWER_BOUND = 'lower_bound'
KINDS = (EXACT, UPPER_BOUND, LOWER_BOUND)


class Sensitivity(NamedTuple):
  """A sensitivity per unit of clip norm, and what is proven of it.

  Attributes:
    value: the worst ‖C u‖, or a bound on it.
    kind: 'exact', 'upper_bound' or 'lower_bound'. A guarantee takes only the
      first two.
  """

  value: float
  kind: str


def better(one: Sensitivity, other: Sensitivity) -> Sensitivity:
  """The tighter of two figures for the same thing, each exact or a bound."""
  for figure in (one, other):
    if figure.kind == EXACT:
      return figure
  return min(one, other, key=lambda figure: figure.value)
