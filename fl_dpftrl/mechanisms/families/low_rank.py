"""Strategies whose noising matrix is banded plus low rank."""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import bands, base, linear_noise


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class LowRank(base.Strategy):
  """A lower-triangular N with bands and, below them, a matrix of low rank.

  N[t, j] is near[t, t − j] in the bands, where t − j < num_bands. Below them it is the product of
  row t of row_factors with row j of column_factors. Such an N approximates the N of a better
  strategy. C is always the inverse of this N, never the strategy that N approximates, and the
  sensitivity is that of this C. If A is prefix sums, with or without momentum, A N is banded plus
  low rank too.

  Attributes:
    near: shape [num_rounds, num_bands], float64; entry [t, j] is N[t, t − j], and 0 where t <
      j. Column 0, the diagonal, is positive.
    row_factors: shape [num_rounds, rank].
    column_factors: shape [num_rounds, rank].

  Source: Denisov et al. 2022, appendix on structured matrices, for B.
  """

  near: np.ndarray
  row_factors: np.ndarray
  column_factors: np.ndarray
  family: ClassVar[str] = 'low_rank'

  def __post_init__(self):
    base.keep_array(self, 'near', 'num_rounds', 'num_bands')
    for name in ('row_factors', 'column_factors'):
      base.keep_array(self, name, 'num_rounds', 'rank')
    bands.check('near', self.near)
    num_rounds = len(self.near)
    if not self.row_factors.shape == self.column_factors.shape == (num_rounds, self.rank):
      raise ValueError(
        f'row_factors and column_factors must have {num_rounds} rows and as many columns as'
        f' each other, got shapes {self.row_factors.shape} and {self.column_factors.shape}'
      )

  @property
  def max_rounds(self) -> int | None:
    return self.near.shape[0]

  @property
  def num_bands(self) -> int:
    return self.near.shape[1]

  @property
  def rank(self) -> int:
    return self.row_factors.shape[1]

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    return base.lower_inverse(self.noising_matrix(num_rounds))

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    far = self.row_factors[:num_rounds] @ self.column_factors[:num_rounds].T
    return np.tril(far, -self.num_bands) + bands.to_matrix(self.near[:num_rounds])

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """A sum of weighted rows of Z for each rank; rows in the bands, drawn again."""
    del num_rounds
    grams = np.cumsum(self.column_factors[:, :, None] * self.column_factors[:, None, :], axis=0)

    def step(t):
      count = min(self.num_bands, t + 1)
      oldest, near = t + 1 - count, self.near[t, :count]
      # The oldest row leaves the bands after this round, once they are full.
      gains = self.column_factors[oldest] * (count == self.num_bands)
      square = near @ near
      if oldest:
        square += self.row_factors[t] @ grams[oldest - 1] @ self.row_factors[t]
      update = linear_noise.Add(np.zeros(self.rank), np.zeros(self.rank), gains)
      below, norm = -self.row_factors[t], math.sqrt(square)
      return linear_noise.Step(near[::-1], count - 1, below=below, update=update, norm=norm)

    return linear_noise.LinearNoise(self.rank, step)
