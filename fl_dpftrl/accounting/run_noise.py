"""The noise of a run: its history of changes and restarts, and the worst case over runs."""

import dataclasses
import functools
import itertools
import math
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import arithmetic as arithmetic_lib
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas as participation


class Part(NamedTuple):
  """The beginning, a change or a restart of the noise; what is None is as in the part before.

  Attributes:
    first_round: first round with it; it ends where the next part begins.
    noise_multiplier: std(Z) / clip_norm from that round on; 0 without noise.
    clip_norm: L2 bound on an update from that round on.
    strategy: C from that round on; another one needs a restart.
    restart: whether row 0 of N·Z is in that round, with a Z independent of the one before.
  """

  first_round: int
  noise_multiplier: float | None = None
  clip_norm: float | None = None
  strategy: base.Strategy | None = None
  restart: bool = False


class Stream(NamedTuple):
  """Rounds that one stream of correlated noise enters.

  Attributes:
    first_round: first of these rounds, with row 0 of N·Z.
    num_rounds: number of these rounds.
    strategy: C of these rounds.
    noise_multiplier: the least that is in force in these rounds.
  """

  first_round: int
  num_rounds: int
  strategy: base.Strategy
  noise_multiplier: float


@dataclasses.dataclass(frozen=True)
class RunNoise:
  """The noise of the rounds of a run.

  The noise of a round is a row of N·Z of its stream, times the noise multiplier and the clip norm
  of that round.

  Attributes:
    num_rounds: n, rows of noise used or planned.
    parts: parts of the rounds, in their order; the first begins at round 0. What is None in it is
      not known, as where a log records its strategy by digest alone.
    arithmetic: the numbers that its releases are made of, the weakest of all rounds.
  """

  num_rounds: int
  parts: tuple[Part, ...]
  arithmetic: arithmetic_lib.Arithmetic = arithmetic_lib.Arithmetic()

  def __post_init__(self):
    firsts = [part.first_round for part in self.parts]
    bounds = itertools.pairwise((*firsts, self.num_rounds))
    if firsts[:1] != [0] or not all(before < after for before, after in bounds):
      raise ValueError(f'parts must begin at ascending rounds from 0 to {self.num_rounds - 1}')
    for part in self.parts:
      if part.first_round and part.strategy is not None and not part.restart:
        raise ValueError(f'parts: round {part.first_round} has another strategy, and no restart')
      if part.strategy is not None and part.strategy.depends_on_num_rounds:
        raise ValueError(
          f'strategy: {part.strategy.family} depends on the number of rounds that were planned, and'
          ' a run may end early; give it num_rounds, or a file that has them, as `fl-dpftrl'
          ' optimize --output` writes'
        )
      multiplier, clip_norm = part.noise_multiplier, part.clip_norm
      if multiplier is not None and not 0.0 <= multiplier < math.inf:
        raise ValueError(f'noise_multiplier must be finite and at least 0, got {multiplier!r}')
      if clip_norm is not None and not 0.0 < clip_norm < math.inf:
        raise ValueError(f'clip_norm must be positive and finite, got {clip_norm!r}')

  @classmethod
  def of(
    cls,
    num_rounds: int,
    strategy: base.Strategy | None,
    noise_multiplier: float | None,
    *,
    clip_norm: float | None = None,
    changes: Iterable[tuple[int, float]] = (),
    clip_norm_changes: Iterable[tuple[int, float]] = (),
    restarts: Iterable[tuple[int, base.Strategy | None]] = (),
    arithmetic: arithmetic_lib.Arithmetic = arithmetic_lib.Arithmetic(),
  ) -> 'RunNoise':
    """Returns the noise of a run.

    Args:
      num_rounds: number of its rounds.
      strategy: C in round 0.
      noise_multiplier: std(Z) / clip_norm in round 0.
      clip_norm: L2 bound on an update in round 0.
      changes: (round, noise multiplier from that round on).
      clip_norm_changes: (round, clip norm from that round on).
      restarts: (round, strategy from that round on); None for the strategy before.
      arithmetic: the numbers that its releases are made of.
    """
    try:
      clip_norm = None if clip_norm is None else float(clip_norm)
      parts = {0: Part(0, noise_multiplier, clip_norm, strategy)}
      for t, value in _ascending('changes', changes, num_rounds):
        parts[t] = Part(t, noise_multiplier=float(value))
      for t, value in _ascending('clip_norm_changes', clip_norm_changes, num_rounds):
        parts[t] = parts.get(t, Part(t))._replace(clip_norm=float(value))
      for t, later in _ascending('restarts', restarts, num_rounds):
        parts[t] = parts.get(t, Part(t))._replace(strategy=later, restart=True)
    except TypeError as e:
      raise ValueError(f'changes and restarts must be of numbers at rounds: {e}') from e
    return cls(num_rounds, tuple(parts[t] for t in sorted(parts)), arithmetic)

  @property
  def strategy(self) -> base.Strategy:
    """C in round 0; ValueError if it is not known."""
    return _known('strategy', self.parts[0].strategy)

  @property
  def noise_multiplier(self) -> float:
    """std(Z) / clip_norm in round 0; ValueError if it is not known."""
    return _known('noise_multiplier', self.parts[0].noise_multiplier)

  @property
  def clip_norm(self) -> float | None:
    """L2 bound on an update in round 0; None if it is not known."""
    return self.parts[0].clip_norm

  @property
  def noise_multipliers(self) -> tuple[float, ...]:
    """All noise multipliers that are in force, the first one first."""
    return (self.noise_multiplier, *(value for _, value in self.changes))

  @property
  def changes(self) -> tuple[tuple[int, float], ...]:
    """Rounds with a stated noise multiplier, each with that, which may be the one before."""
    return tuple(
      (part.first_round, part.noise_multiplier)
      for part in self.parts[1:]
      if part.noise_multiplier is not None
    )

  @property
  def multiplier_changes(self) -> tuple[tuple[int, float], ...]:
    """Rounds at which the noise multiplier is another than before, each with that."""
    return _differing((part.first_round, part.noise_multiplier) for part in self.settings())

  @property
  def clip_norm_changes(self) -> tuple[tuple[int, float], ...]:
    """Rounds at which the clip norm is another than before, each with that."""
    return _differing((part.first_round, part.clip_norm) for part in self.settings())

  @property
  def restarts(self) -> tuple[int, ...]:
    """Rounds at which the noise restarts."""
    return tuple(part.first_round for part in self.parts[1:] if part.restart)

  @property
  def later_strategies(self) -> tuple[tuple[int, base.Strategy], ...]:
    """Rounds with a restart that brings a strategy, each with that."""
    return tuple(
      (part.first_round, part.strategy) for part in self.parts[1:] if part.strategy is not None
    )

  def settings(self) -> tuple[Part, ...]:
    """Returns the parts with all that is in force in them."""
    return tuple(
      itertools.accumulate(
        self.parts,
        lambda before, part: Part(
          part.first_round,
          before.noise_multiplier if part.noise_multiplier is None else part.noise_multiplier,
          before.clip_norm if part.clip_norm is None else part.clip_norm,
          before.strategy if part.strategy is None else part.strategy,
          part.restart,
        ),
      )
    )

  def at(self, round_index: int) -> Part:
    """Returns what is in force in a round."""
    return [part for part in self.settings() if part.first_round <= round_index][-1]

  def stream_start(self, round_index: int) -> int:
    """Returns the first round of the noise stream of a round."""
    return max((t for t in self.restarts if t <= round_index), default=0)

  def until(self, num_rounds: int) -> 'RunNoise':
    """Returns the noise of the first rounds, which are all of these or fewer."""
    parts = tuple(p for p in self.parts if p.first_round < num_rounds)
    return RunNoise(num_rounds, parts, self.arithmetic)

  def changed(
    self,
    round_index: int,
    *,
    noise_multiplier: float | None = None,
    clip_norm: float | None = None,
    strategy: base.Strategy | None = None,
    restart: bool = False,
    arithmetic: arithmetic_lib.Arithmetic | None = None,
  ) -> 'RunNoise':
    """Returns the noise with one more change or restart, after those that it has.

    Arithmetic is that from a restart on; None for the same.
    """
    if strategy is not None and not restart:
      raise ValueError('strategy: another strategy needs noise of its own, give restart=True')
    if (noise_multiplier, clip_norm, restart) == (None, None, False):
      raise ValueError('nothing changes: give noise_multiplier, clip_norm or restart=True')
    first, later = self.parts[0], self.parts[1:]
    at_round = lambda value: [] if value is None else [(round_index, value)]
    clip_norms = [(p.first_round, p.clip_norm) for p in later if p.clip_norm is not None]
    restarts = [(p.first_round, p.strategy) for p in later if p.restart]
    return RunNoise.of(
      self.num_rounds,
      first.strategy,
      first.noise_multiplier,
      clip_norm=first.clip_norm,
      changes=[*self.changes, *at_round(noise_multiplier)],
      clip_norm_changes=[*clip_norms, *at_round(clip_norm)],
      restarts=[*restarts, *([(round_index, strategy)] if restart else [])],
      arithmetic=self.arithmetic.and_then(arithmetic or self.arithmetic),
    )

  def streams(self) -> tuple[Stream, ...]:
    """Returns the noise streams of the rounds, a new one at each restart."""
    result, settings = [], self.settings()
    for first, end in itertools.pairwise((0, *self.restarts, self.num_rounds)):
      inside = [part for part in settings if first <= part.first_round < end]
      strategy = _known('strategy', inside[0].strategy)
      base.check_num_rounds(strategy, end - first)
      least = min(_known('noise_multiplier', part.noise_multiplier) for part in inside)
      result.append(Stream(first, end - first, strategy, least))
    return tuple(result)


