"""Parts of a statement: one guarantee each, and whether the log contradicts it."""

import dataclasses
from typing import Any

from fl_dpftrl.participation import batches, drawn, registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import loss_budgets, per_units, population_budgets, sampling
from fl_dpftrl.prove.replaying import participation_sentences, tightness
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages

TOO_SMALL = (
  'all kept to it, and the loss that the log shows is larger than its guarantee: the sensitivity of'
  ' the participation is wrong'
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Part:
  """One guarantee of a statement: that of what its logs show.

  Attributes:
    name: 'worst_case', 'observed', 'declared', 'amplified' (by secret draws) or 'shuffled'.
    holds: whether the log does not contradict it.
    reason: how it does; None if it does not, and if that must not be published.
    attack: sensitivity that updates reach, where an upper bound is guaranteed; None if unknown.
  """

  name: str
  guarantee: guarantees.Guarantee
  holds: bool = True
  reason: str | None = None
  attack: float | None = None

  def __repr__(self) -> str:
    """Returns the guarantee in one sentence."""
    return f'{self.name.replace("_", " ")}: {self.guarantee}'

  @property
  def tightness(self) -> 'tightness.Tightness | None':
    """The distance of its ε from that of an attack; None where no ε is proven."""
    return tightness.tightness(self.guarantee, self.attack)

  def to_json(self) -> json_files.Object:
    """Returns the figures, and how tight ε is."""
    distance = self.tightness
    return {**self.guarantee.to_json(), 'tightness': distance and distance._asdict()}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Planned(Part):
  """The guarantee of what was declared, or of a scheme of draws.

  That of declared schemas is of all declared rounds, also where a run ended earlier: what such a
  run released is part of what all of its rounds would have released, whatever ended it.

  Attributes:
    participation: what was declared or drawn; that of several runs stands for all.
  """

  participation: Participation

  def __repr__(self) -> str:
    """Returns the guarantee and its rounds in one sentence, or why it does not hold."""
    if not self.holds:
      reason = self.reason or self.broken
      return messages.one_line(f'{self.name}: does not hold, as {reason}', 200)
    return f'{super().__repr__()}, of {self.extent}'

  @property
  def is_of_population(self) -> bool:
    """True for the budgets of a population."""
    return isinstance(self.participation, population_budgets.PopulationBudget)

  @property
  def is_endless(self) -> bool:
    """True where it holds for any number of rounds, so that no fact of a log makes it less."""
    return self.holds and self.participation.num_rounds is None

  @property
  def budget(self) -> str:
    """The budget that its loss stays within, in words, for a run without an end."""
    return 'the budget of the population' if self.is_of_population else 'the declared loss budget'

  @property
  def extent(self) -> str:
    """The rounds that it is of, in words."""
    return participation_sentences.extent(self.participation)

  @property
  def broken(self) -> str:
    """That what was declared or drawn does not hold, in words."""
    if self.reason == TOO_SMALL:
      return TOO_SMALL
    return participation_sentences.broken(self.participation)

  def to_json(self) -> json_files.Object:
    """Returns the participation, the figures, and whether it holds."""
    result = {**fields(self.participation), **super().to_json(), 'holds': self.holds}
    if self.participation.is_drawn:
      result |= {'adjacency': self.guarantee.adjacency, 'reason': self.reason}
    return result


def fields(participation: Participation) -> json_files.Object:
  """Returns the fields of a participation in a statement."""
  record: Any = participation  # A dataclass, as every rule is.
  if isinstance(participation, per_units.PerUnit):
    unit = {'unit': participation.name, 'max_rows': participation.max_rows}
    return {**fields(participation.participation), **unit}
  if isinstance(participation, population_budgets.PopulationBudget):
    return {
      'num_rounds': None,
      'unit': participation.name,
      'budgets': dict(participation.epsilons),
      'budget_delta': participation.delta,
      'num_ended': participation.num_ended,
      'num_withdrawn': participation.num_withdrawn,
    }
  if isinstance(participation, loss_budgets.LossBudget):
    return {'num_rounds': None, **dataclasses.asdict(record)}
  if not isinstance(participation, drawn.Drawn):
    return dataclasses.asdict(record)
  attributes = registry.to_json(participation)
  kind, _ = attributes.pop('kind'), attributes.pop('num_rounds')
  result = {'sampling': kind, **attributes, 'assumption': participation.assumption}
  if isinstance(participation, batches.Batches):
    result['sampling_probability'] = participation.sampling_probability
    result['compositions'] = participation.turns
  if isinstance(participation, sampling.Shuffled):
    schema = participation.schema
    result |= {'min_sep': schema.min_sep, 'max_participations': schema.participations}
    result['separation'] = participation.separation
  return result
