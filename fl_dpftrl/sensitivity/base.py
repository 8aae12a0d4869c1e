"""The type of a sensitivity, with its kind of bound."""

from typing import NamedTuple

EXACT = 'exact'
UPPER_BOUND = 'upper_bound'
LOWER_BOUND = 'lower_bound'
KINDS = (EXACT, UPPER_BOUND, LOWER_BOUND)


class Sensitivity(NamedTuple):
  """A sensitivity per unit of clip norm, with the kind of proof for its value.

  Attributes:
    value: the worst ‖C u‖, or a bound on it.
    kind: 'exact', 'upper_bound' or 'lower_bound'. A guarantee takes only the first two.
  """

  value: float
  kind: str


def better(one: Sensitivity, other: Sensitivity) -> Sensitivity:
  """Returns the tighter of two sensitivities of one strategy and schema."""
  for figure in (one, other):
    if figure.kind == EXACT:
      return figure
  return min(one, other, key=lambda figure: figure.value)