_T = TypeVar('_T')


def _known(name: str, value: _T | None) -> _T:
  if value is None:
    raise ValueError(f'{name}: that of round 0 is not known')
  return value


def _ascending(
  name: str, entries: Iterable[tuple[int, Any]], num_rounds: int
) -> Iterator[tuple[int, Any]]:
  """Yields entries whose rounds ascend from 1 on; ValueError, with their name, otherwise."""
  before = 0
  for round_index, value in entries:
    round_index = operator.index(round_index)
    if not before < round_index < num_rounds:
      raise ValueError(
        f'{name} must be at ascending rounds from 1 to {num_rounds - 1}, got {round_index}'
      )
    before = round_index
    yield round_index, value


def _differing(values: Iterable[tuple[int, float | None]]) -> tuple[tuple[int, float], ...]:
  """Returns the rounds, each with its value, at which that is another than before."""
  return tuple(
    (t, value)
    for (_, before), (t, value) in itertools.pairwise(values)
    if value is not None and value != before
  )


def worst_case(
  noises: Sequence[RunNoise], schemas: Sequence[participation.MinSep]
) -> sensitivity_lib.Sensitivity:
  """Returns the sensitivity of any device that keeps to the schema of each run.

  It is in units of the first noise multiplier of the first run, if no round is without noise. The
  squares of sensitivity over noise multiplier add up over streams. A device is assumed to have all
  participations of the schema in each stream of a run, at the smallest noise multiplier of that
  stream. Where either cannot be, the result is an upper bound.

  Args:
    noises: noise of each run, at least one, independent of that of the others.
    schemas: participation schema of each run's rounds.
  """
  unit, square, kinds = noises[0].noise_multiplier, 0.0, []
  for noise, schema in zip(noises, schemas, strict=True):
    streams = noise.streams()
    if len(streams) > 1 or len(set(noise.noise_multipliers)) > 1:
      kinds.append(sensitivity_lib.UPPER_BOUND)
    for stream in streams:
      value, kind = sensitivity_lib.sensitivity(stream.strategy, schema.within(stream.num_rounds))
      weight = unit / stream.noise_multiplier if unit and stream.noise_multiplier else 1.0
      square += (weight * value) ** 2
      kinds.append(kind)
  if len(kinds) == 1 and weight == 1.0:  # Squaring and taking the root would round.
    return sensitivity_lib.Sensitivity(value, kind)
  return sensitivity_lib.Sensitivity(math.sqrt(square), _weakest(kinds))


def rounding(noises: Sequence[RunNoise]) -> arithmetic_lib.Rounding | None:
  """Returns what releases in whole numbers add to the guarantee of runs of one population.

  None unless the arithmetic of all of them is covered, and their noise is known and never 0.
  """
  together = functools.reduce(
    arithmetic_lib.Arithmetic.and_then, (noise.arithmetic for noise in noises)
  )
  if together.num_coordinates is None or not all(all(n.noise_multipliers) for n in noises):
    return None
  streams = [(s.strategy, s.num_rounds) for noise in noises for s in noise.streams()]
  return arithmetic_lib.rounding(streams, together.num_coordinates)


def _weakest(kinds: Sequence[str]) -> str:
  order = (sensitivity_lib.LOWER_BOUND, sensitivity_lib.UPPER_BOUND, sensitivity_lib.EXACT)
  return next(kind for kind in order if kind in kinds)
