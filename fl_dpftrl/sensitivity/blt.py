"""Sensitivity of BLTs, at a cost that does not grow with the rounds."""

import numpy as np

from fl_dpftrl import participation
from fl_dpftrl import series
from fl_dpftrl.families import blt
from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import dispatch

_LARGEST = 1.0 - 2.0**-53


@dispatch.sensitivity.register
def _(strategy: blt.BLT, schema: participation.MinSep) -> base.Sensitivity:
  # Coefficients of a BLT are non-negative and non-increasing, so the first
  # rounds, as close as the schema allows, are the worst pattern of both schemas
  # (McMahan, Xu, Zhang 2024, theorem on min-sep sensitivity of Toeplitz C).
  square, _, _ = SquaredSensitivity(schema)(
      1.0 - np.asarray(strategy.buffer_decay),
      np.asarray(strategy.output_scale),
  )
  return base.Sensitivity(float(np.sqrt(square)), base.EXACT)


class SquaredSensitivity:
  """sens² of BLTs, with its derivatives: sums of positive terms throughout.

  After participation a = 0, 1, …, until the next, row r + 1 of the sum of C's
  columns is Σ ω θ^r G(a), where G(a) = Σ over c ≤ a of θ^(bc).
  """

  def __init__(self, schema: participation.MinSep):
    self._count = schema.participations
    self._step = schema.min_sep
    self._rows = series.nodes(schema.min_sep if self._count > 1 else 0)
    last = (self._count - 1) * schema.min_sep
    self._last_rows = series.nodes(schema.num_rounds - 1 - last)
    self._before = series.nodes(self._count - 1)

  def __call__(
      self, decays: np.ndarray, scales: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value and derivatives.

    Args:
      decays: 1 − θ, shape [… d].
      scales: ω, of that shape.

    Returns:
      sens², shape […], and its derivatives in θ and in ω, shape [… d].
    """
    # The floor errs upwards: a decay of 0 counts as one of 10⁻¹⁶.
    rates = -np.log1p(-np.minimum(decays, _LARGEST))
    products, of_rates = _products(rates, self._rows)
    last_products, of_last_rates = _products(rates, self._last_rows)
    # Sums over participations but the last, then the last by itself.
    weights = self._before.weights
    sums, slopes = self._geometric(rates, self._before.positions + 1.0)
    last, last_slope = self._geometric(rates, np.array([float(self._count)]))
    pairs = (sums * weights) @ np.swapaxes(sums, -1, -2)
    of_pairs = (slopes * weights) @ np.swapaxes(sums, -1, -2)
    last_pairs = last * np.swapaxes(last, -1, -2)
    of_last_pairs = last_slope * np.swapaxes(last, -1, -2)
    # The 1 of each participation but the first meets what the others left.
    reach = np.exp(-(self._step - 1.0) * rates)
    meets = reach * (sums @ weights)
    of_meets = reach * (slopes @ weights) - (self._step - 1.0) * meets

    matrix = pairs * products + last_pairs * last_products
    of_matrix = (
        of_pairs * products + pairs * of_rates
        + of_last_pairs * last_products + last_pairs * of_last_rates
    )
    through = _apply(matrix, scales)
    value = self._count + np.sum(scales * (2.0 * meets + through), axis=-1)
    in_rates = 2.0 * scales * (of_meets + _apply(of_matrix, scales))
    return value, -in_rates / np.exp(-rates), 2.0 * (meets + through)

  def _geometric(
      self, rates: np.ndarray, counts: np.ndarray
  ) -> tuple[np.ndarray, np.ndarray]:
    """G and its derivative in the rate, shape [… d, counts]."""
    step_rates = self._step * rates[..., None]
    sums = series.power_sum(step_rates, counts)
    return sums, sums * self._step * series.log_slope(step_rates, counts)


def _products(
    rates: np.ndarray, rows: series.Nodes
) -> tuple[np.ndarray, np.ndarray]:
  """Σ over rows of (θⱼ θₗ)^row, [… j, l], and its derivative in rate j."""
  powers = np.exp(-rates[..., None] * rows.positions)
  weighted = np.swapaxes(powers * rows.weights, -1, -2)
  return powers @ weighted, -(powers * rows.positions) @ weighted


def _apply(matrix: np.ndarray, vector: np.ndarray) -> np.ndarray:
  return (matrix @ vector[..., None])[..., 0]
