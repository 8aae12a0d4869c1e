"""The numbers that a run's releases are made of, and what they add to a guarantee.

A guarantee of Gaussian noise is one of real numbers. Releases in whole numbers keep it, but for a
longer shift: see `mechanisms.lattice` and docs/decisions/arithmetic.md.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable

from fl_dpftrl.mechanisms import base, lattice
from fl_dpftrl.support import checks

NOT_COVERED, LATTICE, COVERED = 'not covered', 'lattice', 'covered'
KINDS = (NOT_COVERED, LATTICE, COVERED)
"""From the weakest to the strongest."""

MANY_COORDINATES = 10**8
"""Coordinates of a model that is not known yet, for noise that is to suffice in any case."""

_ROUNDING = 1.0 + 1e-12
_MOST_EPSILON = 600.0  # of which e^ε is a float64


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arithmetic:
  """The numbers that a run's releases are made of.

  Attributes:
    kind: 'covered': integers, with normals that are exactly rounded from secret bits. 'lattice':
      integers, with normals whose rounding is not proven. 'not covered': anything else, such as
      sums of float32.
    num_coordinates: d, parameters of the model and counts; None unless covered.
  """

  kind: str = NOT_COVERED
  num_coordinates: int | None = None

  def __post_init__(self):
    checks.one_of(KINDS, arithmetic=self.kind)
    if (self.num_coordinates is None) == (self.kind == COVERED):
      raise ValueError('num_coordinates must be given where arithmetic is covered, and only there')
    if self.num_coordinates is not None:
      checks.whole(num_coordinates=self.num_coordinates)

  @classmethod
  def covered(cls, num_coordinates: int) -> 'Arithmetic':
    """Returns that of integers with exactly rounded normals."""
    return cls(kind=COVERED, num_coordinates=num_coordinates)

  @classmethod
  def of(cls, noise_multiplier: float, num_coordinates: int, is_covered: bool) -> 'Arithmetic':
    """Returns that of integers, with exactly rounded normals where it is covered."""
    if not noise_multiplier:
      return cls()
    return cls.covered(num_coordinates) if is_covered else cls(kind=LATTICE)

  def and_then(self, later: 'Arithmetic') -> 'Arithmetic':
    """Returns what holds for rounds of this arithmetic and rounds of another together."""
    kind = min(self.kind, later.kind, key=KINDS.index)
    if kind != COVERED:
      return Arithmetic(kind=kind)
    return Arithmetic.covered(max(self.num_coordinates or 0, later.num_coordinates or 0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rounding:
  """The cost of releases in whole numbers, beside the guarantee of real numbers.

  Attributes:
    mu: added to the shift μ of one Gaussian; rounded up.
    chance: of a normal, a row or a buffer that is farther than 37 standard deviations from 0, in
      any coordinate of any round; for such a run nothing is proven.
  """

  mu: float = 0.0
  chance: float = 0.0

  def delta(self, epsilon: float) -> float:
    """Returns what is added to δ at an ε: δ₀."""
    return self.chance * (1.0 + math.exp(epsilon)) if epsilon < _MOST_EPSILON else 1.0

  def left(self, delta: float, epsilon: float) -> float:
    """Returns what δ₀ leaves of a δ at an ε, rounded down; 0 or less if nothing."""
    return math.nextafter(delta - self.delta(epsilon), 0.0) if self.chance else delta

  def lengthened(self, effective_noise_multiplier: float) -> float:
    """Returns the effective noise multiplier with the rounding added to its μ, rounded down."""
    if not self.mu:
      return effective_noise_multiplier
    value = effective_noise_multiplier / (1.0 + self.mu * effective_noise_multiplier)
    return math.nextafter(math.nextafter(value, 0.0), 0.0)


def rounding(
  streams: Iterable[tuple[base.Strategy, int]], num_coordinates: int, most: int | None = None
) -> Rounding:
  """Returns what the whole numbers of independent noise streams add, all together.

  A stream adds ‖B⁻¹‖₂·(1 + 2f)·√(n·d)/2ᵖ to the shift of its releases. Shifts of independent
  streams compose as lengths of orthogonal vectors do, and √Σ(Δ + e)² is at most √ΣΔ² + √Σe².

  Args:
    streams: C and number of rounds n of each stream.
    num_coordinates: d, in all of them.
    most: streams that one device takes part in at most, as only these add to its shift; None for
      all.

  Source: the theorem of docs/decisions/arithmetic.md.
  """
  squares, chances = [], []
  for strategy, num_rounds in streams:
    per_root, watched = stream_factors(strategy, num_rounds)
    squares.append(per_root**2 * num_rounds * num_coordinates)
    chances.append(lattice.FARTHER_CHANCE * watched * num_rounds * num_coordinates)
  largest = sorted(squares, reverse=True)[:most]
  return Rounding(mu=math.sqrt(math.fsum(largest)) * _ROUNDING, chance=math.fsum(chances))


@functools.lru_cache(maxsize=64)
def stream_factors(strategy: base.Strategy, num_rounds: int) -> tuple[float, int]:
  """Returns ‖B⁻¹‖₂·(1 + 2f)/2ᵖ, and the values of a coordinate of a round, none of them far."""
  norm = lattice.rounding_norm(strategy, num_rounds)
  off = lattice.carried_error(strategy, num_rounds)
  watched = 2 + strategy.noise(num_rounds).num_buffers
  return norm * (1.0 + 2.0 * off) * 2.0**-lattice.BITS, watched
