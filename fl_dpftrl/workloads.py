"""Workloads: the linear queries whose noise is to be small."""

import dataclasses
import math

import numpy as np


MAX_DENSE_ROUNDS = 2**14  # a dense matrix of so many rounds takes 2 GiB


def check_dense(num_rounds: int) -> None:
  """Raises ValueError where a matrix of num_rounds columns is too large."""
  if num_rounds < 1:
    raise ValueError(f'num_rounds must be at least 1, got {num_rounds!r}')
  if num_rounds > MAX_DENSE_ROUNDS:
    raise ValueError(
        f'num_rounds={num_rounds} needs dense matrices of'
        f' {num_rounds**2 / 2**27:.0f} GiB; at most {MAX_DENSE_ROUNDS} rounds'
        ' are supported here'
    )


def prefix_sums(num_rounds: int) -> np.ndarray:
  """Lower-triangular ones: row t is the sum of rounds 0 … t.

  Raises:
    ValueError: where num_rounds is below 1 or too many for a dense matrix.
  """
  check_dense(num_rounds)
  return np.tri(num_rounds)


def momentum(
    num_rounds: int,
    momentum: float,  # pylint: disable=redefined-outer-name
    learning_rates: np.ndarray | None = None,
) -> np.ndarray:
  """A = M(η) M(β): row t is the model after round t of SGD with momentum.

  Args:
    num_rounds: n.
    momentum: β, at least 0 and below 1; 0 leaves plain SGD.
    learning_rates: η, shape [num_rounds]; None for 1 in every round.

  Returns:
    Shape [num_rounds, num_rounds], lower triangular.

  Raises:
    ValueError: where an argument is outside its range or has another shape.

  Source: Denisov et al. 2022, section 5 (momentum and learning-rate schedules).
  """
  check_dense(num_rounds)
  if not 0.0 <= momentum < 1.0:
    raise ValueError(
        f'momentum must be at least 0 and below 1, got {momentum!r}'
    )
  lag = np.arange(num_rounds)[:, None] - np.arange(num_rounds)
  velocity = np.where(lag >= 0, np.power(float(momentum), np.abs(lag)), 0.0)
  if learning_rates is not None:
    rates = np.asarray(learning_rates, dtype=np.float64)
    if rates.shape != (num_rounds,) or not np.isfinite(rates).all():
      raise ValueError(
          f'learning_rates must be {num_rounds} finite numbers, got shape'
          f' {rates.shape}'
      )
    velocity *= rates[:, None]
  return np.cumsum(velocity, axis=0)


@dataclasses.dataclass(frozen=True)
class Workload:
  """What a strategy is judged by: prefix sums, or SGD with momentum.

  Attributes:
    momentum: β of the server optimiser at a constant rate; 0 for prefix sums.

  Raises:
    ValueError: where momentum is not at least 0 and below 1.
  """

  momentum: float = 0.0

  def __post_init__(self):
    if not (
        isinstance(self.momentum, (int, float))
        and math.isfinite(self.momentum)
        and 0.0 <= self.momentum < 1.0
    ):
      raise ValueError(
          f'momentum must be at least 0 and below 1, got {self.momentum!r}'
      )

  @property
  def name(self) -> str:
    return 'momentum' if self.momentum else 'prefix'

  def matrix(self, num_rounds: int) -> np.ndarray:
    """A, of shape [num_rounds, num_rounds]."""
    return momentum(num_rounds, self.momentum)
