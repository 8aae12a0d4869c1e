"""Any strategy, repeated block of rounds by block of rounds."""

import dataclasses
import operator
from typing import Any, ClassVar

import numpy as np
import scipy.linalg

from fl_dpftrl.families import base


@dataclasses.dataclass(frozen=True)
class Stamped:
  """Independent copies of a strategy, one after the other: C is block diagonal.

  It runs on past the last round of what it repeats. A tree that is restarted
  every so many rounds is a stamped tree.

  Attributes:
    strategy: what every block of rounds repeats.
    block_rounds: rounds of a block, at most what the strategy can run.

  Raises:
    ValueError: where strategy is none, or block_rounds outside its range.

  Source: Choquette-Choo et al. 2023, multi-epoch matrix factorization
  ("stamping"); Kairouz et al. 2021 (DP-FTRL), for trees.
  """

  strategy: base.Strategy
  block_rounds: int
  family: ClassVar[str] = 'stamped'

  def __post_init__(self):
    if isinstance(self.strategy, type) or not isinstance(
        self.strategy, base.Strategy
    ):
      raise ValueError(f'strategy must be a Strategy, got {self.strategy!r}')
    try:
      block_rounds = operator.index(self.block_rounds)
    except TypeError:
      block_rounds = 0
    if block_rounds < 1 or isinstance(self.block_rounds, bool):
      raise ValueError(
          'block_rounds must be a whole number of at least 1, got'
          f' {self.block_rounds!r}'
      )
    most = self.strategy.max_rounds
    if most is not None and block_rounds > most:
      raise ValueError(
          f'block_rounds={block_rounds} is beyond the {most} rounds of the'
          f' {self.strategy.family} strategy to repeat'
      )
    object.__setattr__(self, 'block_rounds', block_rounds)

  @property
  def max_rounds(self) -> int | None:
    return None

  @property
  def block_noise_rows(self) -> int:
    """Rows of Z that a whole block uses."""
    return self.strategy.num_noise_rows(self.block_rounds)

  def blocks(self, num_rounds: int) -> list[int]:
    """Rounds of each block, of which the last may be cut short."""
    base.check_num_rounds(self, num_rounds)
    whole, rest = divmod(num_rounds, self.block_rounds)
    return [self.block_rounds] * whole + [rest] * bool(rest)

  def num_noise_rows(self, num_rounds: int) -> int:
    whole, rest = divmod(num_rounds, self.block_rounds)
    return whole * self.block_noise_rows + (
        self.strategy.num_noise_rows(rest) if rest else 0
    )

  def memory_copies(self, num_rounds: int) -> int:
    return self.strategy.memory_copies(min(num_rounds, self.block_rounds))

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    return scipy.linalg.block_diag(
        *(self.strategy.strategy_matrix(n) for n in self.blocks(num_rounds))
    )

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return scipy.linalg.block_diag(
        *(self.strategy.noising_matrix(n) for n in self.blocks(num_rounds))
    )

  def parameters(self) -> dict[str, Any]:
    return {'strategy': self.strategy, 'block_rounds': self.block_rounds}
