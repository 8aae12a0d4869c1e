"""The decays of a BLT and of its inverse, given by the gaps between them.

The decays of C and of C⁻¹ alternate: 1 > θ₁ > θ̂₁ > θ₂ > θ̂₂ > … > θ_d > θ̂_d. Every difference
between two of them is a sum of gaps. Every coefficient of C, of C⁻¹ and of its running sums is a
product of differences. So nothing cancels, even if two decays nearly coincide or nearly reach 1.

Arrays may have further leading axes, for several BLTs at once.
"""

import functools
from typing import NamedTuple

import numpy as np

_NEGLIGIBLE = 1e-250  # a scale that changes nothing within any number of rounds
_BISECTIONS = 80


class DecayChain(NamedTuple):
  """C, C⁻¹ and its running sums as sums of geometric series.

  Coefficient i ≥ 1 of C is Σ scales · θ^(i−1), that of C⁻¹ is −Σ inverse_scales · θ̂^(i−1), and
  the sum of the latter from 0 to i is Σ sum_scales · p^i over the points p = 1, θ̂₁, …, θ̂_d.
  Scales are positive.

  Attributes:
    complements: 1 − p of the points 1, θ₁, θ̂₁, …, shape [… 2d + 1].
    distances: distances between these points, shape […, 2d + 1, 2d + 1].
    scales: ω, shape [… d].
    sum_scales: scales of the running sums, shape [… d + 1].
  """

  complements: np.ndarray
  distances: np.ndarray
  scales: np.ndarray
  sum_scales: np.ndarray

  @property
  def decays(self) -> np.ndarray:
    """1 − θ, shape [… d]."""
    return self.complements[..., 1::2]

  @property
  def inverse_scales(self) -> np.ndarray:
    """Scales of C⁻¹, shape [… d]."""
    return self.sum_scales[..., 1:] * self.complements[..., 2::2]


def chain(gaps: np.ndarray) -> DecayChain:
  """Returns the chain with these gaps, shape [… 2d], the first one below 1."""
  size = gaps.shape[-1] + 1
  between = _between(size).reshape(size * size, size - 1)
  distances = (gaps @ between.T).reshape(gaps.shape[:-1] + (size, size))
  logs = np.log(distances + np.eye(size))
  values = np.exp((_exponents(size) * logs).sum(axis=-1))
  return DecayChain(distances[..., 0, :], distances, values[..., 1::2], values[..., 0::2])


def gradient(
  this: DecayChain,
  d_decays: np.ndarray,
  d_scales: np.ndarray,
  d_points: np.ndarray,
  d_sum_scales: np.ndarray,
) -> np.ndarray:
  """Returns the gradient of a function of a chain in its gaps, shape [… 2d].

  Args:
    d_decays, d_scales: derivatives in θ and in ω, shape [… d].
    d_points, d_sum_scales: those in points, of which 1 stays, and in sum_scales, [… d + 1].
  """
  size = this.complements.shape[-1]
  d_logs, d_places = np.empty((2,) + this.complements.shape)
  d_logs[..., 1::2] = d_scales * this.scales
  d_logs[..., 0::2] = d_sum_scales * this.sum_scales
  d_distances = d_logs[..., None] * _exponents(size) / (this.distances + np.eye(size))
  d_places[..., 1::2] = d_decays
  d_places[..., 0::2] = d_points
  flat = d_distances.reshape(d_logs.shape[:-1] + (size * size,))
  # A gap moves all points after it towards 0.
  d_shifts = np.cumsum(d_places[..., :0:-1], axis=-1)[..., ::-1]
  return flat @ _between(size).reshape(size * size, size - 1) - d_shifts


@functools.cache
def _between(size: int) -> np.ndarray:
  """[l, m, g]: 1 where the gap after point g lies between points l and m."""
  index = np.arange(size)
  low = np.minimum.outer(index, index)[:, :, None]
  high = np.maximum.outer(index, index)[:, :, None]
  gap = np.arange(size - 1)
  return ((low <= gap) & (gap < high)).astype(np.float64)


@functools.cache
def _exponents(size: int) -> np.ndarray:
  """[l, m]: the power of |point l − point m| in the scale at point l.

  The scales are residues of C = Π (1 − θ̂z) / (1 − θz), which the point 1 does not enter, and
  of 1 / ((1 − z) C).
  """
  parity = np.arange(size) % 2
  powers = np.where(parity[:, None] == parity, -1.0, 1.0) + np.eye(size)
  powers[1::2, 0] = 0.0
  return powers


def gaps_of(decay: np.ndarray, scale: np.ndarray) -> np.ndarray:
  """Returns the gaps, [2e], of the BLT with θ and ω, [d]; merges equal θ and drops ω = 0."""
  decay, place = np.unique(-np.asarray(decay), return_inverse=True)
  decay, scale = -decay, np.bincount(place.reshape(-1), scale, decay.size)
  decay, scale = decay[scale > _NEGLIGIBLE], scale[scale > _NEGLIGIBLE]
  if not decay.size:
    return np.empty(0)
  above, below = _neighbours(decay, scale)
  gaps = np.empty(2 * decay.size)
  gaps[0] = 1.0 - decay[0]
  gaps[1::2] = above
  gaps[2::2] = below[:-1]
  return gaps


def _neighbours(decay: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns θⱼ − θ̂ⱼ and θ̂ⱼ − θⱼ₊₁, to full relative precision.

  The θ̂ solve 1 + Σ ω / (x − θ) = 0, whose left side falls between neighbouring poles. The
  search for each root uses its distance from the nearer pole, on a logarithmic scale.
  """
  widths = np.append(decay[:-1] - decay[1:], np.inf)
  away = decay[:, None] - decay  # [pole, l]
  middle = 0.5 * widths[:-1, None]
  # Which pole is nearer: below the middle of its interval the sum is positive only where the
  # root lies above it.
  values = 1.0 + np.sum(scale / (away[:-1] - middle), axis=1)
  from_above = np.append(values > 0.0, True)
  origin = np.arange(decay.size) + ~from_above
  sign = np.where(from_above, -1.0, 1.0)
  low = np.full(decay.size, 1e-300)
  high = np.append(middle[:, 0], scale.sum() * (1.0 + 2.0**-50))
  for _ in range(_BISECTIONS):
    trial = np.sqrt(low) * np.sqrt(high)
    rest = away[origin] + (sign * trial)[:, None]
    rises = -sign * (1.0 + np.sum(scale / rest, axis=1))
    low = np.where(rises < 0.0, trial, low)
    high = np.where(rises < 0.0, high, trial)
  mean = np.sqrt(low) * np.sqrt(high)
  other = widths - mean
  return (np.where(from_above, mean, other), np.where(from_above, other, mean))
