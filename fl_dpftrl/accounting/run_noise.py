"""The noise of a run: its history of changes and restarts, and the worst case over runs."""

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas as participation


class Part(NamedTuple):
  """Rounds between two changes or restarts of the noise.

  Attributes:
    first_round: first of these rounds; they end where the next part begins.
    strategy: C of these rounds.
    noise_multiplier: std(Z) / clip_norm of these rounds; 0 without noise.
    restart: whether row 0 of N·Z is in the first of them, with a Z independent of the one before.
  """

  first_round: int
  strategy: base.Strategy
  noise_multiplier: float
  restart: bool = False


class Stream(NamedTuple):
  """Rounds that one stream of correlated noise enters.

  Attributes:
    first_round: first of these rounds, with row 0 of N·Z.
    num_rounds: number of these rounds.
    strategy: C of these rounds.
    noise_multipliers: those in force in these rounds, the first one first.
  """

  first_round: int
  num_rounds: int
  strategy: base.Strategy
  noise_multipliers: tuple[float, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class RunNoise:
  """The noise of the rounds of a run.

  Attributes:
    num_rounds: n, rows of noise used.
    parts: parts of the rounds, in their order; the first begins at round 0.

  Raises:
    ValueError: unless parts begin at round 0, and then at ascending rounds below num_rounds; for
      another strategy without a restart.
  """

  num_rounds: int
  parts: tuple[Part, ...]

  def __post_init__(self):
    firsts = [part.first_round for part in self.parts]
    bounds = itertools.pairwise((*firsts, self.num_rounds))
    if firsts[:1] != [0] or not all(before < after for before, after in bounds):
      raise ValueError(f'parts must begin at ascending rounds from 0 to {self.num_rounds - 1}')
    for before, part in itertools.pairwise(self.parts):
      if part.strategy is not before.strategy and not part.restart:
        raise ValueError(f'parts: round {part.first_round} has another strategy, and no restart')

  @classmethod
  def of(
    cls,
    num_rounds: int,
    strategy: base.Strategy,
    noise_multiplier: float,
    *,
    changes: Iterable[tuple[int, float]] = (),
    restarts: Iterable[tuple[int, base.Strategy | None]] = (),
  ) -> 'RunNoise':
    """Returns the noise of the first rounds of a run.

    Args:
      num_rounds: number of these rounds; later changes and restarts are left out.
      strategy: C in round 0.
      noise_multiplier: std(Z) / clip_norm in round 0.
      changes: (round, noise multiplier from that round on).
      restarts: (round, strategy from that round on); None for the strategy before.
    """
    multipliers, strategies, parts = dict(changes), dict(restarts), []
    for t in sorted({0, *multipliers, *strategies}):
      if t < num_rounds:
        noise_multiplier = multipliers.get(t, noise_multiplier)
        later = strategies.get(t)
        strategy = strategy if later is None else later
        parts.append(Part(t, strategy, noise_multiplier, t in strategies))
    return cls(num_rounds, tuple(parts))

  @property
  def noise_multiplier(self) -> float:
    """std(Z) / clip_norm in round 0."""
    return self.parts[0].noise_multiplier

  def until(self, num_rounds: int) -> 'RunNoise':
    """Returns the noise of the first rounds, which are all of these or fewer."""
    return RunNoise(num_rounds, tuple(p for p in self.parts if p.first_round < num_rounds))

  def streams(self) -> tuple[Stream, ...]:
    """Returns the noise streams of the rounds, a new one at each restart."""
    groups: list[list[Part]] = []
    for part in self.parts:
      if part.restart or not groups:
        groups.append([])
      groups[-1].append(part)
    ends = [*(group[0].first_round for group in groups[1:]), self.num_rounds]
    return tuple(
      Stream(
        group[0].first_round,
        end - group[0].first_round,
        group[0].strategy,
        tuple(part.noise_multiplier for part in group),
      )
      for group, end in zip(groups, ends, strict=True)
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
    if len(streams) > 1 or len({part.noise_multiplier for part in noise.parts}) > 1:
      kinds.append(sensitivity_lib.UPPER_BOUND)
    for stream in streams:
      value, kind = sensitivity_lib.sensitivity(stream.strategy, schema.within(stream.num_rounds))
      least = min(stream.noise_multipliers)
      weight = unit / least if unit and least else 1.0
      square += (weight * value) ** 2
      kinds.append(kind)
  if len(kinds) == 1 and weight == 1.0:  # Squaring and taking the root would round.
    return sensitivity_lib.Sensitivity(value, kind)
  return sensitivity_lib.Sensitivity(math.sqrt(square), _weakest(kinds))


def _weakest(kinds: Sequence[str]) -> str:
  order = (sensitivity_lib.LOWER_BOUND, sensitivity_lib.UPPER_BOUND, sensitivity_lib.EXACT)
  return next(kind for kind in order if kind in kinds)
