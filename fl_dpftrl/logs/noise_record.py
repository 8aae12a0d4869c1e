"""The noise and strategy of a run, as recorded in the log's metadata."""

import json
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl import adaptive_clipping
from fl_dpftrl.accounting import arithmetic as arithmetic_lib
from fl_dpftrl.accounting import run_noise
from fl_dpftrl.families import base
from fl_dpftrl.logs import keys, limits, refusals
from fl_dpftrl.strategies import document

_MOST_CHARACTERS = 1 << 18  # of all restarts
_ARITHMETIC_KEYS = (keys.ARITHMETIC_KEY, keys.NUM_COORDINATES_KEY)
_KEYS = (
  keys.STRATEGY_KEY,
  keys.NOISE_MULTIPLIER_KEY,
  keys.CLIP_NORM_KEY,
  keys.ADAPTIVE_CLIPPING_KEY,
  keys.NOISE_CHANGES_KEY,
  keys.NOISE_RESTARTS_KEY,
)
STATED = ('strategy', 'noise_multiplier', 'changes')
"""What metadata can state of the noise; `changes` are all changes and restarts."""
_TOO_LARGE = (
  'it is too large for the metadata of a log; begin another log with it, and replay both'
  ' with --runs'
)


class DeclaredNoise(NamedTuple):
  """The noise of a round at which the log records a change; a state is taken to it.

  Attributes:
    round_index: first round with the new noise.
    row: next row of the noise's state in that round; 0 after a restart.
    restart: whether the noise is restarted in that round.
    strategy: SHA-256 of C, in hexadecimal; None if the log does not state it.
    noise_multiplier: std(Z) / clip_norm from that round on.
    clip_norm: L2 bound on an update from that round on.
    noise_multiplier_before: noise multiplier of the round before.
    clip_norm_before: clip norm of the round before.
    arithmetic: the numbers that the log states for all releases, these included.
  """

  round_index: int
  row: int
  restart: bool
  strategy: str | None
  noise_multiplier: float
  clip_norm: float
  noise_multiplier_before: float
  clip_norm_before: float
  arithmetic: arithmetic_lib.Arithmetic = arithmetic_lib.Arithmetic()


def void_reason(noise_multiplier: float, noise_seed: int | None) -> str | None:
  """Returns why a run's noise guarantees nothing; None if it does."""
  if not noise_multiplier:
    return 'noise is off (noise_multiplier 0)'
  if noise_seed is not None:
    return 'the noise seed was given, so whoever knows it can remove the noise'
  return None


def metadata(noise: run_noise.RunNoise) -> dict[str, str]:
  """Returns the metadata that state a run's noise, apart from its strategy in round 0."""
  result = {keys.NOISE_MULTIPLIER_KEY: repr(float(noise.noise_multiplier))}
  if noise.clip_norm is not None:
    result[keys.CLIP_NORM_KEY] = repr(float(noise.clip_norm))
  later = list(zip(noise.parts, noise.settings(), strict=True))[1:]
  changes = [
    [now.first_round, now.noise_multiplier, now.clip_norm]
    for part, now in later
    if (part.noise_multiplier, part.clip_norm) != (None, None)
  ]
  restarts = [[part.first_round, _described(part.strategy)] for part, _ in later if part.restart]
  if changes:
    if noise.clip_norm is None:
      raise ValueError('clip_norm is needed where changes are given')
    result[keys.NOISE_CHANGES_KEY] = json.dumps(changes)
  if restarts:
    text = json.dumps(restarts, allow_nan=False)
    if len(text) > _MOST_CHARACTERS:
      raise ValueError(f'strategy: {_TOO_LARGE}')
    result[keys.NOISE_RESTARTS_KEY] = text
  if noise.arithmetic.kind != arithmetic_lib.NOT_COVERED:
    result[keys.ARITHMETIC_KEY] = noise.arithmetic.kind
  if noise.arithmetic.num_coordinates is not None:
    result[keys.NUM_COORDINATES_KEY] = str(noise.arithmetic.num_coordinates)
  return result


