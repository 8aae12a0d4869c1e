"""Squared sensitivities and errors of BLTs, at a cost independent of n.

Both come with their derivatives, for the optimiser.
"""

import numpy as np

from fl_dpftrl import series
from fl_dpftrl.participation import schemas

_LARGEST = 1.0 - 2.0**-53
_SMALLEST = 1e-300


class SquaredSensitivity:
  """sens² of BLTs and its derivatives, as sums of positive terms only.

  After participation a = 0, 1, …, until the next, row r + 1 of the sum of C's columns is Σ ω
  θ^r G(a), where G(a) = Σ over c ≤ a of θ^(bc).
  """

  def __init__(self, schema: schemas.MinSep):
    self._count = schema.participations
    self._step = schema.min_sep
    self._rows = series.nodes(schema.min_sep if self._count > 1 else 0)
    last = (self._count - 1) * schema.min_sep
    self._last_rows = series.nodes(schema.num_rounds - 1 - last)
    self._before = series.nodes(self._count - 1)

  def __call__(
    self, decays: np.ndarray, scales: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns value and derivatives.

    Args:
      decays: 1 − θ, shape [… d].
      scales: ω, shape [… d].

    Returns:
      sens², shape […], and its derivatives in θ and in ω, shape [… d].
    """
    # The floor errs upwards: a decay of 0 counts as 10⁻¹⁶.
    rates = -np.log1p(-np.minimum(decays, _LARGEST))
    products, of_rates = _products(rates, self._rows)
    last_products, of_last_rates = _products(rates, self._last_rows)
    # Sums over all participations except the last, then the last one's own.
    weights = self._before.weights
    sums, slopes = self._geometric(rates, self._before.positions + 1.0)
    last, last_slope = self._geometric(rates, np.array([float(self._count)]))
    pairs = (sums * weights) @ np.swapaxes(sums, -1, -2)
    of_pairs = (slopes * weights) @ np.swapaxes(sums, -1, -2)
    last_pairs = last * np.swapaxes(last, -1, -2)
    of_last_pairs = last_slope * np.swapaxes(last, -1, -2)
    # Cross terms between the leading 1 of each participation and the tails of earlier ones.
    reach = np.exp(-(self._step - 1.0) * rates)
    meets = reach * (sums @ weights)
    of_meets = reach * (slopes @ weights) - (self._step - 1.0) * meets

    matrix = pairs * products + last_pairs * last_products
    of_matrix = (
      of_pairs * products
      + pairs * of_rates
      + of_last_pairs * last_products
      + last_pairs * of_last_rates
    )
    through = _apply(matrix, scales)
    value = self._count + np.sum(scales * (2.0 * meets + through), axis=-1)
    in_rates = 2.0 * scales * (of_meets + _apply(of_matrix, scales))
    return value, -in_rates / np.exp(-rates), 2.0 * (meets + through)

  def _geometric(self, rates: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """G and its derivative in the rate, shape [… d, counts]."""
    step_rates = self._step * rates[..., None]
    sums = series.power_sum(step_rates, counts)
    return sums, sums * self._step * series.log_slope(step_rates, counts)


class SquaredError:
  """Squared error of prefix sums or momentum, with its derivatives.

  B = A C⁻¹ is Toeplitz. For prefix sums, coefficient i of its first column is Σ s · p^i over
  the chain's points p = 1, θ̂₁, …. With momentum β, p^i becomes Σ over a ≤ i of p^a β^(i−a).
  The terms are positive, except for the last if its θ̂ is negative.
  """

  def __init__(self, num_rounds: int, objective: str, momentum: float = 0.0):
    pairs = series.nodes(num_rounds // 2)
    # Even and odd rounds separately: powers of a negative number are smooth over each of the
    # two.
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
    """Returns value and derivatives.

    Args:
      below_one: 1 − p, shape [… d + 1].
      scales: s, shape [… d + 1].

    Returns:
      The squared error, shape […], and its derivatives in the points and in the scales, shape
      [… d + 1].
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
    return (np.where(self._rounds == 0.0, 1.0, points * before), self._rounds * before)

  def _momentum_terms(self, below_one: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ over a ≤ i of p^a β^(i−a) and its derivative in p, as `_powers`."""
    rounds, beta = self._rounds, self._momentum
    points = 1.0 - below_one[..., None]
    powers, of_powers = self._powers(below_one)
    # Where p is well below β, (β^(i+1) − p^(i+1)) / (β − p) …
    below = points < 0.5 * beta
    difference = np.where(below, beta - points, 1.0)
    apart = (beta ** (rounds + 1.0) - points * powers) / difference
    of_apart = (apart - powers - points * of_powers) / difference
    # … else the larger to the power i, times a sum of powers of the ratio.
    rates = np.where(below, 0.0, _rates(below_one)[..., None])
    other = -np.log1p(beta - 1.0)
    ratio = np.maximum(np.abs(rates - other), 1e-30)
    together = np.exp(-np.minimum(rates, other) * rounds) * series.power_sum(ratio, rounds + 1.0)
    of_ratio = series.log_slope(ratio, rounds + 1.0)
    of_rate = np.where(rates > other, of_ratio, -rounds - of_ratio)
    of_together = -together * of_rate / np.where(below, 1.0, points)
    return (np.where(below, apart, together), np.where(below, of_apart, of_together))


def _rates(below_one: np.ndarray) -> np.ndarray:
  """−ln |p|."""
  sizes = np.maximum(np.abs(1.0 - below_one), _SMALLEST)
  near = np.minimum(below_one, 0.5)
  return np.where(below_one < 0.5, -np.log1p(-near), -np.log(sizes))


def _products(rates: np.ndarray, rows: series.Nodes) -> tuple[np.ndarray, np.ndarray]:
  """Σ over rows of (θⱼ θₗ)^row, [… j, l], and its derivative in rate j."""
  powers = np.exp(-rates[..., None] * rows.positions)
  weighted = np.swapaxes(powers * rows.weights, -1, -2)
  return powers @ weighted, -(powers * rows.positions) @ weighted


def _apply(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
  return (matrix @ vector[..., None])[..., 0]
