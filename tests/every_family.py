"""Example strategies of every family in the registry, for all tests."""

import dataclasses

import numpy as np

from fl_dpftrl.mechanisms import base, family_registry
from fl_dpftrl.mechanisms.families import (
  banded,
  banded_inverse,
  banded_toeplitz,
  blt,
  dense,
  lambda_cgd,
  low_rank,
  stamped,
  tree_full,
)


@dataclasses.dataclass(frozen=True)
class Draw:
  """Parameters for a strategy of num_rounds rounds."""

  num_rounds: int
  rng: np.random.Generator
  tame: bool

  def size(self, tame: int, most: int) -> int:
    """Returns a number of bands, buffers and the like, from 1 to most."""
    return tame if self.tame else int(self.rng.integers(1, most + 1))

  def uniform(self, shape, spread: float = 1.0) -> np.ndarray:
    """Returns numbers of both signs, or now and then of one, up to a spread."""
    low = -0.75 if self.tame else self.rng.choice([-1.0, 0.0])
    return spread * self.rng.uniform(low, 1.0, shape)

  def column(self, size: int, spread: float = 1.0) -> np.ndarray:
    """Returns coefficients of which the first is positive."""
    if self.tame:
      return np.array([1.5, -0.6, 0.4, 0.2])[:size]
    values = self.uniform(size, spread)
    values[0] = self.rng.uniform(0.3, 1.5)
    return np.sort(np.abs(values))[::-1] if self.rng.random() < 0.3 else values

  def bands(self) -> np.ndarray:
    """Returns coefficients [t, j] of round t with the round j before."""
    n = self.num_rounds
    values = self.uniform((n, self.size(min(4, n), n)), 0.4 if self.tame else 1.0)
    values[:, 0] = self.rng.uniform(1.0, 1.5, n) if self.tame else self.rng.uniform(0.3, 1.5, n)
    values[np.arange(n)[:, None] < np.arange(values.shape[1])] = 0.0
    return values

  def triangle(self) -> np.ndarray:
    """Returns a lower-triangular matrix with a positive diagonal."""
    n = self.num_rounds
    below = np.tril(self.uniform((n, n), min(0.5, 2.0 / n) if self.tame else 1.0), -1)
    return below + np.diag(self.rng.uniform(1.0 if self.tame else 0.3, 1.5, n))

  def factors(self) -> np.ndarray:
    """Returns two matrices with a few columns each, which are multiplied."""
    rank = self.size(3, 3)
    return self.rng.uniform(-0.3, 0.3, (2, self.num_rounds, rank)) / np.sqrt(rank)

  def buffers(self) -> tuple[np.ndarray, np.ndarray]:
    """Returns decays in (0, 1) and output scales with a sum of at most 1."""
    if self.tame:
      return np.array([0.99, 0.8, 0.3]), np.array([0.25, 0.3, 0.2])
    scales = self.rng.uniform(0.0, 1.0, self.size(3, 3))
    return self.rng.uniform(1e-3, 0.999, scales.size), scales / max(1.0, 1.0001 * scales.sum())

  def one_in_two(self) -> bool:
    """Returns True if tame, and otherwise every second time."""
    return self.tame or self.rng.random() < 0.5

  def length(self) -> int:
    """Returns a number of rounds of at most num_rounds."""
    return self.size(min(5, self.num_rounds), self.num_rounds)

  def other(self) -> base.Strategy:
    """Returns a strategy of another family that runs for length() rounds."""
    name = 'banded' if self.tame else str(self.rng.choice([f for f in FAMILIES if f != 'stamped']))
    strategy = made(name, self)
    return tree_full.TreeFull(self.num_rounds) if strategy.depends_on_num_rounds else strategy


# Family → how an example is made from a Draw.
EXAMPLES = {
  'tree_full': lambda d: tree_full.TreeFull(d.num_rounds if d.one_in_two() else None),
  'banded': lambda d: banded.Banded(d.bands()),
  'banded_inverse': lambda d: banded_inverse.BandedInverse(
    d.column(d.size(4, d.num_rounds + 1), 0.5)
  ),
  'banded_toeplitz': lambda d: banded_toeplitz.BandedToeplitz(
    d.column(d.size(4, d.num_rounds + 2))
  ),
  'blt': lambda d: blt.BLT(*d.buffers()),
  'dense': lambda d: dense.Dense(d.triangle()),
  'lambda_cgd': lambda d: lambda_cgd.LambdaCGD(0.8 if d.tame else d.rng.choice([0.0, 0.6, 1.0])),
  'low_rank': lambda d: low_rank.LowRank(d.bands(), *d.factors()),
  'stamped': lambda d: stamped.Stamped(d.other(), d.length()),
}

# Further forms of families, which behave differently.
VARIANTS = {
  'banded_toeplitz with equal columns': lambda d: banded_toeplitz.BandedToeplitz(
    d.column(d.size(4, d.num_rounds + 2)), d.num_rounds + d.size(1, 3) - 1
  ),
  'tree_full of a longer run': lambda d: tree_full.TreeFull(d.num_rounds + d.size(27, 9)),
  'stamped blt': lambda d: stamped.Stamped(blt.BLT(*d.buffers()), d.length()),
}

FAMILIES = tuple(sorted(family_registry.FAMILIES))
NAMES = (*FAMILIES, *sorted(VARIANTS))


def example(name: str, num_rounds: int) -> base.Strategy:
  """Returns a strategy with a well-conditioned inverse, the same each time."""
  return made(name, Draw(num_rounds, np.random.default_rng(num_rounds), tame=True))


def drawn(name: str, num_rounds: int, rng: np.random.Generator) -> base.Strategy:
  """Returns a strategy with sizes, signs and scales from rng."""
  return made(name, Draw(num_rounds, rng, tame=False))


def made(name: str, draw: Draw) -> base.Strategy:
  """Returns a strategy of a family or variant with drawn parameters."""
  make = EXAMPLES.get(name) or VARIANTS.get(name)
  return make(draw) if make else family_registry.FAMILIES[name]()