def _described(strategy: base.Strategy | None) -> Any:
  """Returns family and parameters of a strategy as metadata have them."""
  if strategy is None:
    return None
  arrays: dict[str, np.ndarray] = {}
  described = document.to_json(strategy, arrays)
  if arrays:
    raise ValueError(f'strategy of family {strategy.family!r}: {_TOO_LARGE}')
  return described


def run_metadata(
  strategy: base.Strategy,
  noise_multiplier: float,
  *,
  clip_norm: float | adaptive_clipping.AdaptiveClipping | None = None,
  changes: Sequence[tuple[int, float, float]] = (),
  restarts: Sequence[tuple[int, base.Strategy | None]] = (),
  arithmetic: arithmetic_lib.Arithmetic = arithmetic_lib.Arithmetic(),
) -> dict[str, str]:
  """Returns the metadata of a run, which replay compares with its arguments.

  Args:
    strategy: C in round 0.
    noise_multiplier: std(Z) / clip_norm in round 0; with adaptive clipping, that of updates and
      counts together.
    clip_norm: L2 bound on one update in round 0, or the `AdaptiveClipping` of the run.
    changes: (round, noise multiplier, clip norm) of each change, with the
      values from that round on, as `LogWriter.change_noise` recorded them.
    restarts: (round, strategy from that round on) of each restart, as
      `LogWriter.change_noise` recorded them; None for the strategy before.
    arithmetic: the numbers that all releases are made of, as `CorrelatedNoiseFactory.arithmetic`
      returns it; by default they are not covered.
  """
  base.check_strategy(strategy)
  adaptive: dict[str, str] = {}
  if isinstance(clip_norm, adaptive_clipping.AdaptiveClipping):
    adaptive[keys.ADAPTIVE_CLIPPING_KEY] = clip_norm.to_json()
    clip_norm = clip_norm.initial
  noise = run_noise.RunNoise.of(
    limits.ROUNDS,
    strategy,
    noise_multiplier,
    clip_norm=clip_norm,
    changes=[(t, multiplier) for t, multiplier, _ in changes],
    clip_norm_changes=[(t, norm) for t, _, norm in changes],
    restarts=restarts,
    arithmetic=arithmetic,
  )
  return {**metadata(noise), **adaptive, keys.STRATEGY_KEY: document.strategy_digest(strategy)}


def changed(stored: Mapping[str, str], round_index: int, **change: Any) -> dict[str, str]:
  """Returns a log's metadata with another change, whose arguments are as of `RunNoise.changed`."""
  noise = read(stored)
  _stated(noise.at(round_index))
  # A restart may end what was stated of the arithmetic.
  kept = {key: text for key, text in stored.items() if key not in _ARITHMETIC_KEYS}
  return {**kept, **metadata(noise.changed(round_index, **change))}


def declared_noise(stored: Mapping[str, str], round_index: int) -> DeclaredNoise:
  """Returns the change of the noise that metadata record at a round."""
  noise = read(stored)
  if round_index not in {part.first_round for part in noise.parts[1:]}:
    raise ValueError(f'the log records no change of the noise at round {round_index}')
  now = noise.at(round_index)
  multiplier, clip_norm = _stated(now)
  multiplier_before, clip_norm_before = _stated(noise.at(round_index - 1))
  digest = stored.get(keys.STRATEGY_KEY)
  return DeclaredNoise(
    round_index=round_index,
    row=round_index - noise.stream_start(round_index),
    restart=now.restart,
    strategy=digest if now.strategy is None else document.strategy_digest(now.strategy),
    arithmetic=noise.arithmetic,
    noise_multiplier=multiplier,
    clip_norm=clip_norm,
    noise_multiplier_before=multiplier_before,
    clip_norm_before=clip_norm_before,
  )


