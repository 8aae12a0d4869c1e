"""Noise that subtracts a share of the row of Z before (DP-λCGD)."""

import dataclasses
import math
from typing import ClassVar

import numpy as np

from fl_dpftrl.mechanisms import base, linear_noise, schemas, toeplitz
from fl_dpftrl.mechanisms.sensitivities import endless, kinds
from fl_dpftrl.mechanisms.sensitivities import toeplitz_columns as sensitivities


@dataclasses.dataclass(frozen=True, repr=False)
class LambdaCGD(toeplitz.Toeplitz):
  """Row t of noise is z[t] − λ z[t − 1], and C[t, j] = λ^(t − j).

  The earlier row of Z is drawn again, so no vector is kept between rounds and a round costs two
  draws.

  Attributes:
    decay: λ, 0 to 1; 0 is independent noise.

  Source: DP-λCGD, arXiv 2601.22334.
  """

  decay: float
  family: ClassVar[str] = 'lambda_cgd'

  def __post_init__(self):
    base.keep_number(self, 'decay', 0.0, 1.0)

  def column(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    return self.decay ** np.arange(num_rounds)

  def noising_column(self, num_rounds: int) -> np.ndarray:
    base.check_num_rounds(self, num_rounds)
    return toeplitz.padded(np.array([1.0, -self.decay]), num_rounds)

  def noise(self, num_rounds: int | None = None) -> linear_noise.LinearNoise:
    """The row of Z, and the one before it drawn again."""
    del num_rounds
    first = linear_noise.Step(norm=1.0)
    later = linear_noise.Step(draws=(-self.decay, 1.0), earlier=1, norm=math.hypot(1.0, self.decay))
    return linear_noise.LinearNoise(0, lambda t: later if t else first, period=1, settles=1)

  def sensitivity(self, schema: schemas.Schema) -> kinds.Sensitivity:
    """Exact: columns of C are non-negative and non-increasing.

    Source: Kalinin and Lampert 2024 (Banded Square Root), theorem 2.
    """
    square, _ = sensitivities.earliest_square(self.column(schema.num_rounds), schema)
    return kinds.Sensitivity.from_square(square)

  def gram_entries(self, num_rounds: int) -> kinds.Entries:
    """Sums λ^(2 s + lag) over the rows s that both columns reach."""
    base.check_num_rounds(self, num_rounds)
    sums = np.cumsum(self.decay ** (2 * np.arange(num_rounds)))
    return lambda rows, columns: (
      self.decay ** np.abs(rows - columns) * sums[num_rounds - 1 - np.maximum(rows, columns)]
    )

  def endless_gram(self) -> endless.Gram:
    """X(d) = λ^d / (1 − λ²)."""
    if self.decay == 1.0:
      raise ValueError('decay=1 has no bound on a device without a last round; give less than 1')
    square = 1.0 / ((1.0 - self.decay) * (1.0 + self.decay))
    scales = np.array([self.decay * square])
    return endless.Lags(np.array([square]), np.array([self.decay]), scales)
