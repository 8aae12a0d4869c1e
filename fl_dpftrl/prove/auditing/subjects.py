"""Subjects of an audit: protocol, and noise rows in NumPy."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.noise import integer_rows, normals

Cohorts = Callable[[int], Sequence[np.ndarray]]
"""Round → update of each device, each a float32 vector of all coordinates."""


class Subject(Protocol):
  """A mechanism that an audit runs from the outside.

  Attributes:
    description: what runs, in words.
    sizes: number of coordinates of each tensor of an update.
    clips: whether it bounds updates itself. Otherwise the audit adds updates
      that keep to the clip norm, and does not test clipping.
  """

  description: str
  sizes: tuple[int, ...]
  clips: bool

  def run(self, cohorts: Cohorts, num_rounds: int) -> np.ndarray:
    """Returns the releases of a fresh run, as sums with noise, shape [num_rounds, sum(sizes)]."""
    ...


class RowSubject:
  """Noise rows of the engine with clipped updates, in whole numbers; each run has another seed."""

  clips = False

  def __init__(
    self,
    strategy: strategies.Strategy,
    *,
    noise_multiplier: float,
    clip_norm: float,
    sizes: Sequence[int],
    seed: int | None,
  ):
    self.description = f'noise rows of {strategy.family}'
    self.sizes = tuple(sizes)
    self._strategy, self._seed = strategy, seed
    self._unit, self._clip_norm = lattice_units.Unit.of(noise_multiplier), clip_norm
    self._runs = 0

  def run(self, cohorts: Cohorts, num_rounds: int) -> np.ndarray:
    self._runs += 1
    seed = None if self._seed is None else run_seed(self._seed, self._runs)
    secret = normals.system_seed() if seed is None else normals.fixed_seed(seed)
    size = sum(self.sizes)
    maker = integer_rows.RowMaker(
      self._strategy, size=size, num_rounds=num_rounds, seed=secret, num_threads=1
    )
    rows = np.empty((num_rounds, size), np.int64)
    for t, row in enumerate(rows):
      maker.make(row)
      for update in cohorts(t):
        row += self._unit.integers(update, self._clip_norm) << self._unit.shift
    maker.close()
    return self._unit.size * self._clip_norm * rows


def run_seed(seed: int, number: int) -> int:
  """Returns a seed of 62 bits for one run of an audit."""
  words = np.random.SeedSequence((abs(seed), int(seed < 0), number)).generate_state(2, np.uint64)
  return int(words[0] >> np.uint64(2))


def tensor_sizes(num_coordinates: int) -> tuple[int, int, int]:
  """Splits coordinates into a half and two quarters, which are three tensors."""
  quarter = max(1, math.ceil(num_coordinates / 4))
  return 2 * quarter, quarter, quarter
