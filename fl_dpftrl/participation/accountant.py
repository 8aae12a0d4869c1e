"""Guarantees of runs by their participation: `account` and `calibrate`."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fl_dpftrl.mechanisms import base, workload_error, workloads
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import registry
from fl_dpftrl.participation.accounting import adjacencies, guarantees
from fl_dpftrl.participation.batches import num_bands as num_bands
from fl_dpftrl.participation.participation import Participation
from fl_dpftrl.participation.rules import sampling
from fl_dpftrl.support import checks


def account(
  strategy: files.Given,
  participation: Participation,
  *,
  noise_multiplier: float,
  delta: float | Sequence[float],
  adjacency: str = adjacencies.ZERO_OUT,
  group_size: int = 1,
  num_coordinates: int | None = None,
) -> guarantees.Guarantee:
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

  Raises:
    ValueError: if an argument is out of range, the participation has more rounds than the strategy
      supports, no bound is known for this adjacency and scheme, or the strategy has too many bands.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, theorem 4 and
  appendix F.3.
  """
  checks.positive(noise_multiplier=noise_multiplier)
  terms = guarantees.Terms(delta, adjacency, group_size, num_coordinates)
  strategy, participation = _checked(strategy, participation, terms)
  return participation.guarantee(strategy, noise_multiplier, terms)


def calibrate(
  strategy: files.Given,
  participation: Participation,
  *,
  delta: float | Sequence[float],
  epsilon: float | None = None,
  rho: float | None = None,
  adjacency: str = adjacencies.ZERO_OUT,
  group_size: int = 1,
  num_coordinates: int | None = None,
) -> guarantees.Guarantee:
  """Returns the guarantee with the smallest noise multiplier that meets ε or ρ.

  The noise multiplier of sampled batches is minimal up to a relative 1e-5, that of secret bins up
  to 1e-3.

  Args:
    strategy: C as it is run, not normalised; or its file or name, as `load_strategy` takes them.
    participation: schema that the run enforces, or scheme by which it draws in secret.
    delta: δ at which ε is stated, one or several; a given epsilon is met at the first.
    epsilon: upper limit of ε.
    rho: upper limit of ρ, not for secret draws; give exactly one of epsilon and rho.
    adjacency, group_size, num_coordinates: see `account`.

  Raises:
    ValueError: if not exactly one target is given, an argument is out of range, the participation
      has more rounds than the strategy supports, or the rounding of whole numbers alone passes the
      target.
  """
  terms = guarantees.Terms(delta, adjacency, group_size, num_coordinates)
  strategy, participation = _checked(strategy, participation, terms)
  return participation.least_noise(strategy, epsilon, rho, terms)


def _checked(
  strategy: files.Given, participation: Participation, terms: guarantees.Terms
) -> tuple[base.Strategy, Participation]:
  """Returns the strategy, resolved, and the participation, which has a guarantee of it."""
  participation = registry.resolved(participation)
  strategy = files.resolved(strategy, participation.num_rounds)
  participation.check(strategy, terms)
  return strategy, participation


def choose(
  strategies: Iterable[base.Strategy],
  scheme: sampling.Sampled,
  *,
  epsilon: float,
  delta: float,
  workload: workloads.Workload = workloads.Workload(),
) -> tuple[base.Strategy, guarantees.Guarantee]:
  """Returns the strategy with the least noise at one guarantee, ε at δ, and its guarantee.

  More bands lower the error of the queries; fewer bands need less noise, because each example is
  sampled with a lower probability. Batches are sampled from as many parts as a strategy has bands.
  The noise is the RMS over the queries of the workload.

  Args:
    scheme: scheme of batches, whose num_parts is not used, or secret bins.
    epsilon, delta: see `calibrate`.

  Source: Choquette-Choo et al. 2023, (Amplified) Banded Matrix Factorization, appendix F.4.
  """
  candidates = [
    (
      strategy,
      scheme.for_bands(strategy),
      workload_error.error(strategy, scheme.num_rounds, workload).rms,
    )
    for strategy in strategies
  ]
  if not candidates:
    raise ValueError('strategies must hold at least one')
  place, guarantee = least(candidates, epsilon=epsilon, delta=delta)
  return candidates[place][0], guarantee


def least(
  candidates: Sequence[tuple[base.Strategy, Participation, float]],
  *,
  epsilon: float,
  watch: Callable[[int], object] = lambda place: None,
  **terms: Any,
) -> tuple[int, guarantees.Guarantee]:
  """Returns the place of the least noise times error at one guarantee, and that guarantee.

  A strategy that misses ε with noise as low as the least so far is not calibrated, as ε falls with
  the noise.

  Args:
    candidates: strategy, its participation and error; at least one. Others: see `calibrate`.
    watch: called with the place of each candidate before it is calibrated.
  """
  best: Any = None
  least_noise = math.inf
  for place, (strategy, participation, error) in enumerate(candidates):
    watch(place)
    if best is not None:
      equal = account(strategy, participation, noise_multiplier=least_noise / error, **terms)
      if equal.epsilon() > epsilon:
        continue
    calibrated = calibrate(strategy, participation, epsilon=epsilon, **terms)
    if calibrated.noise_multiplier * error < least_noise:
      best, least_noise = (place, calibrated), calibrated.noise_multiplier * error
  return best
