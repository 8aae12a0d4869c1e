"""Composition of the guarantees of several independent streams of noise."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from fl_dpftrl import participation
from fl_dpftrl import sensitivity as sensitivity_lib
from fl_dpftrl.families import base


class Stream(NamedTuple):
  """Rounds that one stream of correlated noise enters.

  Attributes:
    strategy: C of these rounds.
    schema: participation in these rounds.
    noise_multiplier: the least std(Z) / clip_norm of these rounds; 0 if a round has no noise.
    loose: whether no device can have all of its participations in these rounds and at this noise
      multiplier, so that the result is an upper bound.
  """

  strategy: base.Strategy
  schema: participation.MinSep
  noise_multiplier: float
  loose: bool = False


def worst_case(streams: Sequence[Stream], unit: float) -> sensitivity_lib.Sensitivity:
  """Returns the sensitivity of any device that keeps to the schema of each stream.

  The squares of sensitivity over noise multiplier add up. In each stream, a device is assumed to
  have all the participations of its schema, at the least noise multiplier.

  Args:
    streams: at least one, each with noise independent of that of the others.
    unit: noise multiplier that the result is stated for; 0 without noise.
  """
  square, kinds = 0.0, []
  for stream in streams:
    value, kind = sensitivity_lib.sensitivity(stream.strategy, stream.schema)
    least = stream.noise_multiplier
    weight = unit / least if unit and least else 1.0
    square += (weight * value) ** 2
    kinds += [kind, sensitivity_lib.UPPER_BOUND] if stream.loose else [kind]
  if len(kinds) == 1 and weight == 1.0:  # Squaring and taking the root would round.
    return sensitivity_lib.Sensitivity(value, kind)
  return sensitivity_lib.Sensitivity(math.sqrt(square), _weakest(kinds))


def _weakest(kinds: Sequence[str]) -> str:
  order = (sensitivity_lib.LOWER_BOUND, sensitivity_lib.UPPER_BOUND, sensitivity_lib.EXACT)
  return next(kind for kind in order if kind in kinds)
