"""The noise of a run, and the worst case over independent runs."""

import dataclasses
import functools
import math
import numbers
from collections.abc import Sequence

from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.accounting import arithmetic as arithmetic_lib
from fl_dpftrl.families import base
from fl_dpftrl.participation import schemas as participation


@dataclasses.dataclass(frozen=True)
class RunNoise:
  """The noise of a run, from its first round to its last: other noise is another run.

  The noise of a round is a row of N·Z, times the noise multiplier and the clip norm.

  Attributes:
    num_rounds: n, rows of noise used or planned.
    strategy: C.
    noise_multiplier: std(Z) / clip_norm; 0 without noise.
    clip_norm: L2 bound on an update, the first one where it adapts; None if it is not known.
    arithmetic: the numbers that its releases are made of.

  Raises:
    ValueError: for a strategy that has fewer rounds or depends on their number, and for values out
      of range.
  """

  num_rounds: int
  strategy: base.Strategy
  noise_multiplier: float
  clip_norm: float | None = None
  arithmetic: arithmetic_lib.Arithmetic = arithmetic_lib.Arithmetic()

  def __post_init__(self):
    if self.strategy.depends_on_num_rounds:
      raise ValueError(
        f'strategy: {self.strategy.family} depends on the number of rounds that were planned, and'
        ' a run may end early; give it num_rounds, or a file that has them, as `fl-dpftrl'
        ' optimize --output` writes'
      )
    base.check_num_rounds(self.strategy, self.num_rounds)
    multiplier, clip_norm = self.noise_multiplier, self.clip_norm
    if not (isinstance(multiplier, numbers.Real) and 0.0 <= multiplier < math.inf):
      raise ValueError(f'noise_multiplier must be finite and at least 0, got {multiplier!r}')
    if clip_norm is not None and not 0.0 < clip_norm < math.inf:
      raise ValueError(f'clip_norm must be positive and finite, got {clip_norm!r}')

  def until(self, num_rounds: int) -> 'RunNoise':
    """Returns the same noise for another number of rounds."""
    return dataclasses.replace(self, num_rounds=num_rounds)


def worst_case(
  noises: Sequence[RunNoise], schemas: Sequence[participation.MinSep]
) -> sensitivity_lib.Sensitivity:
  """Returns the sensitivity of any device that keeps to the schema of each run.

  It is in units of the first noise multiplier, if no run is without noise. The squares of
  sensitivity over noise multiplier add up over runs.

  Args:
    noises: noise of each run, at least one, independent of that of the others.
    schemas: participation schema of each run's rounds.
  """
  unit, square, kinds = noises[0].noise_multiplier, 0.0, []
  for noise, schema in zip(noises, schemas, strict=True):
    value, kind = sensitivity_lib.sensitivity(noise.strategy, schema.within(noise.num_rounds))
    weight = unit / noise.noise_multiplier if unit and noise.noise_multiplier else 1.0
    square += (weight * value) ** 2
    kinds.append(kind)
  if len(kinds) == 1:  # Squaring and taking the root would round.
    return sensitivity_lib.Sensitivity(value, kind)
  return sensitivity_lib.Sensitivity(math.sqrt(square), _weakest(kinds))


def rounding(noises: Sequence[RunNoise]) -> arithmetic_lib.Rounding | None:
  """Returns what releases in whole numbers add to the guarantee of runs of one population.

  None unless the arithmetic of all of them is covered, and none is without noise.

  Raises:
    ValueError: as `arithmetic.rounding`.
  """
  together = functools.reduce(
    arithmetic_lib.Arithmetic.and_then, (noise.arithmetic for noise in noises)
  )
  if together.num_coordinates is None or not all(noise.noise_multiplier for noise in noises):
    return None
  streams = [(noise.strategy, noise.num_rounds) for noise in noises]
  return arithmetic_lib.rounding(streams, together.num_coordinates)


def _weakest(kinds: Sequence[str]) -> str:
  order = (sensitivity_lib.LOWER_BOUND, sensitivity_lib.UPPER_BOUND, sensitivity_lib.EXACT)
  return next(kind for kind in order if kind in kinds)
