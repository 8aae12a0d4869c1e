"""Privacy amplification by sampling for banded strategies (amplified BandMF).

This module is for centralized training, where batches can be sampled. If C has at most
num_parts bands, columns that are num_parts apart share no row. The contribution of an example
is then one sampled Gaussian release in each turn of its part. Together these releases are as
private as DP-SGD on that part alone.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fl_dpftrl import error as error_lib
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl import workloads
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.accounting import guarantee as guarantee_lib
from fl_dpftrl.amplification import sampled_gaussian
from fl_dpftrl.amplification import sampling as sampling_lib
from fl_dpftrl.families import banded, banded_toeplitz, base, identity
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AmplifiedGuarantee(guarantee_lib.Guarantee):
  """Guarantee for every example of a run with sampled batches.

  The sensitivity is the largest change of C x by one example in one of its rounds, and the
  adjacency one that the sampling scheme supports. No single Gaussian release is as private, so
  there is no ρ and no μ.

  Attributes:
    sampling: sampling scheme of the batches.
  """

  sampling: sampling_lib.Sampled

  rho = mu = None  # type: ignore[assignment]

  def __post_init__(self):
    super().__post_init__()
    for delta in self.deltas:
      self.epsilon(delta)  # raises if δ is too small for the distribution

  def _epsilon(self, delta: float) -> float:
    chances = _chances(self.sampling, self.adjacency)
    return sampled_gaussian.epsilon(self.effective_noise_multiplier, delta, **chances)

  def to_dp_event(self) -> Any:
    """Returns the event of dp_accounting for Poisson samples; ValueError for others."""
    if type(self.sampling) is not sampling_lib.CyclicPoisson:
      raise ValueError(f'dp_accounting has no event of {type(self.sampling).__name__}')
    from dp_accounting import dp_event  # Slow to load.

    q, count = self.sampling.sampling_probability, self.sampling.compositions
    return dp_event.SelfComposedDpEvent(
      dp_event.PoissonSampledDpEvent(q, super().to_dp_event()), count
    )


def account(
  strategy: files.Given,
  sampling: sampling_lib.Sampled,
  *,
  noise_multiplier: float,
  delta: float | Sequence[float],
  adjacency: str = adjacency_lib.ZERO_OUT,
) -> AmplifiedGuarantee:
  """Returns the guarantee of a run with this strategy, sampling and noise.

  Args:
    strategy: C as it is run, not normalised; banded, with at most num_parts bands.
    sampling: sampling scheme of the batches.
    noise_multiplier: standard deviation of Z over the clip norm.
    delta: δ of (ε, δ), one or several.
    adjacency: name of an adjacency that the sampling scheme supports.

  Raises:
    ValueError: if an argument is out of range, no bound is known for this adjacency and
      sampling, or the strategy is not banded, has more than num_parts bands, or is defined for
      fewer rounds.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, theorem 4 and
  appendix F.3.
  """
  gaussian.check_positive('noise_multiplier', noise_multiplier)
  return AmplifiedGuarantee(
    sensitivity=sensitivity(strategy, sampling, adjacency),
    sensitivity_kind=sensitivity_lib.EXACT,
    noise_multiplier=noise_multiplier,
    deltas=guarantee_lib.deltas(delta),
    adjacency=adjacency,
    assumptions=(*assumptions(sampling), sampling.relation(adjacency).sentence),
    sampling=sampling,
  )


def sensitivity(
  strategy: files.Given, sampling: sampling_lib.Sampled, adjacency: str = adjacency_lib.ZERO_OUT
) -> float:
  """Returns the largest change of C x by one example in one of its rounds.

  The value is per unit of clip norm. For arguments and errors see `account`.
  """
  strategy = files.resolved(strategy)
  factor, bands = sampling.relation(adjacency).factor, num_bands(strategy)
  if bands > sampling.num_parts:
    raise ValueError(
      f'num_parts={sampling.num_parts} is fewer than the {bands} bands of the strategy'
    )
  once = schemas.MinSep(num_rounds=sampling.num_rounds, max_participations=1)
  norm = sensitivity_lib.sensitivity(strategy, once)
  if norm.kind == sensitivity_lib.LOWER_BOUND:
    raise ValueError('a guarantee needs exact column norms or an upper bound')
  return factor * norm.value


def calibrate(
  strategy: files.Given,
  sampling: sampling_lib.Sampled,
  *,
  epsilon: float,
  delta: float | Sequence[float],
  adjacency: str = adjacency_lib.ZERO_OUT,
) -> AmplifiedGuarantee:
  """Returns the guarantee with the smallest noise multiplier that meets ε at the first δ.

  The noise multiplier is minimal up to a relative 1e-5. Other arguments and errors are those of
  `account`; epsilon, the upper limit of ε, is positive and finite.
  """
  multiplier = sampled_gaussian.effective_noise_multiplier(
    epsilon, guarantee_lib.deltas(delta)[0], **_chances(sampling, adjacency)
  )
  multiplier *= sensitivity(strategy, sampling, adjacency)
  step = 1e-15
  while True:
    guarantee = account(
      strategy, sampling, noise_multiplier=multiplier, delta=delta, adjacency=adjacency
    )
    if guarantee.epsilon() <= epsilon:
      return guarantee
    # Multiplying and dividing by the norm rounds, so ε may be just above.
    multiplier, step = multiplier * (1.0 + step), 4.0 * step


class Candidate(NamedTuple):
  """Number of bands and the noise it needs for one guarantee.

  Attributes:
    sampling: sampling scheme with one part per band.
    effective_noise_multiplier: smallest one that meets ε.
    rms_noise: RMS over the queries of the standard deviation of their noise, per unit of clip
      norm. Divided by the batch size, it is the noise of sums of mean updates.
  """

  sampling: sampling_lib.CyclicPoisson
  effective_noise_multiplier: float
  rms_noise: float

  @property
  def num_bands(self) -> int:
    return self.sampling.num_parts


def candidate_bands(*, num_rounds: int, num_examples: int, batch_size: float) -> tuple[int, ...]:
  """Returns the numbers of bands to compare: powers of two and the maximum.

  At the maximum a batch is nearly a whole part, so sampling amplifies little.
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
  """Compares numbers of bands at one guarantee, ε at δ, sorted by increasing noise.

  More bands lower the error of the queries. Fewer bands need less noise for the same ε, because
  each example is sampled with a lower probability. The best number depends on ε.

  Args:
    rms_losses: map from number of bands to the rms_loss of its strategy for one participation
      per example: largest column norm times RMS error.
    num_rounds, num_examples, batch_size: see `sampling.CyclicPoisson`.
    epsilon, delta: see `calibrate`.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, appendix F.4.
  """
  if not rms_losses:
    raise ValueError('rms_losses must hold at least one number of bands')
  candidates = []
  for bands, loss in rms_losses.items():
    gaussian.check_positive(f'rms_losses[{bands}]', loss)
    sampling = sampling_lib.CyclicPoisson(
      num_rounds=num_rounds, num_examples=num_examples, batch_size=batch_size, num_parts=bands
    )
    multiplier = sampled_gaussian.effective_noise_multiplier(epsilon, delta, **_chances(sampling))
    candidates.append(Candidate(sampling, multiplier, multiplier * loss))
  return tuple(sorted(candidates, key=lambda c: (c.rms_noise, c.num_bands)))


