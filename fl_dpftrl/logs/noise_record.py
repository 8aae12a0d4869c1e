"""The noise and strategy of a run, as recorded in the log's metadata."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fl_dpftrl import adaptive_clipping
from fl_dpftrl.accounting import arithmetic as arithmetic_lib
from fl_dpftrl.accounting import run_noise
from fl_dpftrl.families import base
from fl_dpftrl.logs import keys, refusals
from fl_dpftrl.strategies import document

STATED = ('strategy', 'noise_multiplier')
"""What metadata can state of the noise."""


class Recorded(NamedTuple):
  """The noise of all rounds of a run, as metadata state it; None where they do not."""

  noise_multiplier: float | None = None
  clip_norm: float | None = None
  arithmetic: arithmetic_lib.Arithmetic = arithmetic_lib.Arithmetic()


def void_reason(noise_multiplier: float, noise_seed: int | None) -> str | None:
  """Returns why a run's noise guarantees nothing; None if it does."""
  if not noise_multiplier:
    return 'noise is off (noise_multiplier 0)'
  if noise_seed is not None:
    return 'the noise seed was given, so whoever knows it can remove the noise'
  return None


def run_metadata(
  strategy: base.Strategy,
  noise_multiplier: float,
  *,
  clip_norm: float | adaptive_clipping.AdaptiveClipping | None = None,
  arithmetic: arithmetic_lib.Arithmetic = arithmetic_lib.Arithmetic(),
) -> dict[str, str]:
  """Returns the metadata of a run, which replay compares with its arguments.

  Args:
    strategy: C.
    noise_multiplier: std(Z) / clip_norm; with adaptive clipping, that of updates and counts
      together.
    clip_norm: L2 bound on one update, or the `AdaptiveClipping` of the run.
    arithmetic: the numbers that all releases are made of, as `CorrelatedNoiseFactory.arithmetic`
      returns it; by default they are not covered.

  Raises:
    ValueError: for a strategy that is none, such as a name, and for values out of range.
  """
  base.check_strategy(strategy)
  result = {}
  if isinstance(clip_norm, adaptive_clipping.AdaptiveClipping):
    result[keys.ADAPTIVE_CLIPPING_KEY] = clip_norm.to_json()
    clip_norm = clip_norm.initial
  noise = run_noise.RunNoise(1, strategy, noise_multiplier, clip_norm, arithmetic)
  result[keys.NOISE_MULTIPLIER_KEY] = repr(float(noise.noise_multiplier))
  if noise.clip_norm is not None:
    result[keys.CLIP_NORM_KEY] = repr(float(noise.clip_norm))
  if arithmetic.kind != arithmetic_lib.NOT_COVERED:
    result[keys.ARITHMETIC_KEY] = arithmetic.kind
  if arithmetic.num_coordinates is not None:
    result[keys.NUM_COORDINATES_KEY] = str(arithmetic.num_coordinates)
  return {**result, keys.STRATEGY_KEY: document.strategy_digest(strategy)}


def stated(stored: Mapping[str, str]) -> tuple[str, ...]:
  """Returns which of STATED metadata state."""
  return tuple(
    name
    for name, key in zip(STATED, (keys.STRATEGY_KEY, keys.NOISE_MULTIPLIER_KEY), strict=True)
    if key in stored
  )


def read(stored: Mapping[str, str]) -> Recorded:
  """Reads the noise from a log's metadata.

  Raises:
    LogError: naming the key, if it is malformed.
  """
  arithmetic = _parsed(keys.ARITHMETIC_KEY, stored, lambda kind: _arithmetic(kind, stored))
  return Recorded(
    noise_multiplier=_parsed(keys.NOISE_MULTIPLIER_KEY, stored, _number),
    clip_norm=_parsed(keys.CLIP_NORM_KEY, stored, _number),
    arithmetic=arithmetic or arithmetic_lib.Arithmetic(),
  )


def read_clipping(stored: Mapping[str, str]) -> adaptive_clipping.AdaptiveClipping | None:
  """Reads the adaptive clipping of a run from its log's metadata; None for a fixed clip norm.

  Raises:
    LogError: if it is malformed.
  """
  return _parsed(keys.ADAPTIVE_CLIPPING_KEY, stored, adaptive_clipping.AdaptiveClipping.from_json)


def _parsed(key: str, stored: Mapping[str, str], parse: Callable[[str], Any]) -> Any:
  """Returns the value of a key; None without the key."""
  try:
    return parse(stored[key]) if key in stored else None
  except (ValueError, TypeError, RecursionError, OverflowError) as e:
    raise refusals.LogError(
      f'{key} in the metadata of the log is malformed: {stored[key][:80]!r}'
    ) from e


def _number(text: str) -> float:
  value = float(text)
  if not 0.0 <= value < math.inf:
    raise ValueError('it must be finite and at least 0')
  return value


def _arithmetic(kind: str, stored: Mapping[str, str]) -> arithmetic_lib.Arithmetic:
  count = stored.get(keys.NUM_COORDINATES_KEY)
  number = None if count is None else int(count)
  return arithmetic_lib.Arithmetic(kind=kind, num_coordinates=number)
