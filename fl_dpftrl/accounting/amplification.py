"""Guarantees that count on sampled batches: amplified BandMF.

For training in one place, where who takes part in a round can be drawn. Columns
of C that are num_parts apart share no row where C has at most num_parts bands,
so that what an example changes is one sampled Gaussian release for each turn of
its part; all of them together are as private as DP-SGD on that part alone.
"""

import dataclasses
import functools
from typing import Mapping

from fl_dpftrl import participation
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.accounting import sampled_gaussian
from fl_dpftrl.accounting import sampling as sampling_lib
from fl_dpftrl.families import banded
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.families import base
from fl_dpftrl.families import identity

@dataclasses.dataclass(frozen=True, kw_only=True)
class AmplifiedGuarantee:
  """What a run with sampled batches guarantees every example.

  Attributes:
    sampling: how the batches are drawn.
    max_column_norm: of C, per unit of clip norm.
    sensitivity: the most that an example moves C x by one round in which it is,
      per unit of clip norm: max_column_norm, or twice that.
    noise_multiplier: standard deviation of Z over the clip norm.
    effective_noise_multiplier: noise_multiplier / sensitivity.
    epsilon: ε at delta.
    delta: δ.
    adjacency: one of the relations of the sampling.
    assumptions: what must hold for the numbers to be true.
  """

  sampling: sampling_lib.Sampled
  max_column_norm: float
  sensitivity: float
  noise_multiplier: float
  effective_noise_multiplier: float
  epsilon: float
  delta: float
  adjacency: str
  assumptions: tuple[str, ...]

  def epsilon_at(self, delta: float) -> float:
    """ε at another δ; several are points of the curve."""
    return sampled_gaussian.epsilon(
        self.effective_noise_multiplier,
        delta,
        **_chances(self.sampling, self.adjacency),
    )


def account(
    strategy: base.Strategy,
    sampling: sampling_lib.Sampled,
    *,
    noise_multiplier: float,
    delta: float,
    adjacency: str = adjacency_lib.ZERO_OUT,
) -> AmplifiedGuarantee:
  """The guarantee of a run with this strategy, sampling and noise.

  Args:
    strategy: C as it is run, not normalised; banded, with at most as many bands
      as there are parts.
    sampling: how the batches are drawn.
    noise_multiplier: standard deviation of Z over the clip norm.
    delta: δ of (ε, δ).
    adjacency: one of the relations of the sampling.

  Raises:
    ValueError: where an argument is outside its range, nothing is known of the
      adjacency with this sampling, or the strategy is not banded, has more
      bands than there are parts, or cannot run so long.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
  theorem 4 and appendix F.3.
  """
  gaussian.check_positive('noise_multiplier', noise_multiplier)
  relation = sampling.relation(adjacency)
  norm = _max_column_norm(strategy, sampling)
  effective = noise_multiplier / (relation.factor * norm)
  return AmplifiedGuarantee(
      sampling=sampling,
      max_column_norm=norm,
      sensitivity=relation.factor * norm,
      noise_multiplier=noise_multiplier,
      effective_noise_multiplier=effective,
      epsilon=sampled_gaussian.epsilon(
          effective, delta, **_chances(sampling, adjacency)
      ),
      delta=delta,
      adjacency=adjacency,
      assumptions=assumptions(sampling) + (relation.sentence,),
  )


def sensitivity(
    strategy: base.Strategy,
    sampling: sampling_lib.Sampled,
    adjacency: str = adjacency_lib.ZERO_OUT,
) -> float:
  """The most that an example moves C x by one round in which it is.

  Per unit of clip norm. Args and errors as of `account`.
  """
  factor = sampling.relation(adjacency).factor
  return factor * _max_column_norm(strategy, sampling)


def calibrate(
    strategy: base.Strategy,
    sampling: sampling_lib.Sampled,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = adjacency_lib.ZERO_OUT,
) -> AmplifiedGuarantee:
  """The guarantee with the least noise multiplier that meets ε, to 1e-5.

  Args:
    strategy: as of `account`.
    sampling: how the batches are drawn.
    epsilon: the most that ε may be.
    delta: δ at which it is met.
    adjacency: one of the relations of the sampling.

  Raises:
    ValueError: as of `account`, and where epsilon is not positive and finite.
  """
  multiplier = sampled_gaussian.effective_noise_multiplier(
      epsilon, delta, **_chances(sampling, adjacency)
  )
  multiplier *= sensitivity(strategy, sampling, adjacency)
  step = 1e-15
  while True:
    guarantee = account(
        strategy,
        sampling,
        noise_multiplier=multiplier,
        delta=delta,
        adjacency=adjacency,
    )
    if guarantee.epsilon <= epsilon:
      return guarantee
    # The norm was multiplied and divided by again, which rounds.
    multiplier, step = multiplier * (1.0 + step), 4.0 * step


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
  """A number of bands, and the noise that it comes to.

  Attributes:
    sampling: with as many parts as there are bands.
    effective_noise_multiplier: the least that meets ε.
    rms_noise: RMS over the queries of the standard deviation of their noise,
      per unit of clip norm; over the batch size, that of sums of means.
  """

  sampling: sampling_lib.CyclicPoisson
  effective_noise_multiplier: float
  rms_noise: float

  @property
  def num_bands(self) -> int:
    return self.sampling.num_parts


