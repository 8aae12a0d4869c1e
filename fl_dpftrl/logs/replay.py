"""From a participation log and a strategy to what they guarantee.

What was declared, what was observed, and the worst that any device like those
observed could have had, stand side by side and are never mixed.
"""

import functools
import hashlib
import json
import math
from typing import Any, Sequence

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import adjacency as adjacency_lib
from fl_dpftrl.accounting import gaussian
from fl_dpftrl.logs import observed as observed_lib
from fl_dpftrl.logs import shards
from fl_dpftrl.strategies import base

ObservedParticipation = observed_lib.ObservedParticipation
read_log = observed_lib.read_log

ADJACENCIES = adjacency_lib.ADJACENCIES


def replay(
    observed: ObservedParticipation,
    strategy: base.Strategy,
    *,
    noise_multiplier: float,
    deltas: float | Sequence[float],
    declared: participation.MinSep | None = None,
    adjacency: str = 'zero_out',
    group_size: int = 1,
) -> dict[str, Any]:
  """What a log proves of the run that wrote it.

  Args:
    observed: what happened.
    strategy: C as it was run, not normalised.
    noise_multiplier: standard deviation of Z over the clip norm; 0 where no
      noise was added, which guarantees nothing.
    deltas: δ, one or several.
    declared: the schema that was announced before the run, if any.
    adjacency: 'zero_out' or 'replace_one'.
    group_size: devices that are protected together. The triangle inequality
      multiplies the sensitivity by it, which is an upper bound.

  Returns:
    Values that JSON can hold. `worst_case` is for every device that keeps to
    the observed min_sep and max_participations, `observed` for the patterns
    that occurred, `declared` for the declared schema with whether it `holds`.
    Each has the sensitivity accounted with, its kind, rho, and epsilon at
    `delta`, the first of the deltas; where several were given, also a `curve`
    with delta and epsilon for each. Without noise rho and epsilon are None.

  Raises:
    ValueError: for an argument outside its range, and where the strategy cannot
      run for the log's rounds.
  """
  deltas = [deltas] if isinstance(deltas, (int, float)) else list(deltas)
  if not deltas:
    raise ValueError('deltas must hold at least one delta')
  for delta in deltas:
    gaussian.check_delta(delta)
  if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0.0):
    raise ValueError(
        'noise_multiplier must be finite and at least 0, got'
        f' {noise_multiplier!r}'
    )
  adjacency_lib.check(adjacency, group_size)
  base.check_num_rounds(strategy, observed.num_rounds)

  epsilon = functools.lru_cache(None)(gaussian.epsilon)

  def figures(sensitivity: sensitivity_lib.Sensitivity) -> dict[str, Any]:
    value, kind = adjacency_lib.scaled(sensitivity, adjacency, group_size)
    if kind not in (sensitivity_lib.EXACT, sensitivity_lib.UPPER_BOUND):
      raise ValueError(f'a guarantee cannot rest on a {kind} of sensitivity')
    effective = noise_multiplier / value
    spent = [epsilon(effective, d) if effective else None for d in deltas]
    result = {
        'sensitivity': value,
        'sensitivity_kind': kind,
        'effective_noise_multiplier': effective,
        'rho': gaussian.rho(effective) if effective else None,
        'epsilon': spent[0],
    }
    if len(deltas) > 1:
      result['curve'] = [
          {'delta': d, 'epsilon': e} for d, e in zip(deltas, spent)
      ]
    return result

  schema = participation.MinSep(
      num_rounds=observed.num_rounds,
      min_sep=observed.min_sep,
      max_participations=observed.max_participations,
  )
  result = {
      'num_rounds': observed.num_rounds,
      'num_devices': observed.num_devices,
      'num_participations': observed.num_participations,
      'min_sep': observed.min_sep,
      'max_participations': observed.max_participations,
      'noise_multiplier': noise_multiplier,
      'strategy': {
          'family': strategy.family,
          'sha256': strategy_digest(strategy),
      },
      'worst_case': figures(sensitivity_lib.sensitivity(strategy, schema)),
      'observed': figures(_observed_sensitivity(observed, strategy)),
  }
  if declared is not None:
    result['declared'] = {
        'min_sep': declared.min_sep,
        'max_participations': declared.participations,
        **figures(sensitivity_lib.sensitivity(strategy, declared)),
        'holds': declared_holds(observed, declared),
    }
  void_reason = _void_reason(observed, strategy, noise_multiplier)
  return {
      **result,
      'delta': deltas[0],
      'adjacency': adjacency,
      'group_size': group_size,
      'assumptions': _assumptions(
          observed,
          schema,
          declared,
          adjacency,
          group_size,
          noise_multiplier,
          void_reason,
      ),
      'void_reason': void_reason,
      'warnings': list(observed.warnings),
      'separations': [list(item) for item in observed.separations.items()],
      'participations': [list(i) for i in observed.participations.items()],
      'witness': observed.witness and observed.witness._asdict(),
      'rounds_without_participants': observed.rounds_without_participants,
      'log': [file._asdict() for file in observed.files],
  }


