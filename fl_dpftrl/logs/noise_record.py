"""The noise and strategy of a run, as recorded in the log's metadata."""

import json
import math
import operator
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fl_dpftrl import adaptive_clipping
from fl_dpftrl.families import base
from fl_dpftrl.logs import refusals, shards
from fl_dpftrl.strategies import document

_MOST_CHARACTERS = 1 << 18  # of all restarts
_KEYS = (
  shards.STRATEGY_KEY,
  shards.NOISE_MULTIPLIER_KEY,
  shards.CLIP_NORM_KEY,
  shards.ADAPTIVE_CLIPPING_KEY,
  shards.NOISE_CHANGES_KEY,
  shards.NOISE_RESTARTS_KEY,
)
STATED = ('strategy', 'noise_multiplier', 'changes')
"""What metadata can state of the noise; `changes` are all changes and restarts."""
_TOO_LARGE = (
  'it is too large for the metadata of a log; begin another log with it, and replay both'
  ' with --runs'
)


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


class Restart(NamedTuple):
  """A restart of the noise: row 0 of N·Z again, with a Z independent of the one before.

  Attributes:
    round_index: first round with the new noise.
    strategy: C from that round on; None for the same as before.
  """

  round_index: int
  strategy: base.Strategy | None = None


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
  """

  round_index: int
  row: int
  restart: bool
  strategy: str | None
  noise_multiplier: float
  clip_norm: float
  noise_multiplier_before: float
  clip_norm_before: float


class Record(NamedTuple):
  """Noise of all rounds, as a log's metadata state it.

  Attributes:
    noise_multiplier: std(Z) / clip_norm in round 0; None if not stated.
    clip_norm: L2 bound on an update in round 0; None if not stated.
    changes: changes of one or both, by ascending rounds.
    restarts: restarts of the noise, by ascending rounds.
  """

  noise_multiplier: float | None
  clip_norm: float | None
  changes: tuple[Change, ...] = ()
  restarts: tuple[Restart, ...] = ()

  @property
  def restart_rounds(self) -> tuple[int, ...]:
    """Rounds at which the noise was restarted."""
    return tuple(restart.round_index for restart in self.restarts)

  @property
  def later_strategies(self) -> tuple[tuple[int, base.Strategy], ...]:
    """Rounds at which the noise was restarted with another strategy, each with that strategy."""
    return tuple((r.round_index, r.strategy) for r in self.restarts if r.strategy is not None)

  def until(self, num_rounds: int) -> 'Record':
    """Returns the record without what it states for rounds from num_rounds on."""
    within = lambda entries: tuple(e for e in entries if e.round_index < num_rounds)
    return self._replace(changes=within(self.changes), restarts=within(self.restarts))

  def at(self, round_index: int) -> tuple[float | None, float | None]:
    """Returns noise multiplier and clip norm of a round."""
    past = [change for change in self.changes if change.round_index <= round_index]
    return past[-1][1:] if past else (self.noise_multiplier, self.clip_norm)

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

  def stated_at(self, round_index: int) -> tuple[float, float]:
    """Returns noise multiplier and clip norm of a round; ValueError if one is not stated."""
    multiplier, clip_norm = self.at(round_index)
    if multiplier is None or clip_norm is None:
      raise ValueError(
        'the metadata lack the noise multiplier or clip norm that was before: begin a log with'
        ' both (Guard and noise_record.run_metadata take clip_norm), and replay both logs with'
        ' --runs'
      )
    return multiplier, clip_norm

  def changed(
    self,
    round_index: int,
    *,
    noise_multiplier: float | None = None,
    clip_norm: float | None = None,
    strategy: base.Strategy | None = None,
    restart: bool = False,
  ) -> 'Record':
    """Returns the record with one more change; see `LogWriter.change_noise`.

    Raises:
      ValueError: if nothing changes, if the record lacks the noise multiplier or the clip norm
        before, for another strategy without a restart, and for values out of range.
    """
    multiplier, norm = self.stated_at(round_index)
    if strategy is not None and not restart:
      raise ValueError('strategy: another strategy needs noise of its own, give restart=True')
    changes, restarts = self.changes, self.restarts
    if (noise_multiplier, clip_norm) != (None, None):
      changes = (
        *changes,
        Change(
          round_index,
          multiplier if noise_multiplier is None else noise_multiplier,
          norm if clip_norm is None else clip_norm,
        ),
      )
    if restart:
      restarts = (*restarts, Restart(round_index, strategy))
    if (changes, restarts) == (self.changes, self.restarts):
      raise ValueError('nothing changes: give noise_multiplier, clip_norm or restart=True')
    result = self._replace(changes=_checked(changes), restarts=restarts)
    result.metadata()  # Refuses what a log cannot record.
    return result

  def metadata(self) -> dict[str, str]:
    """Returns the metadata that state the record; ValueError as `metadata`."""
    multiplier, _ = self.stated_at(0)
    return metadata(
      multiplier, clip_norm=self.clip_norm, changes=self.changes, restarts=self.restarts
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
  restarts: Sequence[tuple[int, base.Strategy | None]] = (),
) -> dict[str, str]:
  """Returns the metadata of a record.

  Raises:
    ValueError: for changes or restarts whose rounds do not ascend from 1 on, changes without the
      clip norm of round 0, and a strategy that metadata cannot hold.
  """
  result = {shards.NOISE_MULTIPLIER_KEY: repr(float(noise_multiplier))}
  if clip_norm is not None:
    result[shards.CLIP_NORM_KEY] = repr(float(clip_norm))
  if changes:
    if clip_norm is None:
      raise ValueError('clip_norm is needed where changes are given')
    result[shards.NOISE_CHANGES_KEY] = json.dumps([list(change) for change in _checked(changes)])
  if restarts:
    stored = [[t, _described(c)] for t, c in _ascending('restarts', restarts)]
    text = json.dumps(stored, allow_nan=False)
    if len(text) > _MOST_CHARACTERS:
      raise ValueError(f'strategy: {_TOO_LARGE}')
    result[shards.NOISE_RESTARTS_KEY] = text
  return result


def _described(strategy: base.Strategy | None) -> Any:
  """Returns family and parameters of a strategy as metadata have them."""
  if strategy is None:
    return None
  arrays: dict[str, np.ndarray] = {}
  described = document.describe(strategy, arrays)
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

  Raises:
    ValueError: for a strategy that is none, such as a name.
  """
  base.check_strategy(strategy)
  adaptive: dict[str, str] = {}
  if isinstance(clip_norm, adaptive_clipping.AdaptiveClipping):
    adaptive[shards.ADAPTIVE_CLIPPING_KEY] = clip_norm.to_json()
    clip_norm = clip_norm.initial
  return {
    **metadata(noise_multiplier, clip_norm=clip_norm, changes=changes, restarts=restarts),
    **adaptive,
    shards.STRATEGY_KEY: document.strategy_digest(strategy),
  }


