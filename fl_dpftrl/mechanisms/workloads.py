"""Workloads: linear queries whose error is minimised."""

import dataclasses

import numpy as np
import scipy

from fl_dpftrl.support import checks

MAX_DENSE_ROUNDS = 2**14  # a dense matrix of this size takes 2 GiB
MAX_LISTED_ROUNDS = 2**24  # an array of this length takes 128 MiB
_FRACTION_AT_ENDS = 0.05


def check_dense(num_rounds: int) -> None:
  """Raises ValueError if a matrix with num_rounds columns is too large."""
  checks.whole(num_rounds=num_rounds)
  if num_rounds > MAX_DENSE_ROUNDS:
    raise ValueError(
      f'num_rounds={num_rounds} needs dense matrices of'
      f' {num_rounds**2 / 2**27:.0f} GiB; at most {MAX_DENSE_ROUNDS} rounds are supported here'
    )


def check_round_by_round(num_rounds: int) -> None:
  """Raises ValueError where an array with an entry a round is too large."""
  if num_rounds > MAX_LISTED_ROUNDS:
    raise ValueError(
      f'num_rounds={num_rounds} needs several arrays of'
      f' {num_rounds / 2**27:.3g} GiB; at most {MAX_LISTED_ROUNDS} rounds are supported here'
    )


@dataclasses.dataclass(frozen=True)
class Workload:
  """Workload of the models of SGD; without momentum these are prefix sums.

  Attributes:
    momentum: β of the server optimiser, at least 0 and below 1; 0 for none.
    warmup_fraction: fraction of the rounds in which the learning rate grows linearly to its
      plateau, from 5 % of it.
    cooldown_fraction: fraction of the rounds in which it falls again, to as little.

  Source: Denisov et al. 2022, section 5: A = M(η) M(β).
  """

  momentum: float = 0.0
  warmup_fraction: float = 0.0
  cooldown_fraction: float = 0.0

  def __post_init__(self):
    if not (checks.is_number(self.momentum) and 0.0 <= self.momentum < 1.0):
      raise ValueError(f'momentum must be at least 0 and below 1, got {self.momentum!r}')
    warmup, cooldown = self.warmup_fraction, self.cooldown_fraction
    checks.between(0.0, 1.0, warmup_fraction=warmup, cooldown_fraction=cooldown)
    if warmup + cooldown > 1.0:
      raise ValueError(
        'warmup_fraction and cooldown_fraction must sum to at most 1, got'
        f' {warmup!r} + {cooldown!r}'
      )

  @property
  def name(self) -> str:
    return 'momentum' if self.momentum else 'prefix'

  @property
  def is_toeplitz(self) -> bool:
    return not self.warmup_fraction and not self.cooldown_fraction

  @property
  def is_prefix_sums(self) -> bool:
    return not self.momentum and self.is_toeplitz

  def learning_rates(self, num_rounds: int) -> np.ndarray:
    """Returns η relative to its plateau, shape [num_rounds], from 0.05 to 1.

    Raises:
      ValueError: if num_rounds is below 1.
    """
    checks.whole(num_rounds=num_rounds)
    rates = np.ones(num_rounds)
    warm, cool = (round(f * num_rounds) for f in (self.warmup_fraction, self.cooldown_fraction))
    rates[:warm] = np.linspace(_FRACTION_AT_ENDS, 1.0, warm, endpoint=False)
    rates[num_rounds - cool :] = np.linspace(_FRACTION_AT_ENDS, 1.0, cool, endpoint=False)[::-1]
    return rates

  def matrix(self, num_rounds: int) -> np.ndarray:
    """Returns A, lower triangular: row t is the model after round t of momentum SGD.

    Raises:
      ValueError: if num_rounds is below 1 or too large for a dense matrix.
    """
    check_dense(num_rounds)
    lag = np.arange(num_rounds)[:, None] - np.arange(num_rounds)
    velocity = np.where(lag >= 0, np.power(float(self.momentum), np.abs(lag)), 0.0)
    velocity *= self.learning_rates(num_rounds)[:, None]
    return np.cumsum(velocity, axis=0)

  def apply(self, values: np.ndarray) -> np.ndarray:
    """Returns A @ values, along the first axis."""
    if self.momentum:
      values = scipy.signal.lfilter([1.0], [1.0, -self.momentum], values, axis=0)
    if not self.is_toeplitz:
      values = (values.T * self.learning_rates(len(values))).T
    return np.cumsum(values, axis=0)

  def apply_transpose(self, values: np.ndarray) -> np.ndarray:
    """Returns Aᵀ @ values, along the first axis."""
    values = np.cumsum(values[::-1], axis=0)
    if not self.is_toeplitz:
      values = (values.T * self.learning_rates(len(values))[::-1]).T
    if self.momentum:
      values = scipy.signal.lfilter([1.0], [1.0, -self.momentum], values, axis=0)
    return values[::-1]


def warmup_cooldown(
  server_learning_rate: float,
  num_rounds: int,
  *,
  warmup_fraction: float = 0.15,
  cooldown_fraction: float = 0.25,
) -> np.ndarray:
  """Returns learning rates with linear warm-up, plateau and linear cool-down.

  The rate grows from 5 % to 100 % of server_learning_rate over the first warmup_fraction of the
  rounds. It falls back to 5 % over the last cooldown_fraction.

  Args:
    server_learning_rate: rate of the plateau, above 0.
    num_rounds: n.
    warmup_fraction: fraction of the rounds, from 0 to 1.
    cooldown_fraction: fraction of the rounds, from 0 to 1.

  Returns:
    The rate of each round, float32 of shape [num_rounds].

  Raises:
    ValueError: if the rate is not positive, num_rounds is below 1, or the fractions are
      negative or together above 1.

  Source: Choquette-Choo et al. 2023 (BandMF), experiments; McMahan et al. 2024.
  """
  if not (np.isfinite(server_learning_rate) and server_learning_rate > 0):
    raise ValueError(f'server_learning_rate must be positive, got {server_learning_rate!r}')
  schedule = Workload(warmup_fraction=warmup_fraction, cooldown_fraction=cooldown_fraction)
  return (server_learning_rate * schedule.learning_rates(num_rounds)).astype(np.float32)
