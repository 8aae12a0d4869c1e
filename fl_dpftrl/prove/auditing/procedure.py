"""Audits: what a mechanism releases, tested against what is claimed of it."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.participation import accountant
from fl_dpftrl.participation.rules import separations
from fl_dpftrl.prove.auditing import low_bits, noise_tests, probes, result, subjects
from fl_dpftrl.support import checks

FALSE_ALARMS = 1e-3
"""Probability, at most, with which a mechanism fails that is what its claim says."""

# Loaded as they are needed: they import audits.
_OURS, _PROCESSES = 'fl_dpftrl.run.audited', 'fl_dpftrl.tff.audited_processes'
_ALPHA = FALSE_ALARMS / 14  # of each check
_MOST_ROUNDS = 512
_LEAST_COORDINATES, _LEAST_DRAWS = 16, 1000
_RUNS = 2  # without a device and with it, at least
_DEVICES = 20
_NORM = 0.999  # of the device's update, in clip norms


def audit(
  strategy: files.Given,
  schema: separations.MinSep,
  *,
  noise_multiplier: float,
  delta: float,
  clip_norm: float = 1.0,
  aggregator: Any = None,
  divisor: float = 1.0,
  num_draws: int = 50_000,
  seed: int | None = None,
  progress: Callable[[str], None] = lambda text: None,
) -> result.Audit:
  """Runs a mechanism several times and tests its releases against its claim.

  The claim is that each round releases (sum of updates clipped to clip_norm + row t of N·Z) /
  divisor, with Z of standard deviation noise_multiplier · clip_norm. The audit runs the mechanism
  from the outside, with inputs of its own:

  1. Devices send zeros. The noise is tested for scale, shape, and correlation of rounds, of all
     coordinates and in each tensor, and each coordinate for noise (`noise_tests`).
  2. One of the devices sends an update within the clip norm. What is left without the update is
     tested in the same way, and the lowest bits are compared with those of 1 (`low_bits`).
  3. Devices send large updates: their responses are compared with the clip norm and the divisor
     (`probes`).

  A mechanism for which the claim holds fails with probability at most 1e-3, of which each check has
  an equal part (Bonferroni). A mechanism that passes is not proven to be private: the audit tests
  some inputs, and finds differences that its draws can show.

  Args:
    strategy: claimed C and N.
    schema: claimed participation; at most 512 rounds.
    noise_multiplier: claimed std(Z) / clip_norm.
    delta: δ of the claimed ε.
    clip_norm: claimed L2 bound on an update.
    aggregator: a `tff.templates.AggregationProcess` or an unweighted factory to audit, or a
      `PrivateAggregator`, which is run anew in other folders; None for one of this strategy.
    divisor: number by which `aggregator` divides its sum; not for a `PrivateAggregator`.
    num_draws: noise samples per round, at least 1000. A factory gets updates of
      a quarter as many coordinates.
    seed: number that makes an audit repeatable; None for fresh randomness, which
      audits the secret seeds of training.
    progress: called often with a line about the progress.

  Raises:
    ValueError: for an argument that will not do, updates with fewer than 16 coordinates, or a
      release that is not finite although no device sent anything.
  """
  strategy = files.resolved(strategy, schema.num_rounds)
  schemas.check_num_rounds(strategy, schema.num_rounds)  # Of a run without an end, name fewer.
  claim = accountant.account(strategy, schema, noise_multiplier=noise_multiplier, delta=delta)
  checks.whole(1, _MOST_ROUNDS, num_rounds=schema.num_rounds)
  checks.whole(_LEAST_DRAWS, num_draws=num_draws)
  checks.positive(clip_norm=clip_norm, divisor=divisor)
  options: dict[str, Any] = {'num_coordinates': -(-num_draws // (2 * _RUNS))}
  options['seed'] = seed if seed is None else checks.whole(0, seed=seed)
  subject: subjects.Subject
  if hasattr(aggregator, 'subject'):  # It says itself how it is run.
    subject = aggregator.subject(**options)
  elif aggregator is not None:
    subject = _module(_PROCESSES).Process(aggregator, divisor=divisor, **options)
  else:
    options |= {'noise_multiplier': noise_multiplier, 'clip_norm': clip_norm}
    subject = _module(_OURS).Audited(strategy, **options)
  subject = subjects.Watched(subject, progress)
  size = sum(subject.sizes)
  if size < _LEAST_COORDINATES:
    raise ValueError(f'updates must have at least {_LEAST_COORDINATES} coordinates, got {size}')
  repeats = max(_RUNS, round(num_draws / (2 * size)))
  noising = noise_multiplier * strategy.noising_matrix(schema.num_rounds)
  results, covariance = noise_checks(subject, noising, clip_norm=clip_norm, repeats=repeats)
  results += probes.checks(subject, clip_norm=clip_norm, covariance=covariance, alpha=_ALPHA)
  return result.Audit(
    subject=subject.description,
    claim=claim,
    clip_norm=clip_norm,
    schema=schema,
    num_draws=2 * repeats * size,
    seed=seed,
    checks=tuple(results),
  )


def noise_checks(
  subject: subjects.Subject, noising: np.ndarray, *, clip_norm: float, repeats: int
) -> tuple[list[result.Check], np.ndarray]:
  """Returns checks of noise and low bits, and the larger covariance, claimed or seen, of rounds.

  Args:
    noising: N times the noise multiplier, in clip norms.
  """
  num_rounds, size = len(noising), sum(subject.sizes)
  nothing = np.zeros(size, np.float32)
  target = np.full(size, _NORM * clip_norm / math.sqrt(size), np.float32)
  absent, present = (
    np.array([_run(subject, last, num_rounds) for _ in range(repeats)])
    for last in (nothing, target)
  )
  # Without the update: noise that depends on the data is found, too.
  noise = np.concatenate([absent, present - target]) / clip_norm
  covariance = noising @ noising.T
  whiten = np.linalg.inv(np.linalg.cholesky(covariance))
  tensors = np.repeat(np.arange(len(subject.sizes)), subject.sizes)
  results = noise_tests.checks(noise_tests.NoiseSamples(absent, whiten @ noise, tensors), _ALPHA)
  results.append(low_bits.check(present, absent, _ALPHA))
  estimated = np.einsum('rtc,rsc->ts', noise, noise) / (2 * repeats * size)
  widest = estimated if np.trace(estimated) > np.trace(covariance) else covariance
  return results, widest


def _run(subject: subjects.Subject, last: np.ndarray, num_rounds: int) -> np.ndarray:
  """Returns the releases of a run in which one device sends an update, and others zeros."""
  cohort = [np.zeros_like(last)] * (_DEVICES - 1) + [last]
  released = subject.run(lambda t: cohort, num_rounds)
  if not np.isfinite(released).all():
    raise ValueError(f'{subject.description} released values that are not finite')
  return released


def _module(name: str) -> Any:
  """Returns a module of subjects; ValueError without TensorFlow, if it needs that."""
  try:
    return importlib.import_module(name)
  except ImportError as e:
    raise ValueError(f'aggregator: only one of TensorFlow Federated can be run ({e})') from None