def declared_noise(found: Mapping[str, str], round_index: int) -> DeclaredNoise:
  """Returns the change of the noise that metadata record at a round.

  Raises:
    ValueError: if they record none there.
    LogError: if they are malformed.
  """
  record = read(found)
  changed = any(change.round_index == round_index for change in record.changes)
  restart = round_index in record.restart_rounds
  if not (changed or restart):
    raise ValueError(f'the log records no change of the noise at round {round_index}')
  begun = max([0, *(t for t in record.restart_rounds if t <= round_index)])
  digest = found.get(shards.STRATEGY_KEY)
  for t, strategy in record.later_strategies:
    digest = document.strategy_digest(strategy) if t <= round_index else digest
  multiplier, clip_norm = record.stated_at(round_index)
  multiplier_before, clip_norm_before = record.stated_at(round_index - 1)
  return DeclaredNoise(
    round_index=round_index,
    row=round_index - begun,
    restart=restart,
    strategy=digest,
    noise_multiplier=multiplier,
    clip_norm=clip_norm,
    noise_multiplier_before=multiplier_before,
    clip_norm_before=clip_norm_before,
  )


def stated(found: Mapping[str, str]) -> tuple[str, ...]:
  """Returns which of STATED metadata state.

  Metadata that state anything of the noise state all changes and restarts: those that they leave
  out did not happen.
  """
  present = (
    shards.STRATEGY_KEY in found,
    shards.NOISE_MULTIPLIER_KEY in found,
    any(key in found for key in _KEYS),
  )
  return tuple(name for name, is_there in zip(STATED, present, strict=True) if is_there)


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
    key = shards.NOISE_RESTARTS_KEY
    restarts = _restarts(found.get(key, '[]'))
  except (ValueError, TypeError, RecursionError, OverflowError) as e:
    raise refusals.LogError(
      f'{key} in the metadata of the log is malformed: {found[key][:80]!r}'
    ) from e
  return Record(multiplier, clip_norm, changes, restarts)


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
    raise refusals.LogError(
      f'{shards.ADAPTIVE_CLIPPING_KEY} in the metadata of the log is malformed: {text[:80]!r}'
    ) from e


def _number(text: str | None) -> float | None:
  return None if text is None else float(text)


def _ascending(name: str, entries: Any) -> list[tuple[Any, ...]]:
  """Returns entries whose first values are ascending rounds from 1 on; ValueError otherwise."""
  result, before = [], 0
  for round_index, *rest in entries:
    round_index = operator.index(round_index)
    if round_index <= before:
      raise ValueError(f'{name} must be at ascending rounds from 1 on, got {round_index}')
    before = round_index
    result.append((round_index, *rest))
  return result


def _restarts(text: str) -> tuple[Restart, ...]:
  if '"npz"' in text:
    raise ValueError('arrays in files are not part of metadata')
  result = []
  for round_index, described in _ascending('restarts', json.loads(text)):
    strategy = None
    if described is not None:
      if not isinstance(described, dict):
        raise ValueError('a strategy must be an object')
      strategy = document.read_strategy(described, pathlib.Path('metadata'))
    result.append(Restart(round_index, strategy))
  return tuple(result)


def _checked(changes: Any) -> tuple[Change, ...]:
  result = []
  for round_index, multiplier, clip_norm in _ascending('changes', changes):
    multiplier, clip_norm = float(multiplier), float(clip_norm)
    if not (0.0 <= multiplier < math.inf and 0.0 < clip_norm < math.inf):
      raise ValueError(
        'changes must have a noise multiplier of at least 0 and a positive clip'
        f' norm, got {multiplier} and {clip_norm}'
      )
    result.append(Change(round_index, multiplier, clip_norm))
  return tuple(result)
