"""The type of a sensitivity, and the interface that its algorithms require of a mechanism."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from fl_dpftrl.mechanisms import schemas

EXACT = 'exact'
UPPER_BOUND = 'upper_bound'
LOWER_BOUND = 'lower_bound'
KINDS = (EXACT, UPPER_BOUND, LOWER_BOUND)

# (i, j) → X[i, j], for arrays of rounds that broadcast together.
Entries = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Sensitivity(NamedTuple):
  """A sensitivity per unit of clip norm, with the kind of proof for its value.

  Attributes:
    value: the worst ‖C u‖, or a bound on it.
    kind: 'exact', 'upper_bound' or 'lower_bound'. A guarantee takes only the first two.
  """

  value: float
  kind: str

  @classmethod
  def from_square(cls, square: float, exact: bool = True) -> 'Sensitivity':
    """Returns the root of a square; an upper bound if the square is not exact."""
    return cls(math.sqrt(square), EXACT if exact else UPPER_BOUND)


def better(first: Sensitivity, second: Sensitivity) -> Sensitivity:
  """Returns the tighter of two sensitivities of one strategy and schema."""
  for figure in (first, second):
    if figure.kind == EXACT:
      return figure
  return min(first, second, key=lambda figure: figure.value)


class HasSensitivity(schemas.Limited, Protocol):
  """A mechanism as used here; `mechanisms.base.Strategy` has defaults."""

  def sensitivity(self, schema: schemas.Schema) -> Sensitivity: ...

  def gram_matrix(self, num_rounds: int) -> np.ndarray: ...

  def gram_entries(self, num_rounds: int) -> Entries: ...

  def endless_gram(self) -> Any: ...


def sensitivity(strategy: HasSensitivity, schema: schemas.Schema) -> Sensitivity:
  """Returns the sensitivity of a strategy under a participation schema.

  The sensitivity is exact for identity, BLT and trees, for banded strategies with num_bands at most
  min_sep, and for any C if a search over patterns ends in time. Otherwise it is an upper bound.
  Without an end it is exact where X is positive and falls with the lag.
  """
  if schema.num_rounds is None:
    result = strategy.endless_gram().worst_square(schema.min_sep, schema.participations)
    return _checked(strategy, result)
  schemas.check_num_rounds(strategy, schema.num_rounds)
  if hasattr(schema, 'sensitivity'):
    result = schema.sensitivity(strategy)
  else:
    result = strategy.sensitivity(schema)
    if schema.is_own and result.kind == EXACT:  # It allows less than its min-sep schema.
      result = Sensitivity(result.value, UPPER_BOUND)
  return _checked(strategy, result)


def _checked(strategy: HasSensitivity, result: Sensitivity) -> Sensitivity:
  """Returns the sensitivity; ValueError unless it is a finite number with a kind."""
  if result.kind not in KINDS or not 0.0 <= result.value < math.inf:
    raise ValueError(
      f'the sensitivity of {type(strategy).__name__} must be a finite number'
      f' with one of the kinds {", ".join(KINDS)}, got {result!r}'
    )
  return result
