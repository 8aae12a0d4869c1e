"""Batches of centralized training: rounds take turns at parts of the examples."""

import dataclasses
import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.participation import drawn
from fl_dpftrl.support import checks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cyclic(drawn.Drawn):
  """Scheme in which rounds take turns at disjoint parts of the examples.

  Round t draws its batch from part t mod num_parts.

  Attributes:
    num_rounds: n.
    num_examples: m; those beyond num_parts equal parts are left out.
    batch_size: number of examples per round; its expectation if examples are drawn
      independently.
    num_parts: number of parts.
  """

  kind: ClassVar[str]
  num_rounds: int
  num_examples: int
  batch_size: float
  num_parts: int = 1

  def __post_init__(self):
    checks.keep(self, checks.whole, 'num_rounds', 'num_examples', 'num_parts')
    self._check_batch_size()
    if self.batch_size > self.part_size:
      most = most_parts(self.num_examples, self.batch_size)
      raise ValueError(
        f'batch_size={self.batch_size} is more than the {self.part_size} examples of a part, with'
        f' num_examples={self.num_examples} and num_parts={self.num_parts}; '
        + (f'at most {most} parts are as large' if most else 'give at most all of them')
      )

  def _check_batch_size(self) -> None:
    object.__setattr__(self, 'batch_size', checks.whole(batch_size=self.batch_size))

  @property
  def part_size(self) -> int:
    """Number of examples per part: ⌊num_examples / num_parts⌋."""
    return self.num_examples // self.num_parts

  @property
  def turns(self) -> int:
    """Maximum number of rounds that draw from one part, and so an example: ⌈n / num_parts⌉."""
    return -(-self.num_rounds // self.num_parts)

  @property
  def schema(self) -> schemas.Schema:
    """Participation schema, whatever was drawn: the turns of a part."""
    return schemas.Schema(self.num_rounds, self.num_parts)

  def drawer(
    self, generator: drawn.Generator, num_devices: int | None
  ) -> Callable[[int], np.ndarray]:
    """Returns the function from a round to its examples: i is in part i mod num_parts."""
    draw = self.batches(generator)
    return lambda t: np.sort(draw(t)) * self.num_parts + t % self.num_parts

  def batches(self, generator: drawn.Generator) -> Callable[[int], np.ndarray]:
    """Returns the function from a round to indices within its part, int64."""

    def draw(t: int) -> np.ndarray:
      rng = generator(drawn.BATCHES, t)
      return rng.choice(self.part_size, self.drawn_size(rng), replace=False, shuffle=False)

    return draw

  def drawn_size(self, rng: np.random.Generator) -> int:
    """Returns the size of a batch."""
    return int(self.batch_size)

  def within(self, num_rounds: int) -> 'Cyclic':
    return dataclasses.replace(self, num_rounds=num_rounds)


def most_parts(num_examples: int, batch_size: float) -> int:
  """Returns the maximum number of parts that are at least as large as a batch."""
  return int(num_examples // math.ceil(batch_size))
