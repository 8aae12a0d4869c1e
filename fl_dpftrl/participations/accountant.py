"""Guarantees of runs by schema or by secret participation: `account` and `calibrate`.

Sampled batches amplify the privacy of banded strategies (amplified BandMF): if C has at most
num_parts bands, columns that are num_parts apart share no row. The contribution of an example
is then one sampled Gaussian release in each turn of its part: that of DP-SGD on the part alone.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

from fl_dpftrl import error as error_lib
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl import workloads
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import arithmetic, gaussian
from fl_dpftrl.accounting import guarantee as guarantee_lib
from fl_dpftrl.families import banded, banded_toeplitz, base, identity
from fl_dpftrl.participation import registry, schemas
from fl_dpftrl.participations import bins, sampled_gaussian
from fl_dpftrl.participations import sampling as sampling_lib
from fl_dpftrl.strategies import files

_LESS = 1.0 - 1e-15  # more than what dividing and multiplying round


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class AmplifiedGuarantee(guarantee_lib.Guarantee):
  """Guarantee for every example of a run with sampled batches.

  The sensitivity is the largest change of C x by one example in one of its rounds, and the
  adjacency one that the sampling scheme supports. No single Gaussian release is as private, so
  there is no ρ and no μ.

  Attributes:
    sampling: sampling scheme of the batches.
  """

  sampling: sampling_lib.Batches

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

    q, count = self.sampling.sampling_probability, self.sampling.turns
    return dp_event.SelfComposedDpEvent(
      dp_event.PoissonSampledDpEvent(q, super().to_dp_event()), count
    )


def account(
  strategy: files.Given,
  participation: registry.Participation,
  *,
  noise_multiplier: float,
  delta: float | Sequence[float],
  adjacency: str = adjacency_lib.ZERO_OUT,
  group_size: int = 1,
  num_coordinates: int | None = None,
  **method: Any,
) -> guarantee_lib.Guarantee:
  """Returns the guarantee of a run with this strategy, participation and noise.

  Args:
    strategy: C as it is run, not normalised; or its file or name, as `load_strategy` takes them.
      For sampled batches banded, with at most num_parts bands; for secret bins any.
    participation: schema, or scheme by which batches or secret bins are drawn, with the rounds that
      use noise.
    noise_multiplier: standard deviation of Z over the clip norm.
    delta: δ of (ε, δ), one or several.
    adjacency: 'zero_out' or 'replace_one', which doubles the sensitivity; or another one that the
      scheme supports.
    group_size: number of devices protected together; multiplies the sensitivity.
    num_coordinates: parameters of the model, for releases in whole numbers, as
      `CorrelatedNoiseFactory` makes them in process; None for real numbers, whose ε is a bit less.
    method: for secret bins alone; see `bins.proven`.

  Raises:
    ValueError: if an argument is out of range, the participation has more rounds than the strategy
      supports, no bound is known for this adjacency and scheme, or the strategy has too many bands.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, theorem 4 and
  appendix F.3.
  """
  strategy = files.resolved(strategy, participation.num_rounds)
  gaussian.check_positive('noise_multiplier', noise_multiplier)
  if not participation.is_secret:
    schema = participation.schema
    if method:
      raise ValueError(f'{next(iter(method))} is for secret bins')
    adjacency_lib.check(adjacency, group_size)
    rounding = arithmetic.Rounding()
    if num_coordinates is not None:
      schemas.positive_integer('num_coordinates', num_coordinates)
      rounding = arithmetic.rounding([(strategy, schema.num_rounds)], num_coordinates)
    about = guarantee_lib.assumptions(schema)
    return guarantee_lib.Guarantee.of(
      sensitivity_lib.sensitivity(strategy, schema),
      noise_multiplier=noise_multiplier,
      delta=delta,
      adjacency=adjacency,
      group_size=group_size,
      rounding=rounding,
      assumptions=about + adjacency_lib.assumptions(adjacency, group_size),
    )
  scheme: Any = participation
  check_alone(scheme, group_size, num_coordinates)
  return proven(
    strategy,
    scheme,
    noise_multiplier=noise_multiplier,
    deltas=guarantee_lib.deltas(delta),
    adjacency=adjacency,
    assumptions=(*assumptions(scheme), scheme.relation(adjacency)[2]),
    **method,
  )


def proven(
  strategy: base.Strategy, scheme: sampling_lib.Sampled, *, adjacency: str, **others: Any
) -> AmplifiedGuarantee | bins.BinsGuarantee:
  """Returns the guarantee of secret draws, with further attributes."""
  if isinstance(scheme, sampling_lib.SecretBins):
    return bins.proven(strategy, scheme, adjacency=adjacency, **others)
  return AmplifiedGuarantee(
    sensitivity=sensitivity(strategy, scheme, adjacency),
    sensitivity_kind=sensitivity_lib.EXACT,
    adjacency=adjacency,
    sampling=scheme,
    **others,
  )


def check_alone(
  scheme: sampling_lib.Sampled, group_size: int, num_coordinates: int | None = None
) -> None:
  """Raises ValueError for a group, and for releases in whole numbers."""
  refused = f'is refused with participation that is drawn by {scheme.kind}:'
  if group_size != 1:
    why = 'each is drawn alone, and a multiple of the sensitivity bounds no group; use 1'
    raise ValueError(f'group_size={group_size} {refused} {why}')
  if num_coordinates is not None:
    why = 'the rounding of whole numbers is not bounded; leave it out'
    raise ValueError(f'num_coordinates={num_coordinates} {refused} {why}')


def sensitivity(
  strategy: files.Given, sampling: sampling_lib.Batches, adjacency: str = adjacency_lib.ZERO_OUT
) -> float:
  """Returns the largest change of C x, in clip norms, by an example in a round; see `account`."""
  strategy = files.resolved(strategy, sampling.num_rounds)
  (factor, *_), bands = sampling.relation(adjacency), num_bands(strategy)
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
  participation: registry.Participation,
  *,
  delta: float | Sequence[float],
  epsilon: float | None = None,
  rho: float | None = None,
  adjacency: str = adjacency_lib.ZERO_OUT,
  **others: Any,
) -> guarantee_lib.Guarantee:
  """Returns the guarantee with the smallest noise multiplier that meets ε or ρ.

  The noise multiplier of sampled batches is minimal up to a relative 1e-5, that of secret bins up
  to 1e-3.

  Args:
    strategy: C as it is run, not normalised; or its file or name, as `load_strategy` takes them.
    participation: schema that the run enforces, or scheme by which it draws in secret.
    delta: δ at which ε is stated, one or several; a given epsilon is met at the first.
    epsilon: upper limit of ε.
    rho: upper limit of ρ, not for secret draws; give exactly one of epsilon and rho.
    adjacency, others: see `account`.

  Raises:
    ValueError: if not exactly one target is given, an argument is out of range, the participation
      has more rounds than the strategy supports, or the rounding of whole numbers alone passes the
      target.
  """
  options: dict[str, Any] = {'delta': delta, 'adjacency': adjacency, **others}
  if not participation.is_secret:
    trial = account(strategy, participation, noise_multiplier=1.0, **options)
    return _least_noise(trial, epsilon, rho)
  if rho is not None or epsilon is None:
    raise ValueError(
      f'rho={rho}: give epsilon in its place, as secret draws are no single Gaussian release'
    )
  gaussian.check_positive('epsilon', epsilon)
  strategy = files.resolved(strategy, participation.num_rounds)
  sampling: Any = participation
  if isinstance(sampling, sampling_lib.SecretBins):
    start = account(strategy, sampling, noise_multiplier=1e30, **options)
    return bins.calibrated(cast(bins.BinsGuarantee, start), epsilon)
  multiplier = sampled_gaussian.effective_noise_multiplier(
    epsilon, guarantee_lib.deltas(delta)[0], **_chances(sampling, adjacency)
  )
  multiplier *= sensitivity(strategy, sampling, adjacency)
  step = 1e-15
  while True:
    guarantee = account(strategy, sampling, noise_multiplier=multiplier, **options)
    if guarantee.epsilon() <= epsilon:
      return guarantee
    # Multiplying and dividing by the norm rounds, so ε may be just above.
    multiplier, step = multiplier * (1.0 + step), 4.0 * step


def _least_noise(
  trial: guarantee_lib.Guarantee, epsilon: float | None, rho: float | None
) -> guarantee_lib.Guarantee:
  """Returns the guarantee of one Gaussian release with the least noise for ε or ρ."""
  added = trial.rounding
  if epsilon is not None and rho is None:
    gaussian.check_positive('epsilon', epsilon)
    left = added.left(trial.delta, epsilon + 1.0)
    mu = 1.0 / gaussian.effective_noise_multiplier(epsilon, left) if left > 0.0 else math.inf
  elif rho is not None and epsilon is None:
    gaussian.check_positive('rho', rho)
    mu = math.sqrt(2.0 * rho) * _LESS
  else:
    raise ValueError('give epsilon or rho, and not both')
  if mu <= added.mu:
    raise ValueError('num_coordinates: the rounding of so many alone would pass the target')
  result = dataclasses.replace(trial, noise_multiplier=trial.sensitivity / (mu - added.mu))
  if epsilon is not None and result.epsilon() > epsilon:
    raise ValueError(f'epsilon={epsilon:g} is more than releases in whole numbers can prove')
  return result


def candidate_bands(scheme: sampling_lib.Batches) -> tuple[int, ...]:
  """Returns the numbers of bands to compare: powers of two and the maximum."""
  most = min(scheme.num_rounds, sampling_lib.most_parts(scheme.num_examples, scheme.batch_size))
  return tuple(sorted({most, *(2**i for i in range(most.bit_length()))}))


def choose(
  strategies: Iterable[base.Strategy],
  sampling: sampling_lib.Sampled,
  *,
  epsilon: float,
  delta: float,
  workload: workloads.Workload = workloads.Workload(),
) -> tuple[base.Strategy, AmplifiedGuarantee | bins.BinsGuarantee]:
  """Returns the strategy with the least noise at one guarantee, ε at δ, and its guarantee.

  More bands lower the error of the queries; fewer bands need less noise, because each example is
  sampled with a lower probability. Batches are sampled from as many parts as a strategy has bands.
  The noise is the RMS over the queries of the workload.

  Args:
    sampling: scheme of batches, whose num_parts is not used, or secret bins.
    epsilon, delta: see `calibrate`.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, appendix F.4.
  """
  found: list[Any] = []
  for strategy in strategies:
    scheme = sampling
    if isinstance(sampling, sampling_lib.Batches):
      scheme = dataclasses.replace(sampling, num_parts=num_bands(strategy))
    guarantee = calibrate(strategy, scheme, epsilon=epsilon, delta=delta)
    rms = error_lib.error(strategy, sampling.num_rounds, workload).rms
    found.append((guarantee.noise_multiplier * rms, len(found), strategy, guarantee))
  if not found:
    raise ValueError('strategies must hold at least one')
  return min(found, key=lambda each: each[:2])[2:]


def assumptions(sampling: sampling_lib.Sampled) -> tuple[str, ...]:
  """Returns the assumptions of a guarantee with this sampling, in words."""
  if isinstance(sampling, sampling_lib.SecretBins):
    return bins.assumptions(sampling)
  return (
    f'each example is in one of {sampling.num_parts} parts, whatever its'
    f' data, and the {sampling.num_rounds} rounds take turns at the parts',
    sampling.assumption,
    'every update is that of one example, clipped to the clip norm, and what'
    ' their sum is divided by does not depend on who was drawn',
    'Z is independent Gaussian noise, secret, and none of its rows enters two sums',
  )


def _chances(
  sampling: sampling_lib.Batches, adjacency: str = adjacency_lib.ZERO_OUT
) -> dict[str, Any]:
  return {
    'probability': sampling.sampling_probability,
    'count': sampling.turns,
    'pair': sampling.relation(adjacency)[1],
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
