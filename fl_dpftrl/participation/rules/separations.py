"""Min-sep and fixed separation: devices return after at least, or exactly, so many rounds."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.participation import gates, promised, registry
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.participation import Participation, Recorded
from fl_dpftrl.support.text import messages


@registry.register
class MinSep(schemas.Schema, promised.Promised):
  """(k, b)-min-sep participation: at most k rounds, at least b apart.

  A participation of your own is a frozen dataclass derived from this one, registered with
  `dpftrl.register`. It has a `kind`, the least separation and the most participations of all its
  patterns, and `allows`; it may have `sensitivity(strategy)`, else that of its min-sep schema, an
  upper bound, is taken, and `assumption`, its pattern in words.

  Attributes:
    num_rounds: n, the number of noise rows used; None for a run without an end, of which each
      device may be in max_participations rounds ever.
    min_sep: b; participations i < j of one device satisfy j - i >= b. With 1 a device may take
      part in every round.
    max_participations: k; None for as many as fit into the rounds.

  Source: Choquette-Choo et al. 2023 (BandMF), section 2, "b-min-sep".
  """

  kind: ClassVar[str] = 'min_sep'

  @property
  def schema(self) -> 'MinSep':
    """The schema that every device keeps to: this one."""
    return self

  def within(self, num_rounds: int) -> 'MinSep':
    """Returns the schema of as many consecutive rounds; itself without an end."""
    if self.num_rounds in (None, num_rounds):
      return self
    b, k = min(self.min_sep, num_rounds), min(self.participations, num_rounds)
    if self.is_own:
      return dataclasses.replace(self, num_rounds=num_rounds, min_sep=b, max_participations=k)
    return MinSep(num_rounds, b, k)

  def as_min_sep(self) -> 'MinSep':
    """Returns the min-sep schema of the same numbers, which allows all its patterns."""
    return MinSep(self.num_rounds, self.min_sep, self.max_participations)

  @property
  def needs_rows(self) -> bool:
    """True for a participation from outside: counts show only separations and participations."""
    return self.is_own

  def worst_case(self, strategy: base.Strategy) -> sensitivities.Sensitivity:
    """Returns the sensitivity under the schema."""
    return sensitivities.sensitivity(strategy, self)

  def for_claim(self, strategy: base.Strategy) -> Participation:
    """Returns the schema with its largest k."""
    super().for_claim(strategy)
    return dataclasses.replace(self, max_participations=self.participations)

  def gate(self, strategy: base.Strategy) -> gates.MinSepGate:
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
    self, counts: participation_counts.RunCounts, recorded: Recorded, violators: int
  ) -> list[str]:
    """Returns what was allowed and what the log has, where devices did not keep to it."""
    most = counts.max_participations
    too_soon = most > 1 and counts.min_sep < self.min_sep
    if not (violators or too_soon or most > self.participations):
      return []
    return [
      f'at least {self.min_sep} rounds apart and at most {self.participations} participations were'
      f' allowed, the log has {counts.min_sep} and {most}'
    ]

  def covers(self, other: Participation) -> bool:
    if not isinstance(other, MinSep):
      return False
    if self.is_own or other.is_own:
      return self == other
    return bool(
      self.num_rows >= other.num_rows
      and self.min_sep <= other.min_sep
      and self.participations >= other.participations
    )

  def together(self, others: Sequence[Participation]) -> Participation:
    """Returns the schema of all rounds, with the least min-sep and the most participations."""
    if not others:
      return self
    every: list[Participation] = [self, *others]
    for place, other in enumerate(every):
      if not isinstance(other, MinSep):
        return other.together([*every[:place], *every[place + 1 :]])
    same = [schema for schema in every if isinstance(schema, MinSep)]
    is_endless = any(schema.num_rounds is None for schema in same)
    return MinSep(
      num_rounds=None if is_endless else sum(schema.num_rows for schema in same),
      min_sep=min(schema.min_sep for schema in same),
      max_participations=max(schema.participations for schema in same),
    )


@registry.register
class FixedSeparation(schemas.Fixed, MinSep):
  """(k, b)-participation: at most k rounds, each exactly b after the last.

  Attributes and errors are those of `MinSep`. The allowed patterns are a subset of those of
  `MinSep`. No log confirms it, and no gate keeps it.

  Source: Choquette-Choo et al. 2023 (multi-epoch matrix factorisation).
  """

  kind: ClassVar[str] = 'fixed_separation'

  def for_claim(self, strategy: base.Strategy) -> Participation:
    """Raises ValueError: no gate keeps it."""
    raise ValueError(f'participation must be a MinSep, got {messages.quoted(self)}')

  def covers(self, other: Participation) -> bool:
    """Returns whether another is this one: a min-sep schema of the same numbers allows more."""
    return self == other
