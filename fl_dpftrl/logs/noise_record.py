"""The noise of a run as its log's metadata records it, with every change."""

import json
import math
import operator
from typing import Any, Iterable, Mapping, NamedTuple, Sequence

from fl_dpftrl.logs import shards


class Change(NamedTuple):
  """Noise from a round on.

  Attributes:
    round_index: the first round that has it.
    noise_multiplier: std(Z) over the clip norm.
    clip_norm: L2 bound on an update.
  """

  round_index: int
  noise_multiplier: float
  clip_norm: float


class Record(NamedTuple):
  """What a log's file says of the noise of its rounds.

  Attributes:
    noise_multiplier: of round 0; None where the file does not say.
    clip_norm: of round 0; None where the file does not say.
    changes: of one or both, by ascending rounds.
  """

  noise_multiplier: float | None
  clip_norm: float | None
  changes: tuple[Change, ...] = ()

  @property
  def multiplier_changes(self) -> tuple[tuple[int, float], ...]:
    """Rounds from which the noise multiplier was another, with it."""
    return _differing(
        self.noise_multiplier,
        [(c.round_index, c.noise_multiplier) for c in self.changes],
    )

  @property
  def clip_norm_changes(self) -> tuple[tuple[int, float], ...]:
    """Rounds from which the clip norm was another, with it."""
    return _differing(
        self.clip_norm, [(c.round_index, c.clip_norm) for c in self.changes]
    )


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
  """The metadata of a record.

  Raises:
    ValueError: for changes that are no ascending rounds from 1 on, or without
      the clip norm that was before.
  """
  result = {shards.NOISE_MULTIPLIER_KEY: repr(float(noise_multiplier))}
  if clip_norm is not None:
    result[shards.CLIP_NORM_KEY] = repr(float(clip_norm))
  if changes:
    if clip_norm is None:
      raise ValueError('clip_norm is needed where changes are given')
    result[shards.NOISE_CHANGES_KEY] = json.dumps(
        [list(change) for change in _checked(changes)]
    )
  return result


def read(found: Mapping[str, str]) -> Record:
  """The record in a log's metadata.

  Raises:
    LogError: naming the key, where it is malformed.
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


def _number(text: str | None) -> float | None:
  return None if text is None else float(text)


def _checked(changes: Any) -> tuple[Change, ...]:
  result, before = [], 0
  for change in changes:
    round_index, multiplier, clip_norm = change
    round_index = operator.index(round_index)
    multiplier, clip_norm = float(multiplier), float(clip_norm)
    if round_index <= before:
      raise ValueError(
          f'changes must be at ascending rounds from 1 on, got {round_index}'
      )
    if not (0.0 <= multiplier < math.inf and 0.0 < clip_norm < math.inf):
      raise ValueError(
          'changes must have a noise multiplier of at least 0 and a positive clip'
          f' norm, got {multiplier} and {clip_norm}'
      )
    before = round_index
    result.append(Change(round_index, multiplier, clip_norm))
  return tuple(result)
