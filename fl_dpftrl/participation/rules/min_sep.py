"""Answers of min-sep schemas, joined to the plain classes that families know."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.participation import gates, promised, protocol, registry
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.rules import loss_budgets
from fl_dpftrl.support.files import json_files
from fl_dpftrl.support.text import messages


class _MinSep(promised.Promised):
  """Answers of `MinSep`, and of what derives from it."""

  min_sep: int
  max_participations: int | None
  participations: int
  is_own: bool
  allows: Any
  is_min_sep = True

  @property
  def budget(self) -> loss_budgets.LossBudget | None:
    """The loss budget of a run without an end, whose B is the sensitivity of the schema."""
    if self.num_rounds is not None:
      return None
    return loss_budgets.LossBudget(max_participations=self.max_participations, min_sep=self.min_sep)

  @property
  def needs_rows(self) -> bool:
    """True for a participation from outside: counts show only separations and participations."""
    return self.is_own

  def worst_case(self: Any, strategy: base.Strategy) -> sensitivities.Sensitivity:
    """Returns the sensitivity under the schema."""
    return sensitivities.sensitivity(strategy, self)

  def for_claim(self: Any, strategy: base.Strategy) -> Any:
    """Returns the schema with its largest k."""
    promised.Promised.for_claim(self, strategy)
    return dataclasses.replace(self, max_participations=self.participations)

  def gate(self: Any, strategy: base.Strategy) -> gates.MinSepGate:
    """Returns the gate that keeps devices to the schema."""
    return gates.MinSepGate(self)

  def wrong(self, strategy: base.Strategy, rounds: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Returns the participations that are too soon, one too many, or not allowed."""
    places = np.arange(rounds.size)
    too_soon = (places > starts) & (np.diff(rounds, prepend=0) < self.min_sep)
    wrong = too_soon | (places - starts >= self.participations)
    for i in places if self.is_own else ():
      wrong[i] |= not self.allows(rounds[starts[i] : i + 1])
    return wrong

  def contradictions(
    self, happened: participation_counts.RunCounts, recorded: protocol.Recorded, violators: int
  ) -> list[str]:
    """Returns what was allowed and what the log has, where devices did not keep to it."""
    most = happened.max_participations
    too_soon = most > 1 and happened.min_sep < self.min_sep
    if not (violators or too_soon or most > self.participations):
      return []
    return [
      f'at least {self.min_sep} rounds apart and at most {self.participations} participations were'
      f' allowed, the log has {happened.min_sep} and {most}'
    ]

  def covers(self, recorded: Any) -> bool:
    if not isinstance(recorded, schemas.MinSep):
      return False
    if self.is_own or recorded.is_own:
      return bool(recorded == self)
    return bool(
      self.num_rows >= recorded.num_rows
      and self.min_sep <= recorded.min_sep
      and self.participations >= recorded.participations
    )

  @property
  def allowed(self) -> str:
    extent = 'any number of' if self.num_rounds is None else self.num_rounds
    return f'at most {self.participations} of {extent} rounds, at least {self.min_sep} apart'

  def summary(self: Any) -> json_files.Object:
    """Returns the attributes of the schema."""
    return dataclasses.asdict(self)

  def fields(self: Any, strategy: base.Strategy) -> json_files.Object:
    """Returns the attributes, with the participations that fit, and the kind of separation."""
    most = {'max_participations': self.participations}
    return {**dataclasses.asdict(self), **most, 'separation': self.separation}

  def together(self: Any, others: Sequence[Any]) -> Any:
    """Returns the schema of all rounds, with the least min-sep and the most participations."""
    if not others:
      return self
    every = [self, *others]
    for other in others:
      if not isinstance(other, schemas.MinSep):
        return other.together([self])
    is_endless = any(schema.num_rounds is None for schema in every)
    return schemas.MinSep(
      num_rounds=None if is_endless else sum(schema.num_rows for schema in every),
      min_sep=min(schema.min_sep for schema in every),
      max_participations=max(schema.participations for schema in every),
    )

  def flags(self: Any, is_recorded: bool) -> list[str]:
    """Returns the flags of the schema, unless the log records it."""
    return [] if is_recorded else [f'--declared_{name}={v}' for name, v in vars(self).items()]


class _Fixed:
  """Answers of `FixedSeparation`: no log confirms it, and no gate keeps it."""

  def for_claim(self, strategy: base.Strategy) -> Any:
    """Raises ValueError."""
    raise ValueError(f'participation must be a MinSep, got {messages.quoted(self)}')


registry.add_answers(schemas.MinSep, _MinSep)
registry.add_answers(schemas.FixedSeparation, _Fixed)
