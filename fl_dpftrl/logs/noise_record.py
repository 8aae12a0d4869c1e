"""The noise and strategy of a run, as recorded in the log's metadata."""

import json
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from fl_dpftrl import adaptive_clipping, digests
from fl_dpftrl.families import base
from fl_dpftrl.logs import shards


class Change(NamedTuple):
  """A change of the noise from a round on.

  Attributes:
    round_index: first round with the new noise.
    noise_multiplier: std(Z) / clip_norm from that round on.
    clip_norm: L2 bound on an update from that round on.
  """

  round_index: int
  noise_multiplier: float
  clip_norm: float


class Record(NamedTuple):
  """Noise of all rounds, as a log's metadata state it.

  Attributes:
    noise_multiplier: std(Z) / clip_norm in round 0; None if not stated.
    clip_norm: L2 bound on an update in round 0; None if not stated.
    changes: changes of one or both, by ascending rounds.
  """

  noise_multiplier: float | None
  clip_norm: float | None
  changes: tuple[Change, ...] = ()

  @property
  def multiplier_changes(self) -> tuple[tuple[int, float], ...]:
    """Rounds at which the noise multiplier changed, each with its new value."""
    return _differing(
      self.noise_multiplier, [(c.round_index, c.noise_multiplier) for c in self.changes]
    )

  @property
  def clip_norm_changes(self) -> tuple[tuple[int, float], ...]:
    """Rounds at which the clip norm changed, each with its new value."""
    return _differing(self.clip_norm, [(c.round_index, c.clip_norm) for c in self.changes])


def _differing(
  first: float | None, values: Iterable[tuple[int, float]]
) -> tuple[tuple[int, float], ...]:
  found = []
  for round_index, value in values:
    if value != first:
      found.append((round_index, value))
    first = value
  return tuple(found)


def metadata(
  noise_multiplier: float,
  *,
  clip_norm: float | None = None,
  changes: Sequence[tuple[int, float, float]] = (),
) -> dict[str, str]:
  """Returns the metadata of a record.

  Raises:
    ValueError: for changes whose rounds do not ascend from 1 on, or without the
      clip norm of round 0.
  """
  result = {shards.NOISE_MULTIPLIER_KEY: repr(float(noise_multiplier))}
  if clip_norm is not None:
    result[shards.CLIP_NORM_KEY] = repr(float(clip_norm))
  if changes:
    if clip_norm is None:
      raise ValueError('clip_norm is needed where changes are given')
    result[shards.NOISE_CHANGES_KEY] = json.dumps([list(change) for change in _checked(changes)])
  return result


def run_metadata(
  strategy: base.Strategy,
  noise_multiplier: float,
  *,
  clip_norm: float | adaptive_clipping.AdaptiveClipping | None = None,
  changes: Sequence[tuple[int, float, float]] = (),
) -> dict[str, str]:
  """Returns the metadata of a run, which replay compares with its arguments.

  Args:
    strategy: C.
    noise_multiplier: std(Z) / clip_norm in round 0; with adaptive clipping, that of updates and
      counts together.
    clip_norm: L2 bound on one update in round 0, or the `AdaptiveClipping` of the run.
    changes: (round, noise multiplier, clip norm) of each change, with the
      values from that round on, as `LogWriter.change_noise` recorded them.
  """
  adaptive: dict[str, str] = {}
  if isinstance(clip_norm, adaptive_clipping.AdaptiveClipping):
    adaptive[shards.ADAPTIVE_CLIPPING_KEY] = clip_norm.to_json()
    clip_norm = clip_norm.initial
  return {
    **metadata(noise_multiplier, clip_norm=clip_norm, changes=changes),
    **adaptive,
    shards.STRATEGY_KEY: digests.strategy_digest(strategy),
  }


def read(found: Mapping[str, str]) -> Record:
  """Reads the record from a log's metadata.

  Raises:
    LogError: naming the key, if it is malformed.
  """
  key = shards.NOISE_MULTIPLIER_KEY
  try:
    multiplier = _number(found.get(key))
    key = shards.CLIP_NORM_KEY
    clip_norm = _number(found.get(key))
    key = shards.NOISE_CHANGES_KEY
    changes = _checked(json.loads(found.get(key, '[]')))
  except (ValueError, TypeError, RecursionError, OverflowError) as e:
    raise shards.LogError(
      f'{key} in the metadata of the log is malformed: {found[key][:80]!r}'
    ) from e
  return Record(multiplier, clip_norm, changes)


def read_clipping(found: Mapping[str, str]) -> adaptive_clipping.AdaptiveClipping | None:
  """Reads the adaptive clipping of a run from its log's metadata; None for a fixed clip norm.

  Raises:
    LogError: if it is malformed.
  """
  text = found.get(shards.ADAPTIVE_CLIPPING_KEY)
  if text is None:
    return None
  try:
    return adaptive_clipping.AdaptiveClipping.from_json(text)
  except (ValueError, TypeError, RecursionError) as e:
    raise shards.LogError(
      f'{shards.ADAPTIVE_CLIPPING_KEY} in the metadata of the log is malformed: {text[:80]!r}'
    ) from e


def _number(text: str | None) -> float | None:
  return None if text is None else float(text)


def _checked(changes: Any) -> tuple[Change, ...]:
  result, before = [], 0
  for change in changes:
    round_index, multiplier, clip_norm = change
    round_index = operator.index(round_index)
    multiplier, clip_norm = float(multiplier), float(clip_norm)
    if round_index <= before:
      raise ValueError(f'changes must be at ascending rounds from 1 on, got {round_index}')
    if not (0.0 <= multiplier < math.inf and 0.0 < clip_norm < math.inf):
      raise ValueError(
        'changes must have a noise multiplier of at least 0 and a positive clip'
        f' norm, got {multiplier} and {clip_norm}'
      )
    before = round_index
    result.append(Change(round_index, multiplier, clip_norm))
  return tuple(result)