def choose(
  strategies: Iterable[base.Strategy],
  sampling: sampling_lib.Sampled,
  *,
  epsilon: float,
  delta: float,
  workload: workloads.Workload = workloads.Workload(),
) -> tuple[base.Strategy, AmplifiedGuarantee]:
  """Returns the strategy with the least noise at one guarantee, ε at δ, and its guarantee.

  Each strategy is sampled from as many parts as it has bands, for any scheme of `sampling`. The
  noise is the RMS over the queries of the workload.

  Args:
    sampling: sampling scheme of the batches; its num_parts is not used.
    epsilon, delta: see `calibrate`.
  """
  found = []
  for strategy in strategies:
    scheme = dataclasses.replace(sampling, num_parts=num_bands(strategy))
    guarantee = calibrate(strategy, scheme, epsilon=epsilon, delta=delta)
    rms = error_lib.error(strategy, sampling.num_rounds, workload).rms
    found.append((guarantee.noise_multiplier * rms, scheme.num_parts, strategy, guarantee))
  if not found:
    raise ValueError('strategies must hold at least one')
  return min(found, key=lambda each: each[:2])[2:]


def assumptions(sampling: sampling_lib.Sampled) -> tuple[str, ...]:
  """Returns the assumptions of a guarantee with this sampling, in words."""
  return (
    f'each example is in one of {sampling.num_parts} parts, whatever its'
    f' data, and the {sampling.num_rounds} rounds take turns at the parts',
    sampling.assumption,
    'every update is that of one example, clipped to the clip norm, and what'
    ' their sum is divided by does not depend on who was drawn',
    'Z is independent Gaussian noise, secret, and none of its rows enters two sums',
  )


def _chances(
  sampling: sampling_lib.Sampled, adjacency: str = adjacency_lib.ZERO_OUT
) -> dict[str, Any]:
  return {
    'probability': sampling.sampling_probability,
    'count': sampling.compositions,
    'replaced': sampling.relation(adjacency).replaced,
  }


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
