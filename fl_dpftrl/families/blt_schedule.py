"""Squared errors of BLTs under a learning rate schedule.

The rows of B are then not shifts of each other. One pass over the rounds computes their norms,
and carries a few sums for each decay.
"""

import numpy as np

MAX_ROUNDS = 2**24  # in 2 GiB for four buffers
_IMAGINARY = 1e-40
_SMALLEST = 1e-300


def check_num_rounds(num_rounds: int) -> None:
  """Raises ValueError for more rounds than one pass has memory for."""
  if num_rounds > MAX_ROUNDS:
    raise ValueError(
      f'num_rounds={num_rounds} is too many for a learning-rate schedule:'
      f' BLTs with one are supported up to {MAX_ROUNDS} rounds'
    )


def squared_errors(
  below_one: np.ndarray, scales: np.ndarray, learning_rates: np.ndarray, momentum: float = 0.0
) -> np.ndarray:
  """Squared norm of each row of B = A C⁻¹.

  With Y the result at a constant rate of 1, the noise in model t is ηₜ Yₜ − Hₜ after summation
  by parts, with Hₜ = Σ over u < t of (ηᵤ₊₁ − ηᵤ) Yᵤ. Variances follow from Cov(Hₜ, Yₜ), which
  filters carry from round to round.

  Args:
    below_one: 1 − p for the points of a chain, shape [d + 1].
    scales: scales of its running sums, shape [d + 1]. Both may be complex with small imaginary
      parts; the result is an analytic function of them.
    learning_rates: η, shape [n].
    momentum: β.

  Returns:
    Shape [n].
  """
  from scipy import signal

  powers = _powers(below_one, learning_rates.size)
  column = scales @ powers
  if momentum:
    column = signal.lfilter([1.0], [1.0, -momentum], column)
  variances = np.cumsum(column * column)
  steps = np.diff(learning_rates)
  # Cov(Hₜ, aₜ) for the filters a of Y, one for each point, and for Y itself.
  covariance = np.zeros_like(column)
  for point, scale, power in zip(1.0 - below_one, scales, powers):
    moved = steps * np.cumsum(column * power)[:-1]
    covariance[1:] += (scale * point) * signal.lfilter([1.0], [1.0, -point], moved)
  if momentum:
    covariance[1:] += momentum * steps * variances[:-1]
    covariance = signal.lfilter([1.0], [1.0, -momentum], covariance)
  of_h = np.zeros_like(column)
  of_h[1:] = np.cumsum(steps * (steps * variances[:-1] + 2.0 * covariance[:-1]))
  return learning_rates * (learning_rates * variances - 2.0 * covariance) + of_h


class SquaredError:
  """The counterpart of `blt_sums.SquaredError` for a learning rate schedule.

  The largest error is smoothed to a power mean. Derivatives come from steps in an imaginary
  direction, which are exact to rounding.
  """

  def __init__(
    self, learning_rates: np.ndarray, objective: str, momentum: float = 0.0, power: float = 64.0
  ):
    self._learning_rates = learning_rates
    self._power = 1.0 if objective == 'rms' else power
    self._momentum = momentum

  def __call__(
    self, below_one: np.ndarray, scales: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns value and derivatives, as `blt_sums.SquaredError` does."""
    size = below_one.shape[-1]
    values = np.empty(below_one.shape[:-1])
    of_points, of_scales = np.zeros((2,) + below_one.shape)
    for i in np.ndindex(values.shape):
      arguments = np.concatenate([below_one[i], scales[i]])
      values[i] = self._value(arguments).real
      for j in range(1, 2 * size):
        moved = arguments.astype(np.complex128)
        moved[j] += 1j * _IMAGINARY
        slope = self._value(moved).imag / _IMAGINARY
        if j < size:
          of_points[i + (j,)] = -slope
        else:
          of_scales[i + (j - size,)] = slope
    return values, of_points, of_scales

  def _value(self, arguments: np.ndarray) -> np.complex128:
    below_one, scales = np.split(arguments, 2)
    squares = squared_errors(below_one, scales, self._learning_rates, self._momentum)
    largest = squares.real.max()
    mean = np.mean((squares / largest) ** self._power)
    return largest * mean ** (1.0 / self._power)


def _powers(below_one: np.ndarray, count: int) -> np.ndarray:
  """p^i, shape [d + 1, count]."""
  points = 1.0 - below_one
  negative = points.real < 0.0
  sizes = np.where(negative, -points, points)
  sizes = np.where(np.abs(sizes) < _SMALLEST, _SMALLEST, sizes)
  near_one = below_one.real < 0.5
  logs = np.where(near_one, np.log1p(-np.where(near_one, below_one, 0.0)), np.log(sizes))
  powers = np.exp(np.multiply.outer(logs, np.arange(count)))
  powers[negative, 1::2] *= -1.0
  return powers
