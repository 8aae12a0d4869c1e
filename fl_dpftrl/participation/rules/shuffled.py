"""Shuffled batches: passes over a part, in a new order each or in one order."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, schemas
from fl_dpftrl.participation import cyclic, drawn, log_checks, protocol, registry
from fl_dpftrl.participation.accounting import guarantees
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.support.files import json_files


@registry.register
class Shuffled(cyclic.Cyclic):
  """Scheme that goes through each part in a new shuffled order in each pass.

  A pass has ⌊part_size / batch_size⌋ turns and leaves out the remaining examples. Given the
  orders, the rounds of every example are known. A guarantee under `schema` thus holds for every
  order, and so for their mixture. The ε of Poisson sampling does not hold, and no amplified
  bound for batches of many shuffled examples is known here.
  """

  kind: ClassVar[str] = 'shuffled'
  part: ClassVar[str] = protocol.SHUFFLED
  separation: ClassVar[str] = 'min'

  @property
  def pass_turns(self) -> int:
    """Number of turns of one pass; an example is in at most one of them."""
    return int(self.part_size // self.batch_size)

  @property
  def schema(self) -> schemas.Schema:
    """Participation schema: one round per pass, the closest across two passes."""
    return registry.min_sep(
      num_rounds=self.num_rounds,
      min_sep=self.num_parts,
      max_participations=-(-self.turns // self.pass_turns),
    )

  @property
  def assumption(self) -> str:
    return (
      f'each example is in one of {self.num_parts} parts, the rounds take turns at them, and a pass'
      f' of {self.pass_turns} turns has it in at most one batch; the order does not depend on the'
      ' data, and need not be secret: shuffling amplifies nothing here'
    )

  @property
  def by_schema(self) -> Any:
    """The schema, which answers."""
    return self.schema

  def batches(self, generator: drawn.Generator) -> Callable[[int], np.ndarray]:
    """Returns the function from a round to its step of the pass; orders are kept for a pass."""
    orders: dict[int, tuple[int, np.ndarray]] = {}

    def draw(t: int) -> np.ndarray:
      turn, part = divmod(t, self.num_parts)
      index, step = divmod(turn, self.pass_turns)
      index = index if self.separation == 'min' else 0  # Else of the first pass.
      if part not in orders or orders[part][0] != index:
        orders[part] = index, generator(drawn.ORDERS, part, index).permutation(self.part_size)
      first = step * int(self.batch_size)
      return orders[part][1][first : first + int(self.batch_size)]

    return draw

  def check(self, strategy: base.Strategy, terms: guarantees.Terms) -> None:
    self.by_schema.check(strategy, terms)

  def guarantee(self, *arguments: Any) -> guarantees.Guarantee:
    return self._assumed(self.by_schema.guarantee(*arguments))

  def least_noise(self, *arguments: Any) -> guarantees.Guarantee:
    return self._assumed(self.by_schema.least_noise(*arguments))

  def _assumed(self, guarantee: guarantees.Guarantee) -> guarantees.Guarantee:
    first, *others = guarantee.assumptions
    return dataclasses.replace(guarantee, assumptions=(first, self.assumption, *others))

  def refutations(self, happened: participation_counts.RunCounts) -> list[str]:
    sizes = list(log_checks.sizes(happened, self))
    if not happened.num_devices:
      return sizes
    parts, passes = log_checks.parts(happened, self), log_checks.passes(happened, self)
    return [*parts, *sizes, *passes]

  def summary(self) -> json_files.Object:
    schema = self.schema
    return super().summary() | {
      'min_sep': schema.min_sep,
      'max_participations': schema.participations,
      'separation': self.separation,
    }


@registry.register
class ShuffledOnce(Shuffled):
  """Scheme that repeats the order of the first pass: a fixed separation."""

  kind: ClassVar[str] = 'shuffled_once'
  separation: ClassVar[str] = 'fixed'

  @property
  def schema(self) -> schemas.Fixed:
    """Participation schema: every pass_turns turns of a part, exactly."""
    return registry.fixed(
      num_rounds=self.num_rounds,
      min_sep=self.num_parts * self.pass_turns,
      max_participations=-(-self.turns // self.pass_turns),
    )

  def refutations(self, happened: participation_counts.RunCounts) -> list[str]:
    apart = happened.separations.values
    wrong = apart[apart != self.schema.min_sep][:1].tolist()
    return super().refutations(happened) + [
      f'an example came back after {rounds:,} rounds, where each does after exactly'
      f' {self.schema.min_sep:,}'
      for rounds in wrong
    ]
