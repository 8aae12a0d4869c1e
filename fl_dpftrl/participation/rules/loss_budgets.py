"""A participation without an end: a budget of loss for each device in place of rounds."""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.mechanisms.sensitivities import endless
from fl_dpftrl.participation import gates, promised, registry
from fl_dpftrl.participation.counts import meter, participation_counts
from fl_dpftrl.participation.participation import Participation, Recorded
from fl_dpftrl.support import checks

SPENT, LIFE = 'loss_budget', 'life'
"""Why a device is turned away: for this round, or for ever."""

_A_DECADE = 3  # horizons


@registry.register
@dataclasses.dataclass(frozen=True, kw_only=True)
class LossBudget(promised.Promised):
  """A loss budget: a device takes part while its loss Q = Σ X[s, t] stays within B².

  The guarantee is that of B for a run of any length, whatever ends it. Give B² itself, or the
  min-sep schema whose patterns it admits all, and with them every pattern that costs no more; of a
  `Stamped` strategy with X of both signs it may admit fewer.

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
  charges_rows: ClassVar[bool] = True
  num_rounds: ClassVar[None] = None  # type: ignore[misc]
  max_participations: int | None = None
  min_sep: int | None = None
  squared: float | None = None
  last_row: int = schemas.LAST_ROW

  def __post_init__(self):
    keep = functools.partial(checks.keep, self)
    keep(functools.partial(checks.whole, 1, schemas.LAST_ROW), 'last_row')
    names = [n for n in ('max_participations', 'min_sep') if getattr(self, n) is not None]
    if (self.squared is None) != (len(names) == 2) or (names and self.squared is not None):
      raise ValueError('a loss budget needs max_participations and min_sep, or squared')
    keep(checks.whole, *names)
    if self.squared is not None:
      keep(checks.positive, 'squared')

  @property
  def named(self) -> tuple[int, int]:
    """The min_sep and max_participations that name it; ValueError for one of a number."""
    if self.min_sep is None or self.max_participations is None:
      raise ValueError('the loss budget needs max_participations and min_sep, not squared')
    return self.min_sep, self.max_participations

  def horizon_schemas(self, horizons: tuple[int, int] | None) -> list[schemas.Schema]:
    """Returns a schema for each of some horizons, from the first to the last; three a decade."""
    min_sep, max_participations = self.named
    try:
      first, last = (checks.whole(1, self.last_row, horizons=n) for n in horizons or ())
    except (TypeError, ValueError) as error:
      raise ValueError(f'horizons must be two numbers of rounds, got {horizons!r}') from error
    if first > last:
      raise ValueError(f'horizons={first},{last} must be the first and the last')
    points = np.geomspace(first, last, 1 + math.ceil(_A_DECADE * math.log10(last / first)))
    return [
      schemas.Schema(n, min(n, min_sep), max_participations)
      for n in np.unique(points.round().astype(int)).tolist()
    ]

  def square(self, strategy: base.Strategy) -> float:
    """Returns B² of a strategy, as it is accounted; ValueError if it is not enough for a round."""
    gram = strategy.endless_gram()
    if self.squared is None:
      return gram.worst_square(*self.named).value ** 2 * endless.SLACK
    if self.squared < gram.own:
      raise ValueError(
        f'squared={self.squared:g} is below the loss {gram.own:.6g} of a single round of this'
        f' {strategy.family} strategy'
      )
    return self.squared * endless.SLACK

  def most_participations(self, strategy: base.Strategy) -> int:
    """Returns the most rounds that a device takes part in ever, ⌊B² / X(0)⌋."""
    return int(self.square(strategy) / strategy.endless_gram().own)

  @property
  def num_rows(self) -> int:  # type: ignore[override]
    return self.last_row

  @property
  def schema(self) -> schemas.Schema:
    """The schema that devices keep to: none is narrower than any, whatever they cost."""
    return schemas.Schema(schemas.LAST_ROW)

  @property
  def assumption(self) -> str:  # type: ignore[override]
    """The allowed patterns in words."""
    name = f'what {self.max_participations} rounds at least {self.min_sep} apart may cost'
    if self.squared is not None:
      name = f'B² = {self.squared:g}'
    return (
      f'every device takes part in a round only while its loss, over all rows of noise, stays'
      f' within {name}; the loss is charged before the device computes'
    )

  def within(self, num_rounds: int) -> 'LossBudget':
    """Returns itself, as the guarantee is that of any number of rounds."""
    del num_rounds
    return self

  def worst_case(self, strategy: base.Strategy) -> sensitivities.Sensitivity:
    """Returns B, which bounds ‖C u‖ of a device in any number of rounds."""
    return sensitivities.Sensitivity.from_square(self.square(strategy), exact=False)

  def gate(self, strategy: base.Strategy) -> 'LossGate':
    """Returns the gate that meters devices."""
    return LossGate(strategy, self.square(strategy))

  def wrong(self, strategy: base.Strategy, rounds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the participations with which a device has passed its budget."""
    gram, square = strategy.endless_gram(), self.square(strategy)
    gram, places = gram.tabulated(int(rounds.max(initial=0)) + 1), np.arange(rounds.size)
    steps_back = range(1, int((places - starts).max(initial=0)) + 1)
    charges = gram.entries(rounds, rounds)
    for back in steps_back:
      later = places[places - starts >= back]
      charges[later] += 2.0 * gram.entries(rounds[later - back], rounds[later])
    losses = charges.copy()
    for back in steps_back:
      later = places[places - starts >= back]
      losses[later] += charges[later - back]
    return losses > square

  def contradictions(
    self, counts: participation_counts.RunCounts, recorded: Recorded, violators: int
  ) -> list[str]:
    """Returns that devices passed their budgets."""
    return ['devices took part in rounds with which they passed it'] if violators else []

  def together(self, others: Sequence[Participation]) -> Participation:
    """Returns itself, for runs to whose participations devices keep: squares of B / σ add up."""
    for other in others:
      if not isinstance(other, (LossBudget, schemas.Schema)):
        raise ValueError('runs with a loss budget and drawn ones are not composed; replay each')
    return self


