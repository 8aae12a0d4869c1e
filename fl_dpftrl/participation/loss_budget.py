"""A participation without an end: a budget of loss for each device in place of rounds."""

import dataclasses
import math
from typing import Any, ClassVar

from fl_dpftrl.participation import schemas

LAST_ROW = 2**20
"""Rows of noise that a stream has, if no other number is stated."""

_SLACK = 1.0 + 1e-8  # Else rounding refuses patterns that are as costly as the budget.


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossBudget:
  """A loss budget: a device takes part while its loss Q = Σ X[s, t] stays within B².

  The guarantee is that of B for a run of any length, whatever ends it. Give B² itself, or the
  min-sep schema whose patterns it admits all, and with them every pattern that costs no more.

  A device takes part at most ⌊B² / X(0)⌋ times ever, so that a run without an end needs new
  devices.

  Attributes:
    max_participations: k of the schema that names the budget.
    min_sep: b of that schema.
    squared: B², in squares of the clip norm; None where a schema names it.
    last_row: most rows of noise of one stream, and so most rounds: whole numbers have a bound that
      grows with them.

  Source: docs/endless.md.
  """

  kind: ClassVar[str] = 'loss_budget'
  is_drawn: ClassVar[bool] = False
  is_secret: ClassVar[bool] = False
  max_participations: int | None = None
  min_sep: int | None = None
  squared: float | None = None
  last_row: int = LAST_ROW

  def __post_init__(self):
    object.__setattr__(self, 'last_row', schemas.positive_integer('last_row', self.last_row))
    names = [n for n in ('max_participations', 'min_sep') if getattr(self, n) is not None]
    if (self.squared is None) != (len(names) == 2) or (names and self.squared is not None):
      raise ValueError('a loss budget needs max_participations and min_sep, or squared')
    for name in names:
      object.__setattr__(self, name, schemas.positive_integer(name, getattr(self, name)))
    if self.squared is not None:
      try:
        value = math.nan if isinstance(self.squared, bool) else float(self.squared)
      except (TypeError, ValueError):
        value = math.nan
      if not 0.0 < value < math.inf:
        raise ValueError(f'squared must be positive and finite, got {self.squared!r}')
      object.__setattr__(self, 'squared', value)

  @property
  def named(self) -> tuple[int, int]:
    """The min_sep and max_participations that name it; ValueError for one of a number."""
    if self.min_sep is None or self.max_participations is None:
      raise ValueError('the loss budget needs max_participations and min_sep, not squared')
    return self.min_sep, self.max_participations

  def square(self, strategy: Any) -> float:
    """Returns B² of a strategy, as it is accounted; ValueError if it is not enough for a round."""
    gram = strategy.endless_gram()
    if self.squared is None:
      named = gram.worst_square(*self.named).value ** 2
      return named * _SLACK
    if self.squared < gram.own:
      raise ValueError(
        f'squared={self.squared:g} is below the loss {gram.own:.6g} of a single round of this'
        f' {strategy.family} strategy'
      )
    return self.squared * _SLACK

  def most_participations(self, strategy: Any) -> int:
    """Returns the most rounds that a device takes part in ever, ⌊B² / X(0)⌋."""
    return int(self.square(strategy) / strategy.endless_gram().own)