def run_metadata(
    strategy: base.Strategy, noise_multiplier: float
) -> dict[str, str]:
  """What a log's file says of the run, for replay to hold it against."""
  return {
      shards.NOISE_MULTIPLIER_KEY: repr(float(noise_multiplier)),
      shards.STRATEGY_KEY: strategy_digest(strategy),
  }


def _void_reason(
    observed: ObservedParticipation,
    strategy: base.Strategy,
    noise_multiplier: float,
) -> str | None:
  """Why the figures guarantee nothing: the log says so, or is of another run."""
  own = run_metadata(strategy, noise_multiplier)
  reasons = [observed.void_reason] if observed.void_reason else []
  if observed.noise_multiplier not in (None, own[shards.NOISE_MULTIPLIER_KEY]):
    reasons.append(
        'the log is of a run with the noise multiplier'
        f' {observed.noise_multiplier}, not {noise_multiplier}'
    )
  if observed.strategy_sha256 not in (None, own[shards.STRATEGY_KEY]):
    reasons.append(
        'the log is of a run with another strategy, of digest'
        f' {observed.strategy_sha256[:12]}…, not'
        f' {own[shards.STRATEGY_KEY][:12]}…'
    )
  return '; '.join(reasons) or None


def declared_holds(
    observed: ObservedParticipation, declared: participation.MinSep
) -> bool:
  """Whether every device kept to a declared schema of the same rounds.

  Raises:
    ValueError: where the schema is for other rounds than the log's, or for a
      fixed separation, which a log cannot be held to by min_sep alone.
  """
  if declared.num_rounds != observed.num_rounds:
    raise ValueError(
        f'declared is for {declared.num_rounds} rounds, but the log has'
        f' {observed.num_rounds}'
    )
  if isinstance(declared, participation.FixedSeparation):
    raise ValueError('declared must be a MinSep, got a FixedSeparation')
  apart = (
      observed.witness is None or observed.min_sep >= declared.min_sep
  )
  return apart and observed.max_participations <= declared.participations


def strategy_digest(strategy: base.Strategy) -> str:
  """SHA-256 of a strategy's family and parameters, in hexadecimal.

  Of the family's name and, for each parameter by name, its name, shape and
  little-endian float64 values, so that it is the same for every file format.
  """
  digest = hashlib.sha256(strategy.family.encode())
  for name, value in sorted(strategy.parameters().items()):
    array = np.asarray(value, dtype='<f8')
    digest.update(json.dumps([name, array.shape]).encode())
    digest.update(array.tobytes())
  return digest.hexdigest()


def _observed_sensitivity(
    observed: ObservedParticipation, strategy: base.Strategy
) -> sensitivity_lib.Sensitivity:
  values, kind = sensitivity_lib.pattern_sensitivity(
      strategy, observed.num_rounds, observed.patterns()
  )
  return sensitivity_lib.Sensitivity(float(values.max()), kind)


def _assumptions(
    observed: ObservedParticipation,
    schema: participation.MinSep,
    declared: participation.MinSep | None,
    adjacency: str,
    group_size: int,
    noise_multiplier: float,
    void_reason: str | None,
) -> list[str]:
  """What has to be true for the figures to be, in sentences."""
  worst, *general = gaussian.assumptions(schema)
  sentences = [
      f'worst case: {worst}, as in the log',
      'observed: devices took part in the very rounds of the log',
  ]
  if declared is not None:
    sentences.append(f'declared: {gaussian.assumptions(declared)[0]}')
    if not declared_holds(observed, declared):
      sentences.append(
          'THE DECLARED SCHEMA DOES NOT HOLD in this log: the figures under'
          ' declared are void'
      )
  if not noise_multiplier:
    sentences.append('NO NOISE WAS ADDED: nothing is guaranteed')
  if void_reason:
    sentences.append(f'THE GUARANTEE IS VOID: {void_reason}')
  sentences += general
  sentences += adjacency_lib.assumptions(adjacency, group_size)
  sentences += [
      'the log is complete: it has every device whose update may have entered a'
      ' released sum, and its num_rounds counts every row of noise consumed',
      'the strategy and the noise multiplier are those of the run',
  ]
  return sentences
