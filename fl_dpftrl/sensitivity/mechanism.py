"""The interface that sensitivity algorithms require of a mechanism."""

import math
from typing import Protocol

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl.sensitivity import base


class Mechanism(participation.Limited, Protocol):
  """A mechanism as used here; `families.base.Strategy` has defaults."""

  def sensitivity(self, schema: participation.MinSep) -> base.Sensitivity: ...

  def gram_matrix(self, num_rounds: int) -> np.ndarray: ...


def sensitivity(strategy: Mechanism, schema: participation.MinSep) -> base.Sensitivity:
  """Returns the sensitivity of a strategy under a participation schema.

  The sensitivity is exact for identity, BLT and trees, for banded strategies with num_bands at
  most min_sep, and for any C if a search over patterns ends in time. Otherwise it is an upper
  bound.

  Raises:
    ValueError: if the schema has more rounds than the strategy can run, or a family returns
      something other than a sensitivity.
  """
  participation.check_num_rounds(strategy, schema.num_rounds)
  found = strategy.sensitivity(schema)
  if found.kind not in base.KINDS or not 0.0 <= found.value < math.inf:
    raise ValueError(
      f'the sensitivity of {type(strategy).__name__} must be a finite number'
      f' with one of the kinds {", ".join(base.KINDS)}, got {found!r}'
    )
  return found


def gram_matrix(strategy: Mechanism, num_rounds: int) -> np.ndarray:
  """Returns X = CᵀC, shape [num_rounds, num_rounds].

  Raises:
    ValueError: if num_rounds is more than the strategy can run, or too many for a dense matrix.
  """
  participation.check_num_rounds(strategy, num_rounds)
  return strategy.gram_matrix(num_rounds)