def endless_budget(participation: Participation) -> LossBudget | None:
  """Returns the loss budget of a run without an end; None of other runs.

  That of a min-sep schema without an end has the sensitivity of the schema as its B.
  """
  if isinstance(participation, schemas.Schema) and participation.num_rounds is None:
    return LossBudget(
      max_participations=participation.max_participations, min_sep=participation.min_sep
    )
  return participation if isinstance(participation, LossBudget) else None


class LossGate(gates.Gate):
  """A gate that admits devices while their losses are within a budget.

  Attributes:
    seen: participation so far, with the loss of each device.
  """

  def __init__(self, strategy: base.Strategy, square: float):
    self._gram, self._square = strategy.endless_gram(), square
    self.clear()

  def clear(self) -> None:
    self.seen = meter.Meters(self._gram)

  def reasons(self, device_ids: np.ndarray, rows: int = 1) -> np.ndarray:
    losses = self.seen.losses(device_ids)
    over = losses + self.seen.charges(device_ids, rows) > self._square
    ended = losses + self.seen.least_charge > self._square
    return np.where(ended, LIFE, np.where(over, SPENT, ''))

  def share_with_budget(self) -> float | None:
    return self.seen.share_within(self._square)

  def record(self, device_ids: np.ndarray, rows: np.ndarray | None = None) -> None:
    self.seen.add(device_ids, rows)

  def sentence(self, reason: str, last_round: int, participations: int) -> str:
    so_far = f'took part {participations} times, last in round {last_round}, and'
    if reason == LIFE:
      return f'{so_far} has no loss budget for any further round'
    return f'{so_far} this round would pass its loss budget: a later one may not'
