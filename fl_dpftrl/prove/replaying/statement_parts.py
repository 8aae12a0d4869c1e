"""Parts of a statement: one guarantee each, and whether the log contradicts it."""

import dataclasses
from typing import Any

from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

TOO_SMALL = (
  'all kept to it, and the loss that the log shows is larger than its guarantee: the sensitivity of'
  ' the participation is wrong'
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Part:
  """One guarantee of a statement, and the participation that it is of.

  That of declared schemas is of all declared rounds, also where a run ended earlier: what such a
  run released is part of what all of its rounds would have released, whatever ended it.

  Attributes:
    name: 'worst_case', 'observed', 'declared', 'amplified' (by secret draws) or 'shuffled'.
    participation: what was declared, or the scheme of draws; None for what the log shows. That of
      several runs stands for all.
    holds: whether the log does not contradict it.
    reason: how it does; None if it does not, and if that must not be published.
  """

  name: str
  guarantee: guarantees.Guarantee
  participation: Any = None
  holds: bool = True
  reason: str | None = None

  def __repr__(self) -> str:
    """Returns the guarantee in one sentence."""
    name = self.name.replace('_', ' ')
    if not self.holds:
      return messages.one_line(f'{name}: does not hold, as {self.reason or self.broken}', 200)
    extent = '' if self.participation is None else f', of {self.participation.extent}'
    return f'{name}: {self.guarantee}{extent}'

  @property
  def broken(self) -> str:
    """That what was declared or drawn does not hold, in words."""
    text: str = TOO_SMALL if self.reason == TOO_SMALL else self.participation.broken
    return text

  def to_json(self) -> json_files.Object:
    """Returns the figures, with the participation if there is one and whether it holds."""
    figures, stated = self.guarantee.to_json(), self.participation
    if stated is None:
      return figures
    result = {**stated.summary(), **figures, 'holds': self.holds}
    if stated.is_drawn:
      result |= {'adjacency': self.guarantee.adjacency, 'reason': self.reason}
    return result
