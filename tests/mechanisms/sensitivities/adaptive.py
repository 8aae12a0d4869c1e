"""Exact δ of a device that comes back by what was released, by a dynamic programme over the loss.

One coordinate, and updates of −1, 0 or 1. The state is the round, the rounds so far with their
signs, and the loss on a grid; the adversary takes the larger value of coming and of staying away.
"""

import functools
import math
import statistics
from collections.abc import Callable, Sequence

import numpy as np

_STEP, _LOW, _HIGH = 0.01, -15.0, 20.0
_PHI = statistics.NormalDist().cdf


def claimed(square: float, sigma: float, epsilon: float) -> float:
  """Returns δ(ε) of √square / σ-GDP."""
  mu = math.sqrt(square) / sigma
  return _PHI(mu / 2 - epsilon / mu) - math.exp(epsilon) * _PHI(-mu / 2 - epsilon / mu)


def delta(
  column: Sequence[float] | Callable[[int, int], float],
  num_rounds: int,
  admits: Callable[[tuple[int, ...], int], bool],
  *,
  sigma: float,
  epsilon: float,
  signs: tuple[int, ...] = (1,),
) -> float:
  """Returns the largest δ(ε) of any adaptive device.

  Args:
    column: first column of a Toeplitz C, shape [num_rounds] at least; or C[t, s] of t and s.
    admits: whether a gate lets a device with these rounds into a round.
    signs: updates that the device may choose.
  """
  entry = column if callable(column) else lambda t, s: column[t - s]
  grid = np.arange(_LOW, _HIGH, _STEP)
  points, weights = np.polynomial.hermite_e.hermegauss(60)
  weights /= weights.sum()

  def expected(values, shift):
    mean, spread = shift**2 / (2.0 * sigma**2), abs(shift) / sigma
    parts = (w * np.interp(grid + mean + spread * x, grid, values) for x, w in zip(points, weights))
    return sum(parts) if shift else values

  @functools.cache
  def value(t, past):
    if t == num_rounds:
      return np.maximum(0.0, 1.0 - np.exp(epsilon - grid))
    choices = [past]
    if admits(tuple(s for s, _ in past), t):
      choices += [(*past, (t, sign)) for sign in signs]
    shifts = [sum(sign * entry(t, s) for s, sign in choice) for choice in choices]
    return functools.reduce(np.maximum, map(expected, (value(t + 1, c) for c in choices), shifts))

  return float(np.interp(0.0, grid, value(0, ())))
