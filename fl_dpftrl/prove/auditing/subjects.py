"""Subjects of an audit: what each has, and how runs of one differ."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

Cohorts = Callable[[int], Sequence[np.ndarray]]
"""Round → update of each device, each a float32 vector of all coordinates."""


class Subject(Protocol):
  """A mechanism that an audit runs from the outside.

  Attributes:
    description: what runs, in words.
    sizes: number of coordinates of each tensor of an update.
  """

  description: str
  sizes: tuple[int, ...]

  def run(self, cohorts: Cohorts, num_rounds: int) -> np.ndarray:
    """Returns the releases of a fresh run, as sums with noise, shape [num_rounds, sum(sizes)]."""
    ...


class Watched:
  """A subject that tells of each round: of its cohort, before the round is computed."""

  def __init__(self, subject: Subject, progress: Callable[[str], None]):
    self.description, self.sizes = subject.description, subject.sizes
    self._subject, self._progress, self._number = subject, progress, 0

  def run(self, cohorts: Cohorts, num_rounds: int) -> np.ndarray:
    self._number += 1

    def told(t: int) -> Sequence[np.ndarray]:
      self._progress(f'run {self._number}, round {t} of {num_rounds}')
      return cohorts(t)

    released = self._subject.run(told, num_rounds)
    self._progress(f'tests of run {self._number}')
    return released


def run_seed(seed: int, number: int) -> int:
  """Returns a seed of 62 bits for one run of an audit."""
  return int(np.random.SeedSequence((seed, 0, number)).generate_state(1, np.uint64)[0]) >> 2


def tensor_sizes(num_coordinates: int) -> tuple[int, int, int]:
  """Splits coordinates into a half and two quarters, which are three tensors."""
  quarter = max(1, math.ceil(num_coordinates / 4))
  return 2 * quarter, quarter, quarter
