"""Fresh secret batches of each round, and the guarantee that they amplify."""

import dataclasses
from typing import Any, ClassVar

from fl_dpftrl.mechanisms import base, schemas, sensitivities
from fl_dpftrl.mechanisms.families import banded, banded_toeplitz, identity
from fl_dpftrl.participation import cyclic, drawn
from fl_dpftrl.participation.accounting import guarantees, sampled_gaussian

SENTENCE = (
  'the data of an example are protected (replace-one adjacency): the run is compared with the same'
  ' run in which one example has any other data; two clipped updates are at most 2 clip norms apart'
)
"""Replace-one in words."""


class Batches(drawn.Secret, cyclic.Cyclic):
  """Scheme with fresh secret samples each round.

  Attributes and errors are those of `Cyclic`; num_parts is at least the number of bands of the
  strategy. A subclass defines `kind`, `relations`, `how` (the sampling in words) and `draw`.

  Batches amplify the privacy of banded strategies (amplified BandMF): if C has at most num_parts
  bands, columns that are num_parts apart share no row. The contribution of an example is then one
  sampled Gaussian release in each turn of its part: that of DP-SGD on the part alone.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, theorem 4 and
  appendix F.3.
  """

  how: ClassVar[str]

  @property
  def sampling_probability(self) -> float:
    """q, the probability of an example in a round of its part."""
    return self.batch_size / self.part_size

  @property
  def assumption(self) -> str:
    """States in words how batches must have been drawn."""
    return self.how.format(probability=self.sampling_probability)

  @property
  def conditions(self) -> tuple[str, ...]:
    return (
      f'each example is in one of {self.num_parts} parts, whatever its'
      f' data, and the {self.num_rounds} rounds take turns at the parts',
      self.assumption,
      'every update is that of one example, clipped to the clip norm, and what'
      ' their sum is divided by does not depend on who was drawn',
      guarantees.NOISE,
    )

  def chances(self, adjacency: str) -> dict[str, Any]:
    """Returns the releases of one example, as `sampled_gaussian.epsilon` takes them."""
    pair = self.relation(adjacency)[1]
    return {'probability': self.sampling_probability, 'count': self.turns, 'pair': pair}

  def change(self, strategy: base.Strategy, adjacency: str) -> float:
    """Returns the largest change of C x, in clip norms, by an example in a round.

    ValueError for more bands than parts.
    """
    (factor, *_), bands = self.relation(adjacency), num_bands(strategy)
    if bands > self.num_parts:
      raise ValueError(
        f'num_parts={self.num_parts} is fewer than the {bands} bands of the strategy'
      )
    once = schemas.Schema(num_rounds=self.num_rounds, max_participations=1)
    norm = sensitivities.sensitivity(strategy, once)
    if norm.kind == sensitivities.LOWER_BOUND:
      raise ValueError('a guarantee needs exact column norms or an upper bound')
    return factor * norm.value

  def for_bands(self, strategy: base.Strategy) -> 'Batches':
    return dataclasses.replace(self, num_parts=num_bands(strategy))

  def problems(self, size: str | None, *, is_fixed: bool = False) -> drawn.Problems:
    """Returns a number of bands each; ValueError for a mechanism that is not banded."""
    if size != 'num_bands':
      raise ValueError('only banded mechanisms are amplified by sampled batches; any is by bins')
    once = schemas.Schema(self.num_rounds, max_participations=1)
    return [(once, {})] if is_fixed else [(once, {size: bands}) for bands in self.candidate_bands()]

  def candidate_bands(self) -> tuple[int, ...]:
    """Returns the numbers of bands to compare: powers of two and the maximum."""
    most = min(self.num_rounds, cyclic.most_parts(self.num_examples, self.batch_size))
    return tuple(sorted({most, *(2**i for i in range(most.bit_length()))}))

  def check(self, strategy: base.Strategy, terms: guarantees.Terms) -> None:
    super().check(strategy, terms)
    self.change(strategy, terms.adjacency)

  def guarantee(
    self, strategy: base.Strategy, noise_multiplier: float, terms: guarantees.Terms
  ) -> drawn.DrawnGuarantee:
    largest, chances = self.change(strategy, terms.adjacency), self.chances(terms.adjacency)
    result = drawn.DrawnGuarantee(
      sensitivity=largest,
      sensitivity_kind=sensitivities.EXACT,
      noise_multiplier=noise_multiplier,
      deltas=terms.deltas,
      adjacency=terms.adjacency,
      assumptions=(*self.conditions, self.relation(terms.adjacency)[2]),
      sampling=self,
      curve=lambda noise, delta: sampled_gaussian.epsilon(noise / largest, delta, **chances),
    )
    for delta in terms.deltas:
      result.epsilon(delta)  # raises if δ is too small for the distribution
    return result

  def least_noise(
    self, strategy: base.Strategy, epsilon: float | None, rho: float | None, terms: guarantees.Terms
  ) -> guarantees.Guarantee:
    epsilon, chances = drawn.target(epsilon, rho), self.chances(terms.adjacency)
    least = sampled_gaussian.effective_noise_multiplier(epsilon, terms.deltas[0], **chances)
    multiplier = least * self.change(strategy, terms.adjacency)
    step = 1e-15
    while True:
      guarantee = self.guarantee(strategy, multiplier, terms)
      if guarantee.epsilon() <= epsilon:
        return guarantee
      # Multiplying and dividing by the norm rounds, so ε may be just above.
      multiplier, step = multiplier * (1.0 + step), 4.0 * step


def num_bands(strategy: base.Strategy) -> int:
  """Returns the number of nonzero diagonals of C, from the main one down."""
  if isinstance(strategy, identity.Identity):
    return 1
  if isinstance(strategy, (banded.Banded, banded_toeplitz.BandedToeplitz)):
    return strategy.num_bands
  raise ValueError(
    'amplification needs a banded strategy (identity, banded or banded_toeplitz), got'
    f' {strategy.family!r}'
  )
