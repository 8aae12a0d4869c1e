"""The whole numbers that updates and sums are, and what they stand for.

Rows of noise are integers in units of the lattice, 2⁻³⁴ of the standard deviation of Z. Updates
are whole multiples of a power of two of these units. Sums are exact, and so is the sum with noise.
"""

import dataclasses
import fractions
import functools
import itertools
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fl_dpftrl.claims import extra_coordinates
from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms import lattice, linear_noise
from fl_dpftrl.support import checks
from fl_dpftrl.support.text import messages

# An update's norm is at most 2²⁴ of its units, so that float32 holds its coordinates exactly.
MOST_BITS = 24
# More than the rounding of a norm in float64.
_ROUNDING = 1.0 - 2.0**-30
_SUM_BITS = 62  # of a sum in units of the lattice, in int64 with room
_LEAST_MULTIPLIER = 2.0 ** (lattice.BITS + 1 - _SUM_BITS)
# Standard deviations of a row that sums have room for, and rounds of an endless run that are
# looked at: where a row has no room, the sum wraps, and tells no more for it.
_FARTHEST, _MOST_ROUNDS = 16.0, 4096


def _seed(noise_seed: Any) -> int:
  """Returns a seed; the error does not show what was given in its place."""
  if isinstance(noise_seed, bool) or not isinstance(noise_seed, numbers.Integral):
    kind = messages.kind(noise_seed)
    raise ValueError(f'noise_seed must be a whole number, or None, got {kind}')
  return int(noise_seed)


_CHECKS: dict[str, Callable[..., Any]] = {
  'noise_multiplier': checks.not_negative,
  'clip_norm': functools.partial(checks.between, 1e-30, 1e30),
  'report_goal': checks.whole,
  'at_least': checks.whole,
  'zeroing_norm': checks.positive,
  'noise_seed': _seed,
  'noise_machines': checks.whole,
}


def checked(name: str, value: Any) -> Any:
  """Returns a parameter of a release, one of `_CHECKS`, as a number of its type."""
  return _CHECKS[name](**{name: value})


@dataclasses.dataclass(frozen=True)
class Unit:
  """Units of updates, for a clip norm of 1; for another clip norm, multiples of it.

  Attributes:
    size: unit of the lattice: noise multiplier · 2⁻³⁴.
    shift: an update's unit is 2^shift units of the lattice.
    most_square: largest Σ k² of an update k, so that it is no longer than the clip norm.
    norms: largest norm of a device's vector in each group of extra coordinates, in an update's
      units.
  """

  size: float
  shift: int
  most_square: int
  norms: tuple[int, ...] = ()

  @classmethod
  def of(cls, noise_multiplier: float, groups: Sequence[extra_coordinates.Group] = ()) -> 'Unit':
    """Returns the units of a noise multiplier.

    Args:
      noise_multiplier: std(Z) / clip_norm, of all that is released together; above 0.
      groups: extra coordinates, whose norms then have what the updates leave, in exact numbers.
    """
    if noise_multiplier < _LEAST_MULTIPLIER:
      raise ValueError(
        f'noise_multiplier={noise_multiplier:g} is too small for sums of whole numbers; give 0 for'
        f' a run without noise, or at least {_LEAST_MULTIPLIER:.2g}'
      )
    longest = fractions.Fraction(1 << lattice.BITS) / fractions.Fraction(noise_multiplier)
    shift = max(0, math.floor(math.log2(longest)) + 1 - MOST_BITS)
    square = math.floor((longest / (1 << shift)) ** 2)
    norms = []
    for group in groups:
      per_device = fractions.Fraction(1 << lattice.BITS) / fractions.Fraction(group.stddev)
      norms.append(math.floor(per_device / (1 << shift)))
      if not group.largest(norms[-1]):
        name = 'clipped_count_stddev' if group.is_exclusive else 'metrics_stddev'
        raise ValueError(
          f'{name}={group.stddev:g} is too large for whole numbers; give a smaller one'
        )
    multiplier = extra_coordinates.update_noise_multiplier(noise_multiplier, groups)
    size = multiplier * 2.0**-lattice.BITS
    return cls(size, shift, square - sum(norm * norm for norm in norms), tuple(norms))

  @classmethod
  def without_noise(cls, bits: int, num_groups: int = 0) -> 'Unit':
    """Returns the units of a run without noise: 2^bits of them are the clip norm."""
    return cls(2.0**-bits, 0, (1 << 2 * bits) - 1, (1 << MOST_BITS - 1,) * num_groups)

  @property
  def step(self) -> float:
    """An update's unit, for a clip norm of 1."""
    return math.ldexp(self.size, self.shift)

  @property
  def bound(self) -> float:
    """The norm of the longest update, in its units; rounded down."""
    return math.sqrt(self.most_square) * _ROUNDING

  @property
  def longest(self) -> int:
    """The most that a device adds to a coordinate, in its units."""
    return max(math.isqrt(self.most_square), *self.norms, 0)

  def farthest(self, strategy: strategies.Strategy) -> int:
    """Returns what sums leave room for a row of noise, in an update's units: 16 of its σ."""
    norms = linear_noise.row_norms(strategy.noise(strategy.max_rounds))
    rounds = min(strategy.max_rounds or _MOST_ROUNDS, _MOST_ROUNDS)
    largest = max(itertools.islice(norms, rounds))
    return math.ceil(_FARTHEST * largest * 2.0 ** (lattice.BITS - self.shift))

  def room(self, noise: int) -> int:
    """Returns the updates that, with so much noise, have an exact sum in int64."""
    return ((1 << _SUM_BITS >> self.shift) - noise) // max(self.longest, 1)

  def integers(self, update: np.ndarray, clip_norm: float = 1.0) -> np.ndarray:
    """Returns a clipped update in whole units, towards zero, int64 [d], within most_square."""
    values = np.asarray(update, np.float64) / clip_norm
    norm = float(np.linalg.norm(values)) / self.step
    values = np.trunc(values * (min(1.0, self.bound / norm) / self.step if norm else 0.0))
    integers = values.astype(np.int64)
    if float(np.square(integers, dtype=np.float64).sum()) > self.most_square:
      raise RuntimeError('an update is longer than the clip norm after rounding')
    return integers
