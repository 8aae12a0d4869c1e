"""Squared errors of BLTs, at a cost that does not grow with the rounds."""

import numpy as np

from fl_dpftrl import series

_SMALLEST = 1e-300


class SquaredError:
  """Squared error of prefix sums or momentum, with its derivatives.

  B = A C⁻¹ is Toeplitz. Coefficient i of its first column is Σ s · p^i over the
  chain's points p = 1, θ̂₁, …, or with momentum β the same of
  Σ over a ≤ i of p^a β^(i−a). The terms are positive, but for the last where
  its θ̂ is negative.
  """

  def __init__(self, num_rounds: int, objective: str, momentum: float = 0.0):
    pairs = series.nodes(num_rounds // 2)
    # In turns even and odd rounds, so that powers of a negative number are
    # smooth over those of a kind.
    both = np.repeat(2.0 * pairs.positions, 2)
    both[1::2] += 1.0
    weights = np.repeat(pairs.weights, 2)
    if num_rounds % 2:
      both = np.append(both, num_rounds - 1.0)
      weights = np.append(weights, 1.0)
    self._rounds = both
    self._is_odd = np.arange(both.size) % 2 == 1
    self._weights = weights
    if objective == 'rms':
      self._weights = weights * (num_rounds - both) / num_rounds
    self._momentum = momentum

  def __call__(
      self, below_one: np.ndarray, scales: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value and derivatives.

    Args:
      below_one: 1 − p, shape [… d + 1].
      scales: s, of that shape.

    Returns:
      The squared error, shape […], and its derivatives in the points and in the
      scales, shape [… d + 1].
    """
    if self._momentum:
      terms, slopes = self._momentum_terms(below_one)
    else:
      terms, slopes = self._powers(below_one)
    column = (scales[..., None, :] @ terms)[..., 0, :]
    of_column = 2.0 * self._weights * column
    return (
        0.5 * np.sum(of_column * column, axis=-1),
        scales * (slopes @ of_column[..., None])[..., 0],
        (terms @ of_column[..., None])[..., 0],
    )

  def _powers(self, below_one: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """p^i and its derivative in p, shape [… d + 1, rounds]."""
    rates, points = _rates(below_one)[..., None], 1.0 - below_one[..., None]
    before = np.exp(-rates * np.maximum(self._rounds - 1.0, 0.0))  # |p|^(i−1)
    before = np.where((points < 0.0) & ~self._is_odd, -before, before)
    return (
        np.where(self._rounds == 0.0, 1.0, points * before),
        self._rounds * before,
    )

  def _momentum_terms(
      self, below_one: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """Σ over a ≤ i of p^a β^(i−a) and its derivative in p, as `_powers`."""
    rounds, beta = self._rounds, self._momentum
    points = 1.0 - below_one[..., None]
    powers, of_powers = self._powers(below_one)
    # Where p is well below β, (β^(i+1) − p^(i+1)) / (β − p) …
    below = points < 0.5 * beta
    difference = np.where(below, beta - points, 1.0)
    apart = (beta ** (rounds + 1.0) - points * powers) / difference
    of_apart = (apart - powers - points * of_powers) / difference
    # … and else the larger to the power i, times a sum of powers of the ratio.
    rates = np.where(below, 0.0, _rates(below_one)[..., None])
    other = -np.log1p(beta - 1.0)
    ratio = np.maximum(np.abs(rates - other), 1e-30)
    together = np.exp(-np.minimum(rates, other) * rounds) * series.power_sum(
        ratio, rounds + 1.0
    )
    of_ratio = series.log_slope(ratio, rounds + 1.0)
    of_rate = np.where(rates > other, of_ratio, -rounds - of_ratio)
    of_together = -together * of_rate / np.where(below, 1.0, points)
    return (
        np.where(below, apart, together),
        np.where(below, of_apart, of_together),
    )


def _rates(below_one: np.ndarray) -> np.ndarray:
  """−ln |p|."""
  sizes = np.maximum(np.abs(1.0 - below_one), _SMALLEST)
  near = np.minimum(below_one, 0.5)
  return np.where(below_one < 0.5, -np.log1p(-near), -np.log(sizes))
