"""Buffered linear Toeplitz strategies (BLT)."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import (
  base,
  blt_sums,
  interlaced,
  linear_noise,
  schemas,
  toeplitz,
  workload_error,
  workloads,
)
from fl_dpftrl.mechanisms.sensitivities import endless, independent_blocks, kinds, patterns

_LARGEST_TABLE = 1 << 20  # entries of each

MAX_BUFFERS = 64  # matrices between the decays of so many, and of the inverse, stay small


@dataclasses.dataclass(frozen=True, repr=False)
class BLT(toeplitz.Toeplitz):
  """A Toeplitz C with coefficients c₀ = 1, cᵢ = Σⱼ ωⱼ θⱼ^(i−1).

  The constraints make the coefficients non-negative and non-increasing, for which the
  sensitivity under min-sep has an exact closed form.

  Attributes:
    buffer_decay: θ, each strictly between 0 and 1.
    output_scale: ω, as many, each at least 0, their sum at most 1.

  Source: McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), equation 3 and algorithm 1; Dvijotham et al. 2024.
  """

  buffer_decay: Sequence[float]
  output_scale: Sequence[float]
  family: ClassVar[str] = 'blt'

  def __post_init__(self):
    for name in ('buffer_decay', 'output_scale'):
      values = tuple(float(v) for v in getattr(self, name))
      object.__setattr__(self, name, values)
      if not np.isfinite(values).all():
        raise ValueError(f'{name} must be finite, got {values}')
    if len(self.buffer_decay) > MAX_BUFFERS:
      raise ValueError(
        f'buffer_decay must have at most {MAX_BUFFERS} entries, got {len(self.buffer_decay)}'
      )
    if not 0 < len(self.buffer_decay) == len(self.output_scale):
      raise ValueError(
        'buffer_decay and output_scale must have the same length of at least'
        f' 1, got {len(self.buffer_decay)} and {len(self.output_scale)}'
      )
    if not all(0.0 < decay < 1.0 for decay in self.buffer_decay):
      raise ValueError(f'buffer_decay must lie strictly between 0 and 1, got {self.buffer_decay}')
    if min(self.output_scale) < 0.0 or sum(self.output_scale) > 1.0:
      raise ValueError(
        f'output_scale must be at least 0 and sum to at most 1, got {self.output_scale}'
      )

  @property
  def num_buffers(self) -> int:
    return len(self.buffer_decay)

  def column(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    powers = np.power.outer(np.asarray(self.buffer_decay), np.arange(num_rounds - 1))
    return np.concatenate([[1.0], np.asarray(self.output_scale) @ powers])

  def noising_column(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    inverse = interlaced.chain(self.gaps)
    points = 1.0 - inverse.complements[2::2]
    powers = np.power.outer(points, np.arange(num_rounds - 1))
    return np.concatenate([[1.0], -inverse.inverse_scales @ powers])

  @property
  def gaps(self) -> np.ndarray:
    """The gaps between the decays of C and of its inverse; see `interlaced`."""
    return interlaced.gaps_of(np.asarray(self.buffer_decay), np.asarray(self.output_scale))

  def parameters(self) -> base.Parameters:
    return {'buffer_decay': list(self.buffer_decay), 'output_scale': list(self.output_scale)}

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), algorithm 1."""
    del num_rounds
    update = linear_noise.Add.decaying(self.buffer_decay)
    step = linear_noise.Step(below=np.asarray(self.output_scale), update=update)
    return linear_noise.LinearNoise(self.num_buffers, lambda t: step, period=1)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    """Exact, in closed form, under both schemas.

    Coefficients are non-negative and non-increasing, so the worst pattern is the first rounds,
    as close together as the schema allows.

    Source: McMahan, Xu, Zhang 2024, theorem on min-sep sensitivity of Toeplitz C.
    """
    square, _, _ = blt_sums.SquaredSensitivity(schema)(
      1.0 - np.asarray(self.buffer_decay), np.asarray(self.output_scale)
    )
    return kinds.Sensitivity.from_square(float(square))

  def repeated_sensitivity(self, block_rounds: int, schema: schemas.Schema) -> kinds.Sensitivity:

    @functools.cache
    def squares(count: int) -> np.ndarray:
      """[m]: ‖Σ of `count` columns‖² if m + 1 rows follow the first."""
      column = patterns.repeated(self.column(block_rounds), schema.min_sep, count)
      return np.cumsum(np.square(column))

    bound = independent_blocks.worst_closest(block_rounds, schema, squares)
    return bound or super().repeated_sensitivity(block_rounds, schema)

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    """Returns entries of X as geometric sums of cₛ cₛ₊ₗ for a lag l.

    X[i, i + l] = meets(l) + Σₐ power(a, l) · products(a, n − 1 − i − l). These terms take few
    distinct values, so tables make many entries fast.
    """
    base.check_num_rounds(self, num_rounds)
    terms = list(zip(np.log(np.asarray(self.buffer_decay)), np.asarray(self.output_scale)))

    def meets(lag):
      # Product of the 1 on a diagonal with cₗ; with another 1 if the lag is 0.
      return np.where(lag > 0, sum(s * np.exp(r * (lag - 1)) for r, s in terms), 1.0)

    def products(rate, scale, count):
      return sum(scale * s * np.expm1((rate + r) * count) / np.expm1(rate + r) for r, s in terms)

    def tabulated(function):
      if num_rounds > _LARGEST_TABLE:
        return function
      return function(np.arange(num_rounds)).__getitem__

    on_lag = tabulated(meets)
    buffers = [
      (tabulated(lambda lag, r=r: np.exp(r * lag)), tabulated(functools.partial(products, r, s)))
      for r, s in terms
    ]

    def entries_at(rows, columns):
      lag = np.abs(rows - columns)
      remaining = num_rounds - 1 - np.maximum(rows, columns)
      total = on_lag(lag)
      for power, sums in buffers:
        total = total + power(lag) * sums(remaining)
      return total

    return entries_at

  def endless_gram(self) -> endless.Gram:
    """X(0) = 1 + Σⱼₖ ωⱼ ωₖ / (1 − θⱼ θₖ); X(d) = Σₖ θₖ^(d−1) (ωₖ + θₖ Σⱼ ωⱼ ωₖ / (1 − θⱼ θₖ))."""
    decays, scales = np.asarray(self.buffer_decay), np.asarray(self.output_scale)
    losses = 1.0 - decays
    # 1 − θⱼ θₖ from 1 − θ, without cancellation.
    complements = losses[:, None] + losses - np.multiply.outer(losses, losses)
    sums = scales * (scales / complements).sum(axis=1)
    return endless.Lags(np.array([1.0 + sums.sum()]), decays, scales + decays * sums)

  def error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> workload_error.Error:
    if not workload.is_toeplitz:
      return super().error(num_rounds, workload)
    base.check_num_rounds(self, num_rounds)
    chain = interlaced.chain(self.gaps)
    points, scales = chain.complements[0::2], chain.sum_scales
    errors = []
    for objective in workload_error.OBJECTIVES:
      square, _, _ = blt_sums.SquaredError(num_rounds, objective, workload.momentum)(points, scales)
      errors.append(float(np.sqrt(square)))
    return workload_error.Error(*errors)

  def per_query_error(
    self, num_rounds: int, workload: workloads.Workload = workloads.Workload()
  ) -> np.ndarray:
    if workload.is_toeplitz:
      return super().per_query_error(num_rounds, workload)
    base.check_num_rounds(self, num_rounds)
    workloads.check_round_by_round(num_rounds)
    chain, rates = interlaced.chain(self.gaps), workload.learning_rates(num_rounds)
    squares = blt_sums.schedule_squared_errors(
      chain.complements[0::2], chain.sum_scales, rates, workload.momentum
    )
    return np.sqrt(squares)
