"""Schemes by which participation is drawn, by their names in flags and claims.

Poisson and fixed-size sampling draw each batch anew; shuffled batches pass over a part in an order.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base
from fl_dpftrl.participation import batches, cyclic, drawn, log_checks, registry
from fl_dpftrl.participation.accounting import adjacencies, guarantees
from fl_dpftrl.participation.batches import Batches as Batches
from fl_dpftrl.participation.counts import participation_counts
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.participation.rules.secret_bins import SecretBins as SecretBins
from fl_dpftrl.support import checks


@registry.register
class CyclicPoisson(Batches):
  """Scheme that includes each example of a round's part independently.

  With one part this is the Poisson sampling of DP-SGD. Examples are drawn independently, so
  removing an example is the same as zeroing it out.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, algorithm 2 with
  the Poisson sampling of appendix F.3.
  """

  kind: ClassVar[str] = 'poisson'
  relations: ClassVar[Mapping[str, drawn.Relation]] = {
    adjacencies.ADD_OR_REMOVE: (
      1.0,
      adjacencies.ONE,
      'an example is protected (add-or-remove adjacency): the run is compared with the same run of'
      ' one example more or less, and the parts of the others stay the same',
    ),
    adjacencies.ZERO_OUT: (
      1.0,
      adjacencies.ONE,
      'an example is protected (zero-out adjacency): the run is compared with the same run in which'
      ' its updates are zeros; the others are drawn without regard to it, so that it is one less',
    ),
    adjacencies.REPLACE_ONE: (2.0, adjacencies.OPPOSITE, batches.SENTENCE),
  }
  how: ClassVar[str] = (
    'a round includes each example of its part independently with probability {probability:.6g},'
    ' drawn in secret; batches of fixed size or shuffled ones are not drawn so'
  )

  def _check_batch_size(self) -> None:
    checks.positive(batch_size=self.batch_size)

  def drawn_size(self, rng: np.random.Generator) -> int:
    """Returns a binomial size: with a uniform subset of it, draws of examples are independent."""
    return int(rng.binomial(self.part_size, self.sampling_probability))

  def event(self, release: Any) -> Any:
    """Returns the event of dp_accounting of all releases, from that of one."""
    from dp_accounting import dp_event  # Slow to load.

    sampled = dp_event.PoissonSampledDpEvent(self.sampling_probability, release)
    return dp_event.SelfComposedDpEvent(sampled, self.turns)

  def refutations(self, counts: participation_counts.RunCounts) -> list[str]:
    return list(log_checks.parts(counts, self))


@registry.register
class CyclicFixedSize(Batches):
  """Scheme that draws batch_size examples of a part uniformly at random.

  If one example is not drawn, another one is. Zeroing out an example can thus change a sum by
  as much as replacing it.
  """

  kind: ClassVar[str] = 'fixed_size'
  relations: ClassVar[Mapping[str, drawn.Relation]] = {
    adjacencies.ZERO_OUT: (
      2.0,
      adjacencies.REPLACED,
      'an example is protected (zero-out adjacency): the run is compared with the same run in which'
      ' its updates are zeros; since another example is in the batches without it, 2 clip norms'
      ' away, it is accounted as replace-one',
    ),
    adjacencies.REPLACE_ONE: (2.0, adjacencies.REPLACED, batches.SENTENCE),
  }
  how: ClassVar[str] = (
    'a round draws a fixed number of examples of its part without replacement, {probability:.6g} of'
    ' them, every set with the same chance and in secret; shuffled batches are not drawn so'
  )

  def refutations(self, counts: participation_counts.RunCounts) -> list[str]:
    return [*log_checks.parts(counts, self), *log_checks.sizes(counts, self)]


@registry.register
class Shuffled(cyclic.Cyclic):
  """Scheme that goes through each part in a new shuffled order in each pass.

  A pass has ⌊part_size / batch_size⌋ turns and leaves out the remaining examples. Given the
  orders, the rounds of every example are known. A guarantee under `schema` thus holds for every
  order, and so for their mixture. The ε of Poisson sampling does not hold, and no amplified
  bound for batches of many shuffled examples is known here.
  """

  kind: ClassVar[str] = 'shuffled'
  separation: ClassVar[str] = 'min'

  @property
  def pass_turns(self) -> int:
    """Number of turns of one pass; an example is in at most one of them."""
    return int(self.part_size // self.batch_size)

  @property
  def schema(self) -> separations.MinSep:
    """Participation schema: one round per pass, the closest across two passes."""
    return separations.MinSep(
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
    self.schema.check(strategy, terms)

  def guarantee(
    self, strategy: base.Strategy, noise_multiplier: float, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    return self._assumed(self.schema.guarantee(strategy, noise_multiplier, terms))

  def least_noise(
    self, strategy: base.Strategy, epsilon: float | None, rho: float | None, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    return self._assumed(self.schema.least_noise(strategy, epsilon, rho, terms))

  def _assumed(self, guarantee: guarantees.Guarantee) -> guarantees.Guarantee:
    first, *others = guarantee.assumptions
    return dataclasses.replace(guarantee, assumptions=(first, self.assumption, *others))

  def refutations(self, counts: participation_counts.RunCounts) -> list[str]:
    sizes = list(log_checks.sizes(counts, self))
    if not counts.num_devices:
      return sizes
    parts, passes = log_checks.parts(counts, self), log_checks.passes(counts, self, self.pass_turns)
    return [*parts, *sizes, *passes]


@registry.register
class ShuffledOnce(Shuffled):
  """Scheme that repeats the order of the first pass: a fixed separation."""

  kind: ClassVar[str] = 'shuffled_once'
  separation: ClassVar[str] = 'fixed'

  @property
  def schema(self) -> separations.FixedSeparation:
    """Participation schema: every pass_turns turns of a part, exactly."""
    return separations.FixedSeparation(
      num_rounds=self.num_rounds,
      min_sep=self.num_parts * self.pass_turns,
      max_participations=-(-self.turns // self.pass_turns),
    )

  def refutations(self, counts: participation_counts.RunCounts) -> list[str]:
    apart = counts.separations.values
    wrong = apart[apart != self.schema.min_sep][:1].tolist()
    return super().refutations(counts) + [
      f'an example came back after {rounds:,} rounds, where each does after exactly'
      f' {self.schema.min_sep:,}'
      for rounds in wrong
    ]


Sampled = Batches | SecretBins
Scheme = Sampled | Shuffled

BATCHES: dict[str, type[Batches | Shuffled]] = {
  cls.kind: cls for cls in (CyclicPoisson, CyclicFixedSize, Shuffled, ShuffledOnce)
}
SCHEMES: dict[str, type[Scheme]] = {**BATCHES, SecretBins.kind: SecretBins}
