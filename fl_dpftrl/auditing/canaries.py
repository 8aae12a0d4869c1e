"""Canaries of a training run: their rounds, directions and scores, in NumPy.

A canary is a device without data. Its update is a direction drawn at random, as long as the clip
norm allows. For each canary there is a control: a direction that enters no sum. Directions are
signs ±1/√size, from a counter-based generator: number i is a function of the seed and i, so none
is stored.
"""

import dataclasses
import functools
import math
import sys

import numpy as np

from fl_dpftrl.logs import canaries as ids
from fl_dpftrl.participation import schemas

LEAST = 8
"""Canaries that a statistic over them needs."""

_TAG = 0x63616E617279  # tells these bits from other uses of the seed


@dataclasses.dataclass(frozen=True, kw_only=True)
class Canaries:
  """Canaries that take part as often as their timers allow.

  Canary i takes part in rounds i mod b, i mod b + b, …, at most k of them, where b is min_sep
  and k is max_participations.

  Attributes:
    num_canaries: number of canaries, and of controls; at least 8.
    schema: rounds of the run, and the participation that timers enforce.
    size: parameters of the model.
    clip_norm: L2 norm of an update.
    seed: seed of the directions; at least 0.

  Raises:
    ValueError: for an attribute that will not do.
  """

  num_canaries: int
  schema: schemas.MinSep
  size: int
  clip_norm: float
  seed: int

  def __post_init__(self):
    if schemas.positive_integer('num_canaries', self.num_canaries, ids.MOST) < LEAST:
      raise ValueError(f'num_canaries must be at least {LEAST}, got {self.num_canaries}')
    schemas.positive_integer('size', self.size)
    if not (math.isfinite(self.clip_norm) and self.clip_norm > 0.0):
      raise ValueError(f'clip_norm must be positive and finite, got {self.clip_norm!r}')
    if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
      raise ValueError(f'seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}')

  @property
  def most_in_a_round(self) -> int:
    """Largest number of canaries in one round."""
    return -(-self.num_canaries // self.schema.min_sep)

  def rounds_of(self, number: int) -> range:
    """Returns the rounds in which a canary takes part."""
    n, b = self.schema.num_rounds, self.schema.min_sep
    return range(number % b, n, b)[: self.schema.participations]

  def present(self, round_index: int) -> list[int]:
    """Returns the canaries of a round."""
    first = round_index % self.schema.min_sep
    if round_index // self.schema.min_sep >= self.schema.participations:
      return []
    return list(range(first, self.num_canaries, self.schema.min_sep))

  def patterns(self) -> np.ndarray:
    """Returns which canary takes part in which round: bool, [num_canaries, num_rounds]."""
    result = np.zeros([self.num_canaries, self.schema.num_rounds], bool)
    for number in range(self.num_canaries):
      result[number, list(self.rounds_of(number))] = True
    return result

  def direction(self, number: int) -> np.ndarray:
    """Returns a unit vector, float64 of shape [size].

    Args:
      number: a canary below num_canaries, or a control from there to 2 · num_canaries.
    """
    return (self._signs(number) / math.sqrt(self.size)).astype(np.float64)

  def _signs(self, number: int) -> np.ndarray:
    generator = np.random.Philox(key=[self.seed, _TAG], counter=[0, number, 0, 0])
    words = generator.random_raw(-(-self.size // 64))
    if sys.byteorder == 'big':
      words = words.byteswap()
    bits = np.unpackbits(words.view(np.uint8), count=self.size, bitorder='little')
    return 2.0 * bits - 1.0

  def signs(self, round_index: int) -> np.ndarray:
    """Returns the sum of the signs of the canaries' updates in a round, int64 of shape [size]."""
    signs = map(self._signs, self.present(round_index))
    return functools.reduce(np.add, signs, np.zeros(self.size)).astype(np.int64)

  def total(self, round_index: int) -> np.ndarray:
    """Returns the sum of the canaries' updates in a round, float64 of shape [size]."""
    return self.clip_norm / math.sqrt(self.size) * self.signs(round_index)

  def scores(self, round_index: int, total: np.ndarray) -> np.ndarray:
    """Returns how much of each direction is in the noisy sum of a round, in clip norms.

    The sum is scored without the updates of all other canaries, which are known.

    Args:
      round_index: number of the round.
      total: what the round released, times its divisor; shape [size].

    Returns:
      Inner products, float64 of shape [2 · num_canaries]: canaries first, then controls.
    """
    rest = np.asarray(total, np.float64).ravel() - self.total(round_index)
    products = [self._signs(number) @ rest for number in range(2 * self.num_canaries)]
    result = np.array(products) / (math.sqrt(self.size) * self.clip_norm)
    result[self.present(round_index)] += 1.0  # Its own update, which was taken out above.
    return result
