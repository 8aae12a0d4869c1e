"""What a sensitivity is."""

from typing import NamedTuple


EXACT = 'exact'
UPPER_BOUND = 'upper_bound'
LOWER_BOUND = 'lower_bound'


class Sensitivity(NamedTuple):
  """A sensitivity per unit of clip norm, and what is proven of it.

  Attributes:
    value: the worst ‖C u‖, or a bound on it.
    kind: 'exact', 'upper_bound' or 'lower_bound'. A guarantee takes only the
      first two.
  """

  value: float
  kind: str