def candidate_bands(
    *, num_rounds: int, num_examples: int, batch_size: float
) -> tuple[int, ...]:
  """Numbers of bands worth a look: powers of two, and the most.

  With the most, a batch is nearly a whole part and sampling amplifies little.

  Raises:
    ValueError: where an argument is outside its range, or a batch is larger
      than all examples.
  """
  sampling_lib.CyclicPoisson(
      num_rounds=num_rounds, num_examples=num_examples, batch_size=batch_size
  )
  most = min(num_rounds, sampling_lib.most_parts(num_examples, batch_size))
  return tuple(sorted({most, *(2**i for i in range(most.bit_length()))}))


def compare_bands(
    rms_losses: Mapping[int, float],
    *,
    num_rounds: int,
    num_examples: int,
    batch_size: float,
    epsilon: float,
    delta: float,
) -> tuple[Candidate, ...]:
  """Numbers of bands at one guarantee, that with the least noise first.

  More bands leave less noise in the queries; fewer bands need less noise for
  the same ε, since an example is drawn with less probability. Which is best
  depends on ε.

  Args:
    rms_losses: from a number of bands to the rms_loss of its strategy where
      every example takes part once: the largest column norm times RMS error.
    num_rounds: n.
    num_examples: m.
    batch_size: examples in a round, in expectation.
    epsilon: the most that ε may be.
    delta: δ at which it is met.

  Raises:
    ValueError: where there are no rms_losses or one is not positive and finite,
      an argument is outside its range, or a batch is larger than a part.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization,
  appendix F.4.
  """
  if not rms_losses:
    raise ValueError('rms_losses must hold at least one number of bands')
  candidates = []
  for bands, loss in rms_losses.items():
    gaussian.check_positive(f'rms_losses[{bands}]', loss)
    sampling = sampling_lib.CyclicPoisson(
        num_rounds=num_rounds,
        num_examples=num_examples,
        batch_size=batch_size,
        num_parts=bands,
    )
    multiplier = sampled_gaussian.effective_noise_multiplier(
        epsilon, delta, **_chances(sampling)
    )
    candidates.append(
        Candidate(
            sampling=sampling,
            effective_noise_multiplier=multiplier,
            rms_noise=multiplier * loss,
        )
    )
  return tuple(sorted(candidates, key=lambda c: (c.rms_noise, c.num_bands)))


def assumptions(sampling: sampling_lib.Sampled) -> tuple[str, ...]:
  """What must hold, in words, for a guarantee with this sampling to be true."""
  return (
      f'each example is in one of {sampling.num_parts} parts, whatever its'
      f' data, and the {sampling.num_rounds} rounds take turns at the parts',
      sampling.how.format(probability=sampling.sampling_probability),
      'every update is that of one example, clipped to the clip norm, and what'
      ' their sum is divided by does not depend on who was drawn',
      'Z is independent Gaussian noise, secret, and none of its rows enters two'
      ' sums',
  )


def _chances(
    sampling: sampling_lib.Sampled, adjacency: str = adjacency_lib.ZERO_OUT
) -> dict[str, float]:
  return {
      'probability': sampling.sampling_probability,
      'count': sampling.compositions,
      'replaced': sampling.relation(adjacency).replaced,
  }


def _max_column_norm(
    strategy: base.Strategy, sampling: sampling_lib.Sampled
) -> float:
  bands = num_bands(strategy)
  if bands > sampling.num_parts:
    raise ValueError(
        f'num_parts={sampling.num_parts} is fewer than the {bands} bands of the'
        ' strategy'
    )
  once = participation.MinSep(
      num_rounds=sampling.num_rounds, max_participations=1
  )
  norm = sensitivity_lib.sensitivity(strategy, once)
  if norm.kind == sensitivity_lib.LOWER_BOUND:
    raise ValueError('a guarantee needs the norm of columns or an upper bound')
  return norm.value


@functools.singledispatch
def num_bands(strategy: base.Strategy) -> int:
  """Diagonals, from the main one down, outside of which C is 0.

  Raises:
    ValueError: for a strategy that is not banded.
  """
  raise ValueError(
      'amplification needs a banded strategy (identity, banded or'
      f' banded_toeplitz), got {strategy.family!r}'
  )


@num_bands.register
def _(strategy: identity.Identity) -> int:
  del strategy
  return 1


@num_bands.register(banded.Banded)
@num_bands.register(banded_toeplitz.BandedToeplitz)
def _(strategy: banded.Banded | banded_toeplitz.BandedToeplitz) -> int:
  return strategy.num_bands
