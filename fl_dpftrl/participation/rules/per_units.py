"""Participation of units, such as people, each of which may own several devices."""

import dataclasses
import functools
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.participation import gates, promised, registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.participation import Participation, Recorded
from fl_dpftrl.participation.rules import loss_budgets
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

ROWS = 'max_rows'
"""Why a device is turned away whose unit has as many devices in the round as it may."""


def _delegated(name: str) -> Any:
  """Returns a property of a `PerUnit` that is that of its participation."""
  return property(operator.attrgetter(f'participation.{name}'))


@registry.register
@dataclasses.dataclass(frozen=True)
class PerUnit(promised.Promised):
  """A participation that units keep to with all their devices: a person with two phones is one.

  Where a unit takes part in a round, at most max_rows of its devices do, and every update is
  clipped for itself. Every owner of a device must admit it. A table says who owns which device; it
  must not depend on data that training protects.

  Attributes:
    participation: a `MinSep`, which limits the rounds of a unit, or a `LossBudget`, which charges
      every device of it.
    max_rows: r, most devices of one unit in one round.
    name: the unit in words, in the singular.

  Raises:
    ValueError: for a participation that is drawn: its amplification does not carry over.

  Source: docs/units.md.
  """

  kind: ClassVar[str] = 'per_unit'
  participation: Participation
  max_rows: int = 1
  name: str = 'person'

  def __post_init__(self):
    checks.keep(self, functools.partial(checks.whole, 1, 1 << 20), 'max_rows')
    if isinstance(self.participation, schemas.Schema):
      object.__setattr__(self, 'participation', registry.resolved(self.participation))
    if not isinstance(self.participation, (schemas.Schema, loss_budgets.LossBudget)):
      raise ValueError(
        'participation must be a MinSep or a LossBudget: what is known of draws of devices does not'
        f' carry over to units that own several, got {messages.quoted(self.participation)}'
      )
    is_name = isinstance(self.name, str) and re.fullmatch(r'[a-z]+([ -][a-z]+)*', self.name)
    if not is_name or len(self.name) > 40 or self.name in ('device', 'example'):
      raise ValueError(
        f'name must be small letters for who owns devices, got {messages.quoted(self.name)}'
      )

  num_rounds = _delegated('num_rounds')
  num_rows = _delegated('num_rows')
  min_sep = _delegated('min_sep')
  max_participations = _delegated('max_participations')
  schema = _delegated('schema')
  needs_rows = _delegated('needs_rows')
  charges_rows = _delegated('charges_rows')

  @property
  def unit(self) -> str:  # type: ignore[override]
    """The unit in words."""
    return self.name

  @property
  def assumption(self) -> str:  # type: ignore[override]
    """The allowed patterns in words."""
    inner = self.participation.assumption.replace('device', self.name)
    return f'{inner}, with at most {self.max_rows} of its devices in a round'

  def within(self, num_rounds: int) -> 'PerUnit':
    return dataclasses.replace(self, participation=self.participation.within(num_rounds))

  def worst_case(self, strategy: base.Strategy) -> sensitivities.Sensitivity:
    """Returns the largest ‖C u‖ of a unit: r times that of a device, unless rows are charged.

    Where r devices of a unit are in each of its rounds and all updates are equal, it is reached.
    """
    inner = self.participation.worst_case(strategy)
    if self.charges_rows:
      return inner
    return inner._replace(value=self.max_rows * inner.value)

  def check(self, strategy: base.Strategy, terms: guarantees.Terms) -> None:
    self.participation.check(strategy, terms)

  def for_claim(self, strategy: base.Strategy) -> 'PerUnit':
    """Returns itself, with the participation as a claim holds it."""
    return dataclasses.replace(self, participation=self.participation.for_claim(strategy))

  def after(self, num_rounds: int) -> 'PerUnit':
    return dataclasses.replace(self, participation=self.participation.after(num_rounds))

  def gate(self, strategy: base.Strategy) -> 'UnitGate':
    """Returns the gate, which needs the owners of devices."""
    return UnitGate(self.participation.gate(strategy), self)

  def wrong(self, strategy: base.Strategy, rounds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the participations that are wrong, or one too many in a round."""
    places = np.arange(rounds.size)
    again = (np.diff(rounds, prepend=-1) == 0) & (np.diff(starts, prepend=-1) == 0)
    firsts = np.maximum.accumulate(np.where(again, 0, places))
    wrong = places - firsts >= self.max_rows
    if self.charges_rows:
      return wrong | self.participation.wrong(strategy, rounds, starts)
    whole = np.flatnonzero(~again)
    new_places = np.cumsum(~again) - 1
    wrong[whole] |= self.participation.wrong(strategy, rounds[whole], new_places[starts[whole]])
    return wrong

  def contradictions(
    self, counts: participation_counts.RunCounts, recorded: Recorded, violators: int
  ) -> list[str]:
    """Returns reasons why a log contradicts it; counts are those of units."""
    reasons = self.participation.contradictions(counts, recorded, violators)
    if counts.max_rows > self.max_rows:
      reasons.append(
        f'at most {self.max_rows} devices of one {self.name} in a round were allowed, the log has'
        f' {counts.max_rows}'
      )
    return reasons

  def covers(self, other: Participation) -> bool:
    return (
      isinstance(other, PerUnit)
      and self.max_rows >= other.max_rows
      and self.participation.covers(other.participation)
    )

  def together(self, others: Sequence[Participation]) -> Participation:
    """Returns the participation that stands for it and those of other runs, of the same unit."""
    same = [other for other in others if isinstance(other, PerUnit) and other.name == self.name]
    if len(same) < len(others):
      raise ValueError('runs whose units differ are not composed; replay each')
    inner = self.participation.together([other.participation for other in same])
    most = max([self.max_rows, *(other.max_rows for other in same)])
    return dataclasses.replace(self, participation=inner, max_rows=most)


class UnitGate(gates.Gate):
  """A gate that admits devices by their owners' rounds.

  Attributes:
    owners: function that returns who owns devices in a round, as `UnitTable.owners` does; set
      before use.
    seen: itself, as admission asks for the rounds of devices.
  """

  owners: Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]

  def __init__(self, gate: Any, participation: PerUnit):
    self._gate, self._participation = gate, participation
    self.seen = self

  def limited(self, limit: Callable[[gates.Gate], gates.Gate]) -> 'UnitGate':
    """Returns the gate with another one around that of units."""
    return UnitGate(limit(self._gate), self._participation)

  def owned(
    self, device_ids: np.ndarray, candidates: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns the owners of devices in the next round, each once, and the rows of each.

    Args:
      candidates: places of the devices among what was given, for messages; None for all.
    """
    return np.unique(self._owned(device_ids, candidates)[1], return_counts=True)

  @property
  def num_rounds(self) -> int:
    """Rounds so far."""
    return self._gate.seen.num_rounds

  def share_with_budget(self) -> float | None:
    return self._gate.share_with_budget()

  @property
  def schema(self) -> PerUnit:
    """The tightest participation that every unit kept to."""
    return dataclasses.replace(self._participation, participation=self._gate.seen.schema)

  def clear(self) -> None:
    self._gate.clear()

  def of(self, device_ids: np.ndarray) -> np.ndarray:
    """Returns last round, −1 without one, and number of rounds of each device's first owner."""
    places, units = self._owned(device_ids)
    return self._gate.seen.of(units[np.flatnonzero(np.diff(places, prepend=-1))])

  def reasons(self, device_ids: np.ndarray, rows: int = 1) -> np.ndarray:
    """Returns why each device may not take part in the next round; '' where it may.

    Devices of one unit are admitted in their order. ValueError for a device without an owner.
    """
    places, units = self._owned(device_ids)
    distinct, numbers = np.unique(units, return_inverse=True)
    most = min(self._participation.max_rows, int(np.bincount(numbers).max(initial=1)))
    by_row = [self._gate.reasons(distinct, more + 1) for more in range(most)]
    by_row.append(np.full(distinct.size, ROWS))
    result = np.full(len(device_ids), '', object)
    num_rows = np.zeros(distinct.size, np.int64)
    starts = np.flatnonzero(np.diff(places, prepend=-1))
    done = set[Any]()
    for device_id, place, owned in zip(
      device_ids.tolist(), range(result.size), np.split(numbers, starts[1:])
    ):
      if device_id in done:  # Turned away for being there twice.
        continue
      done.add(device_id)
      for unit in owned.tolist():
        result[place] = result[place] or by_row[min(num_rows[unit], most)][unit]
      if not result[place]:
        num_rows[owned] += 1
    return result.astype(str)

  def record(self, device_ids: np.ndarray, rows: np.ndarray | None = None) -> None:
    self._gate.record(*self.owned(device_ids))

  def sentence(self, reason: str, last_round: int, participations: int) -> str:
    name, most = self._participation.name, self._participation.max_rows
    if reason == ROWS:
      return f'is of a {name} with {most} devices in the round, and no more may take part'
    return f'is of a {name} that {self._gate.sentence(reason, last_round, participations)}'

  def _owned(
    self, device_ids: np.ndarray, candidates: np.ndarray | None = None
  ) -> tuple[np.ndarray, np.ndarray]:
    places, units = self.owners(device_ids, self.num_rounds)
    missing = np.setdiff1d(np.arange(len(device_ids)), places)
    if missing.size:
      place = missing[0] if candidates is None else candidates[missing[0]]
      raise ValueError(
        f'device_ids: at {place}, no {self._participation.name} owns the device in round'
        f' {self.num_rounds}; append it to the table of units first'
      )
    return places, units
