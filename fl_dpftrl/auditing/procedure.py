"""Audits: what a mechanism releases, tested against what is claimed of it."""

import math
from typing import Any

import numpy as np

from fl_dpftrl import accounting
from fl_dpftrl.accounting import adjacency
from fl_dpftrl.auditing import (
  bounds,
  coordinate_tests,
  devices,
  noise_tests,
  probes,
  residues,
  result,
  subjects,
)
from fl_dpftrl.families import base as strategies
from fl_dpftrl.participation import schemas

EXECUTORS = ('aggregator', 'engine', 'reference')
# A sound mechanism fails with at most the sum of these shares of 1 − confidence: one for single
# tensors, coordinates and pairs, the other for the remaining checks, two of them bounds on ε.
_SINGLE_SHARE, _SHARE = 0.002, 0.098
_NUM_CHECKS = 18
_MOST_ROUNDS = 512
_LEAST_COORDINATES, _LEAST_DRAWS = 16, 1000
# Canaries: devices, where a subject bounds each update; and coordinates for one.
_CANARIES, _CANARY_SHARE = 256, 8
# What the bounds on ε rest on.
_SOURCES = ('the claimed noise', 'the estimated noise', 'the noise of one tensor')


def audit(
  strategy: strategies.Strategy,
  schema: schemas.MinSep,
  *,
  noise_multiplier: float,
  delta: float,
  clip_norm: float = 1.0,
  aggregator: Any = None,
  divisor: float = 1.0,
  executor: str = 'aggregator',
  largest_update: float | None = None,
  confidence: float = 0.95,
  num_draws: int = 50_000,
  seed: int | None = None,
) -> result.Audit:
  """Runs a mechanism many times and tests its claimed guarantee.

  The claim is that each round releases (sum of updates clipped to clip_norm +
  row t of N·Z) / divisor, with Z of standard deviation noise_multiplier ·
  clip_norm. The audit knows strategy, noise and clip norm as a claim alone, and
  runs the mechanism from the outside, with inputs of its own:

  1. No device sends anything: the noise is tested for scale, mean, shape, and
     correlation between rounds, coordinates and runs (`noise_tests`), and again in
     each tensor, each coordinate and pairs of them (`coordinate_tests`).
  2. Devices send large updates: their responses are compared with the clip norm
     and the divisor (`probes`).
  3. Neighbouring inputs: canaries that take part in the rounds of a worst
     pattern, each in a coordinate of its own, against coordinates without. Each
     tensor has canaries, as long as their number suffices.
  4. A target among devices that send zeros: the lowest bits of what is released are
     compared with those without it (`residues`).

  The lower bound on ε is the largest of several. Two filters score a device: the
  likelihood ratio of the claimed noise, and that of a covariance estimated from
  runs that are not scored, for which a pattern is chosen anew. Each gives a
  bound for Gaussian noise, from an upper bound on the score's standard deviation
  and a lower bound on the response to an update, and one from counted errors of
  the canaries (Clopper and Pearson). The first filter also gives a Gaussian bound
  from each tensor alone, by the noise of all runs. All take coordinates as independent, which
  is tested. The bound for Gaussian noise takes the noise as added to the sum,
  and is dropped if the noise is not Gaussian.

  A mechanism for which the claim holds fails the audit with probability at most
  (1 − confidence) / 10: 0.5 % at 0.95. A fiftieth of that probability, 1e-4, goes
  to the tests of single tensors, coordinates and pairs and to the bounds from
  single tensors; the other 18 checks share the rest equally (Bonferroni). The
  lower bound is part of them, so it holds with more than `confidence`. A
  mechanism that passes is not proven to be private: the audit tests some inputs,
  and finds differences that its draws can show.

  Args:
    strategy: claimed C and N.
    schema: claimed participation; at most 512 rounds.
    noise_multiplier: claimed std(Z) / clip_norm.
    delta: δ of both figures.
    clip_norm: claimed L2 bound on an update.
    aggregator: a `tff.templates.AggregationProcess` or an unweighted factory to
      audit, or a `PrivateAggregator`, which is run anew in other folders; None for an
      executor of this package.
    divisor: number by which `aggregator` divides its sum; not for a `PrivateAggregator`.
    executor: 'aggregator' audits `CorrelatedNoiseFactory` in process;
      'engine' and 'reference' audit noise rows in NumPy, without clipping.
    largest_update: L2 norm of the largest update that a device can send; None
      for 10⁶ clip norms.
    confidence: probability that the lower bound holds.
    num_draws: noise samples per round, at least 1000. A factory gets updates of
      half as many coordinates.
    seed: number that makes an audit repeatable; None for fresh randomness, which
      audits the secret seeds of training.

  Raises:
    ValueError: for an argument that will not do.
  """
  claim = accounting.account(strategy, schema, noise_multiplier=noise_multiplier, delta=delta)
  _check(schema, executor, confidence, num_draws, clip_norm, divisor, largest_update, seed)
  num_coordinates = -(-num_draws // 2)
  subject: subjects.Subject
  if hasattr(aggregator, 'subject'):  # It says itself how it is run.
    subject = aggregator.subject(num_coordinates=num_coordinates, seed=seed)
  elif aggregator is not None:
    subject = _processes().given(
      aggregator, divisor=divisor, num_coordinates=num_coordinates, seed=seed
    )
  elif executor == 'aggregator':
    subject = _processes().ours(
      strategy,
      noise_multiplier=noise_multiplier,
      clip_norm=clip_norm,
      num_coordinates=num_coordinates,
      seed=seed,
    )
  else:
    subject = subjects.Rows(
      executor,
      strategy,
      noise_multiplier=noise_multiplier,
      clip_norm=clip_norm,
      sizes=subjects.tensor_sizes(num_coordinates),
      seed=seed,
    )
  return audit_subject(
    subject,
    strategy,
    claim,
    clip_norm=clip_norm,
    largest_update=1e6 * clip_norm if largest_update is None else largest_update,
    confidence=confidence,
    num_draws=num_draws,
    seed=seed,
  )


def _processes() -> Any:
  """Returns the module of TFF subjects, which loads TensorFlow."""
  try:
    from fl_dpftrl.auditing import processes
  except ImportError as e:
    raise ValueError(
      f"executor='aggregator' needs TensorFlow Federated ({e}); use 'engine' or 'reference'"
    ) from None
  return processes


def _check(schema, executor, confidence, num_draws, clip_norm, divisor, largest_update, seed):
  if schema.num_rounds > _MOST_ROUNDS:
    raise ValueError(
      f'num_rounds={schema.num_rounds} is beyond the {_MOST_ROUNDS} rounds of an audit;'
      ' audit the first rounds of the run'
    )
  if executor not in EXECUTORS:
    raise ValueError(f'executor must be one of {", ".join(EXECUTORS)}, got {executor!r}')
  if not 0.0 < confidence < 1.0:
    raise ValueError(f'confidence must lie strictly between 0 and 1, got {confidence!r}')
  if schemas.positive_integer('num_draws', num_draws) < _LEAST_DRAWS:
    raise ValueError(f'num_draws must be at least {_LEAST_DRAWS}, got {num_draws!r}')
  for name, value in (('clip_norm', clip_norm), ('divisor', divisor)):
    if not (math.isfinite(value) and value > 0.0):
      raise ValueError(f'{name} must be positive and finite, got {value!r}')
  if largest_update is not None and not clip_norm <= largest_update < math.inf:
    raise ValueError(
      f'largest_update must be finite and at least clip_norm={clip_norm}, got {largest_update!r}'
    )
  if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
    raise ValueError(f'seed must be a whole number or None, got {seed!r}')


def audit_subject(
  subject: subjects.Subject,
  strategy: strategies.Strategy,
  claim: accounting.Guarantee,
  *,
  clip_norm: float,
  largest_update: float,
  confidence: float,
  num_draws: int,
  seed: int | None,
) -> result.Audit:
  """Audits any subject; see `audit` for the method and the arguments.

  Raises:
    ValueError: if updates have fewer than 16 coordinates, or a release without
      updates is not finite.
  """
  schema, size = claim.schema, sum(subject.sizes)
  if size < _LEAST_COORDINATES:
    raise ValueError(f'updates must have at least {_LEAST_COORDINATES} coordinates, got {size}')
  alpha = _SHARE * (1.0 - confidence) / _NUM_CHECKS
  single = _SINGLE_SHARE * (1.0 - confidence) / 2  # for tests, and for bounds on ε
  num_canaries = min(_CANARIES if subject.clips else size, size // _CANARY_SHARE)
  canaries = devices.Canaries.of(subject.sizes, num_canaries)
  num_free = size - len(canaries.places)
  # Coordinates without canaries come first, here and in all that follows.
  order = np.concatenate([np.delete(np.arange(size), canaries.places), canaries.places])
  noising = claim.noise_multiplier * strategy.noising_matrix(schema.num_rounds)
  covariance = noising @ noising.T
  whiten = np.linalg.inv(np.linalg.cholesky(covariance))
  tensors = np.repeat(np.arange(len(subject.sizes)), subject.sizes)
  places = np.concatenate([np.arange(length) for length in subject.sizes])[order]
  tensors = tensors[order]
  noise_of = lambda rows: noise_tests.Noise(rows, whiten @ rows, tensors[: rows.shape[1]])

  repeats = max(1, round(num_draws / (2 * size)))
  run = lambda cohorts: _run(subject, cohorts, schema, clip_norm)[:, order]
  absent = [run(lambda _: [_zeros(size)]) for _ in range(repeats)]
  estimated = sum(rows @ rows.T for rows in absent) / (repeats * size)
  filters = [devices.matched(covariance, schema), devices.matched(estimated, schema)]
  cohorts = canaries.cohorts(subject, filters, clip_norm)
  present = [run(cohorts) for _ in range(repeats)]
  noise = [noise_of(rows) for rows in (*absent, *(rows[:, :num_free] for rows in present))]
  checks = noise_tests.checks(noise, alpha) + coordinate_tests.checks(noise, places, single)
  checks += residues.checks(residues.measure(subject, schema.num_rounds, clip_norm), alpha)
  response = 1.0
  if subject.clips:
    widest = np.where(np.trace(estimated) > np.trace(covariance), estimated, covariance)
    responses = probes.measure(
      subject,
      probes.make(
        subject.sizes,
        noise_multiplier=claim.noise_multiplier,
        clip_norm=clip_norm,
        largest_update=largest_update,
      ),
      clip_norm=clip_norm,
      covariance=widest,
    )
    checks += probes.checks(responses, alpha)
    response = probes.lowest_response(responses, alpha / 4)
  # A coordinate without noise is Gaussian too, of deviation 0.
  noised = ~coordinate_tests.constant(noise)[:num_free]
  joined = np.hstack([part.whitened[:, noised] for part in noise[repeats:]])
  is_normal = not joined.size or (
    noise_tests.shape_distance(joined) <= noise_tests.shape_limit(joined.size, alpha)
  )
  beside = noise[repeats:]  # of the runs with canaries, which chose no filter
  gaussian = [devices.gaussian(f, beside, response, alpha / 8, claim.delta) for f in filters]
  scores = [
    np.concatenate(
      [f.weights @ rows[:, num_free:][:, canaries.filters == number] for rows in present]
    )
    for number, f in enumerate(filters)
  ]
  gaussian.append(
    devices.gaussian_of_tensors(
      filters[0],
      noise,
      scores[0],
      np.tile(canaries.tensors[canaries.filters == 0], repeats),
      single,
      claim.delta,
    )
  )
  counted = [
    devices.counted(
      np.concatenate([f.weights @ part.released for part in beside]), s, claim.delta, alpha / 2
    )
    for f, s in zip(filters, scores)
  ]
  bounded = [max(gaussian) if is_normal else 0.0, max(counted)]
  checks = [
    result.Check(
      name=f'epsilon_{name}',
      statistic=value,
      highest=claim.epsilon,
      where=_SOURCES[int(np.argmax(found))],
      meaning='the mechanism does not have the claimed ε',
    )
    for name, value, found in zip(('gaussian', 'counted'), bounded, (gaussian, counted))
  ] + checks
  best = filters[int(np.argmax(gaussian[:2]))]
  pattern = filters[0].pattern
  mu = math.sqrt(float(np.square(whiten @ pattern).sum()))
  return result.Audit(
    subject=subject.description,
    claimed_epsilon=claim.epsilon,
    attainable_epsilon=bounds.gaussian_epsilon(mu, claim.delta),
    lower_bound_epsilon=max(bounded),
    confidence=confidence,
    delta=claim.delta,
    adjacency=adjacency.ZERO_OUT,
    noise_multiplier=claim.noise_multiplier,
    clip_norm=clip_norm,
    schema=schema,
    rounds_of_device=tuple(np.flatnonzero(best.pattern).tolist()),
    num_draws=sum(run.shape[1] for run in absent + present),
    seed=seed,
    checks=tuple(checks),
  )


def _zeros(size: int) -> np.ndarray:
  return np.zeros(size, np.float32)


def _run(
  subject: subjects.Subject, cohorts: subjects.Cohorts, schema: schemas.MinSep, clip_norm: float
) -> np.ndarray:
  """Returns the releases of a run in clip norms."""
  released = subject.run(cohorts, schema.num_rounds) / clip_norm
  if not np.isfinite(released).all():
    raise ValueError(f'{subject.description} released values that are not finite')
  return released