def _stated(part: run_noise.Part) -> tuple[float, float]:
  """Returns noise multiplier and clip norm in force; ValueError if one is not known."""
  if part.noise_multiplier is None or part.clip_norm is None:
    raise ValueError(
      'the metadata lack the noise multiplier or clip norm that was before: begin a log with'
      ' both (Guard and noise_record.run_metadata take clip_norm), and replay both logs with'
      ' --runs'
    )
  return part.noise_multiplier, part.clip_norm


def stated(stored: Mapping[str, str]) -> tuple[str, ...]:
  """Returns which of STATED metadata state.

  Metadata that state anything of the noise state all changes and restarts: those that they leave
  out did not happen.
  """
  present = (
    keys.STRATEGY_KEY in stored,
    keys.NOISE_MULTIPLIER_KEY in stored,
    any(key in stored for key in _KEYS),
  )
  return tuple(name for name, is_there in zip(STATED, present, strict=True) if is_there)


def read(stored: Mapping[str, str], strategy: base.Strategy | None = None) -> run_noise.RunNoise:
  """Reads the noise from a log's metadata, for all rounds that a log can have.

  Args:
    stored: metadata of the log, which hold no more than the digest of the strategy in round 0.
    strategy: C in round 0; None if it is not at hand.
  """
  arguments: dict[str, Any] = {'noise_multiplier': None}
  if keys.ARITHMETIC_KEY in stored:
    arguments['arithmetic'] = _arithmetic(stored)
  noise = run_noise.RunNoise.of(limits.ROUNDS, strategy, **arguments)
  for key, parse in _PARSERS.items():
    try:
      arguments |= parse(stored[key]) if key in stored else {}
      noise = run_noise.RunNoise.of(limits.ROUNDS, strategy, **arguments)
    except (ValueError, TypeError, RecursionError, OverflowError) as e:
      raise _malformed(key, stored) from e
  return noise


def read_clipping(stored: Mapping[str, str]) -> adaptive_clipping.AdaptiveClipping | None:
  """Reads the adaptive clipping of a run from its log's metadata; None for a fixed clip norm."""
  text = stored.get(keys.ADAPTIVE_CLIPPING_KEY)
  try:
    return None if text is None else adaptive_clipping.AdaptiveClipping.from_json(text)
  except (ValueError, TypeError, RecursionError) as e:
    raise _malformed(keys.ADAPTIVE_CLIPPING_KEY, stored) from e


def _malformed(key: str, stored: Mapping[str, str]) -> refusals.LogError:
  return refusals.LogError(f'{key} in the metadata of the log is malformed: {stored[key][:80]!r}')


def _arithmetic(stored: Mapping[str, str]) -> arithmetic_lib.Arithmetic:
  count = stored.get(keys.NUM_COORDINATES_KEY)
  try:
    number = None if count is None else int(count)
    return arithmetic_lib.Arithmetic(kind=stored[keys.ARITHMETIC_KEY], num_coordinates=number)
  except ValueError as e:
    raise _malformed(keys.ARITHMETIC_KEY, stored) from e


def _changes(text: str) -> dict[str, Any]:
  changes = [(t, multiplier, norm) for t, multiplier, norm in json.loads(text)]
  return {
    'changes': [(t, multiplier) for t, multiplier, _ in changes],
    'clip_norm_changes': [(t, norm) for t, _, norm in changes],
  }


def _restarts(text: str) -> dict[str, Any]:
  if '"npz"' in text:
    raise ValueError('arrays in files are not part of metadata')
  result = []
  for round_index, described in json.loads(text):
    strategy = None
    if described is not None:
      if not isinstance(described, dict):
        raise ValueError('a strategy must be an object')
      strategy = document.read_strategy(described, pathlib.Path('metadata'))
    result.append((round_index, strategy))
  return {'restarts': result}


_PARSERS: dict[str, Callable[[str], dict[str, Any]]] = {
  keys.NOISE_MULTIPLIER_KEY: lambda text: {'noise_multiplier': float(text)},
  keys.CLIP_NORM_KEY: lambda text: {'clip_norm': float(text)},
  keys.NOISE_CHANGES_KEY: _changes,
  keys.NOISE_RESTARTS_KEY: _restarts,
}
