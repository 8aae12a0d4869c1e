"""Buffered linear Toeplitz strategies (BLT)."""

import dataclasses
from typing import Any, ClassVar, Sequence

import numpy as np
import scipy.linalg

from fl_dpftrl.strategies import base
from fl_dpftrl.strategies import interlaced


MAX_BUFFERS = 64
"""Matrices between the decays of so many, and of the inverse, stay small."""


@dataclasses.dataclass(frozen=True)
class BLT:
  """A Toeplitz C with coefficients c₀ = 1, cᵢ = Σⱼ ωⱼ θⱼ^(i−1).

  The constraints make the coefficients non-negative and non-increasing, for
  which the sensitivity under min-sep has an exact closed form.

  Attributes:
    buffer_decay: θ, each strictly between 0 and 1.
    output_scale: ω, as many, each at least 0, their sum at most 1.

  Raises:
    ValueError: where a constraint does not hold.

  Source: McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), equation 3 and algorithm 1;
  Dvijotham et al. 2024.
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
          f'buffer_decay must have at most {MAX_BUFFERS} entries, got'
          f' {len(self.buffer_decay)}'
      )
    if not 0 < len(self.buffer_decay) == len(self.output_scale):
      raise ValueError(
          'buffer_decay and output_scale must have the same length of at least'
          f' 1, got {len(self.buffer_decay)} and {len(self.output_scale)}'
      )
    if not all(0.0 < decay < 1.0 for decay in self.buffer_decay):
      raise ValueError(
          'buffer_decay must lie strictly between 0 and 1, got'
          f' {self.buffer_decay}'
      )
    if min(self.output_scale) < 0.0 or sum(self.output_scale) > 1.0:
      raise ValueError(
          'output_scale must be at least 0 and sum to at most 1, got'
          f' {self.output_scale}'
      )

  @property
  def num_buffers(self) -> int:
    return len(self.buffer_decay)

  @property
  def max_rounds(self) -> int | None:
    return None

  def num_noise_rows(self, num_rounds: int) -> int:
    return num_rounds

  def memory_copies(self, num_rounds: int) -> int:
    del num_rounds
    return self.num_buffers

  def coefficients(self, num_rounds: int) -> np.ndarray:
    """c, the first column of C: shape [num_rounds]."""
    base.check_num_rounds(self, num_rounds)
    powers = np.power.outer(
        np.asarray(self.buffer_decay), np.arange(num_rounds - 1)
    )
    return np.concatenate([[1.0], np.asarray(self.output_scale) @ powers])

  def inverse_coefficients(self, num_rounds: int) -> np.ndarray:
    """The first column of N, C's inverse: shape [num_rounds]."""
    base.check_num_rounds(self, num_rounds)
    inverse = interlaced.chain(self.gaps)
    points = 1.0 - inverse.below_one[2::2]
    powers = np.power.outer(points, np.arange(num_rounds - 1))
    return np.concatenate([[1.0], -inverse.inverse_scales @ powers])

  @property
  def gaps(self) -> np.ndarray:
    """Between the decays of C and of its inverse; see `interlaced`."""
    return interlaced.gaps_of(
        np.asarray(self.buffer_decay), np.asarray(self.output_scale)
    )

  def strategy_matrix(self, num_rounds: int) -> np.ndarray:
    return np.tril(scipy.linalg.toeplitz(self.coefficients(num_rounds)))

  def noising_matrix(self, num_rounds: int) -> np.ndarray:
    return np.tril(scipy.linalg.toeplitz(self.inverse_coefficients(num_rounds)))

  def parameters(self) -> dict[str, Any]:
    return {
        'buffer_decay': list(self.buffer_decay),
        'output_scale': list(self.output_scale),
    }
