"""Any strategy, repeated in every block of rounds."""

import dataclasses
from typing import ClassVar

import numpy as np
import scipy

from fl_dpftrl.mechanisms import base, linear_noise, schemas, workloads
from fl_dpftrl.mechanisms.sensitivities import endless, gram_search, independent_blocks, kinds
from fl_dpftrl.support import checks


@dataclasses.dataclass(frozen=True, repr=False)
class Stamped(base.Strategy):
  """Independent copies of a strategy, one after the other: C is block diagonal.

  It runs on past the last round of the repeated strategy. A tree that is restarted at regular
  intervals is a stamped tree.

  Attributes:
    strategy: the strategy that every block of rounds repeats.
    block_rounds: rounds of a block, at most what the strategy can run.

  Source: Choquette-Choo et al. 2023, multi-epoch matrix factorization ("stamping"); Kairouz et
  al. 2021 (DP-FTRL), for trees.
  """

  strategy: base.Strategy
  block_rounds: int
  family: ClassVar[str] = 'stamped'

  def __post_init__(self):
    base.check_strategy(self.strategy)
    block_rounds = checks.whole(block_rounds=self.block_rounds)
    most = self.strategy.max_rounds
    if most is not None and block_rounds > most:
      raise ValueError(
        f'block_rounds={block_rounds} is beyond the {most} rounds of the'
        f' {self.strategy.family} strategy to repeat'
      )
    if self.strategy.depends_on_num_rounds:  # A last block may be cut short.
      raise ValueError(
        f'strategy: {self.strategy.family} depends on the number of rounds; give it'
        f' num_rounds={block_rounds}, those of a block'
      )
    object.__setattr__(self, 'block_rounds', block_rounds)

  def blocks(self, num_rounds: int) -> list[int]:
    """Returns the rounds of each block; the last block may be cut short."""
    base.check_num_rounds(self, num_rounds)
    return independent_blocks.sizes(num_rounds, self.block_rounds)

  def num_noise_rows(self, num_rounds: int) -> int:
    whole, rest = divmod(num_rounds, self.block_rounds)
    rows = self.strategy.num_noise_rows
    return whole * rows(self.block_rounds) + (rows(rest) if rest else 0)

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    return scipy.linalg.block_diag(*map(self.strategy.strategy_matrix, self.blocks(num_rounds)))

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return scipy.linalg.block_diag(*map(self.strategy.noising_matrix, self.blocks(num_rounds)))

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """The noise of the repeated strategy, restarted with every block."""
    inner = self.strategy.noise(min(self.block_rounds, num_rounds or self.block_rounds))

    def step(t):
      within = t % self.block_rounds
      step = inner.at(within)
      return step._replace(restart=step.restart or not within)

    return linear_noise.LinearNoise(inner.num_buffers, step, period=self.block_rounds)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    if schema.num_rounds <= self.block_rounds:
      return self.strategy.sensitivity(schema)
    if isinstance(schema, schemas.Fixed):
      if schema.num_rounds <= workloads.MAX_DENSE_ROUNDS:
        return gram_search.gram_sensitivity(self.gram_matrix(schema.num_rounds), schema)
      # Patterns of fixed separation are patterns of min-sep.
      bound = self.strategy.repeated_sensitivity(self.block_rounds, schema.as_min_sep())
      return kinds.Sensitivity(bound.value, kinds.UPPER_BOUND)
    return self.strategy.repeated_sensitivity(self.block_rounds, schema)

  def gram_matrix(self, num_rounds: int) -> np.ndarray:
    return independent_blocks.gram_matrix(self.strategy, self.block_rounds, num_rounds)

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    size, blocks = self.block_rounds, self.blocks(num_rounds)
    block_entries = {n: self.strategy.gram_entries(n) for n in set(blocks)}
    whole = len(blocks) - (blocks[-1] != size)

    def entries_at(rows, columns):
      rows, columns = np.broadcast_arrays(rows, columns)
      total = np.zeros(rows.shape)
      same = rows // size == columns // size
      for n, entries in block_entries.items():
        which = same & ((rows // size < whole) == (n == size))
        total[which] = entries(rows[which] % size, columns[which] % size)
      return total

    return entries_at

  def endless_gram(self) -> endless.Gram:
    size, within = self.block_rounds, self.strategy.gram_entries(self.block_rounds)
    rounds = np.arange(size)
    own = within(rounds, rounds)

    def sensitivity(min_sep, max_participations, num_rounds):
      return self.sensitivity(schemas.Schema(num_rounds, min_sep, max_participations))

    return endless.Blocks(size, within, sensitivity, float(own.max()), float(own.min()))

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    """Blocks are independent, so their variances add up."""
    blocks = self.blocks(num_rounds)
    if workload.is_prefix_sums:
      # A prefix sum holds the whole of every block that is over.
      within = np.square(self.strategy.per_query_error(blocks[0], workload))
      over = np.repeat(np.arange(len(blocks)), blocks) * within[-1]
      return np.sqrt(over + np.resize(within, num_rounds))
    workloads.check_dense(num_rounds)
    total, start = 0.0, 0
    for size in blocks:
      noising = self.strategy.noising_matrix(size)
      values = np.zeros((num_rounds, noising.shape[1]))
      values[start : start + size] = noising
      decoder = workload.apply(values)
      total = total + np.einsum('ij,ij->i', decoder, decoder)
      start += size
    return np.sqrt(total)
