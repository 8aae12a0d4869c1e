"""ε of secret bins, without coins: a bound by Fourier transforms.

The log likelihood ratios of the bins are h − diag(G)/2 with h ~ N(0, G), where G_ij is
m_iᵀ|C|ᵀ|C|m_j/σ² and m_i marks the rounds of bin i. With L = (1/b) Σ_i exp(h_i − G_ii/2), a run is
(ε, δ)-DP for zero-out adjacency if E(L − e^ε)⁺ ≤ δ ("present") and E(1 − e^ε L)⁺ ≤ δ ("absent"),
however updates follow from earlier releases and from the bin. Every entry of G may be enlarged,
and a part of the bin revealed.

Revealed here: one of the b classes {r, r + R, …, r + (m − 1)R} mod b with R = ⌊b/m⌋, drawn
uniformly; each bin is in m of them. c is the largest entry of G between two bins of a class, c + d
the largest on its diagonal: c 11ᵀ + d I dominates, and L becomes exp(N(−c/2, c)) times the mean of
m independent lognormal variables X of mean 1. Any m is valid: ε is made small over some of them.

The law of Σ X is computed on a grid. All that is replaced is replaced by more:

- In each cell the mass of X moves to both ends and keeps its mean: larger in convex order, and both
  integrands are convex in each X.
- X beyond the grid counts as infinite loss; so does a sum beyond it, by a Chernoff bound. Sums that
  wrap around are counted twice.
- Transforms are in extended precision. Their error in the 2-norm, at most 8 u log₂ N of a
  transform's (Higham 2002, theorem 24.2), is added. All else has relative errors far below
  `_SLACK`.

docs/decisions/secret-participation.md has the theorem, and what was checked.
"""

import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from fl_dpftrl.participation.accounting import gaussian, sampled_gaussian

_GRID, _FIRST_GRID = 2**15, 2**12  # cells of a sum, and of X where the reach of a sum is estimated
_BEYOND = 1e-4  # share of δ that may lie beyond the grid, about
_SLACK = 1e-9  # relative, on δ and on ε
_TRANSFORM = 8.0 * float(np.finfo(np.longdouble).eps)
_WIDEST = 200.0  # variance of ln X, whose ends float64 must hold; beyond it nothing is amplified
_TILTS = np.geomspace(1e-2, 1e2, 30)  # of Chernoff bounds, over the length of the grid of X


def epsilon(gram: np.ndarray, delta: float) -> float:
  """Returns ε at δ of bins with this G, never too small; at most that without amplification."""
  gaussian.check_delta(delta)
  best, chosen = _best_class(gram, delta)
  others = absent_epsilon(gram, delta)
  if others > best and chosen is not None and chosen.delta(best, absent=True) > delta:
    others = min(others, chosen.epsilon(others, absent=True))
    return max(best, others)
  return best


def absent_epsilon(gram: np.ndarray, delta: float) -> float:
  """Returns ε at δ of `absent` only, by Jensen's inequality: that of one Gaussian, and a shift."""
  mean = gram.mean()
  shift = (gram.diagonal().mean() - mean) / 2.0
  return (gaussian.epsilon(_multiplier(mean), delta) + max(shift, 0.0)) * (1.0 + _SLACK)


def _multiplier(square: float) -> float:
  return (1.0 - 1e-12) / math.sqrt(square)


def _best_class(gram: np.ndarray, delta: float) -> tuple[float, '_Law | None']:
  """Returns a small ε of `present`, and the law that has it; None without amplification."""
  best, chosen = gaussian.epsilon(_multiplier(gram.diagonal().max()), delta), None
  sizes = [2, 3]
  while sizes[-1] < len(gram):
    sizes.append(sizes[-1] * (3 if sizes[-1] % 3 else 4) // (2 if sizes[-1] % 3 else 3))
  low = at = 1
  for high in (*(size for size in sizes if size < len(gram)), len(gram)):
    law = _law(gram, high, delta)
    value = best if law is None else law.epsilon(best, absent=False)
    if value >= best and chosen is not None:
      break
    if value < best:
      best, chosen, low, at = value, law, at, high
  while high - low > 2 and chosen is not None:
    probe = (at + (high if high - at > at - low else low)) // 2
    law = _law(gram, probe, delta)
    value = best if law is None else law.epsilon(best, absent=False)
    if value < best:
      best, chosen = value, law
      low, at, high = (at, probe, high) if probe > at else (low, probe, at)
    else:
      low, high = (low, probe) if probe > at else (probe, high)
  return best, chosen


def _law(gram: np.ndarray, size: int, delta: float) -> '_Law | None':
  """Returns the law of classes of this many bins; None of one, or where float64 cannot hold X."""
  if size < 2:
    return None
  between, rest = _spread(gram, size)
  return _Law(between, rest, size, delta) if rest < _WIDEST else None


def _spread(gram: np.ndarray, size: int) -> tuple[float, float]:
  """Returns c and d over all cyclic classes of this many bins, those that wrap around included."""
  apart, here = len(gram) // size, np.arange(len(gram))
  between = max(float(gram[here, (here + k * apart) % len(gram)].max()) for k in range(1, size))
  most = max(float(gram.diagonal().max()), between)
  return between, max(most - between, 1e-6 * most)


class _Law:
  """Law of the mean of m lognormals on a grid; of `present` with one of them size-biased."""

  def __init__(self, c: float, d: float, size: int, delta: float, grid: int = _GRID):
    self._mu, self._d, self._size, self._grid = math.sqrt(c), d, size, grid
    self._target = delta
    small = _BEYOND * delta
    # Beyond it, and beyond it in any of the others, there is less than that.
    end = math.exp(d / 2.0 - math.sqrt(d) * float(scipy.special.ndtri(small / size)))
    first = end / _FIRST_GRID
    masses = self._masses(_FIRST_GRID, first)
    reach = self._least(masses, first, lambda moment, tilt: (moment - math.log(small)) / tilt)
    self._step = reach / grid
    cells = min(grid - 1, math.ceil(end / self._step))
    self._x = self._masses(cells, self._step)

  def epsilon(self, most: float, *, absent: bool) -> float:
    """Returns ε in one direction; `most` where it is no smaller."""
    excess = lambda value: math.log(self.delta(value, absent=absent) / self._target)
    if excess(most) > 0.0:
      return most
    if excess(0.0) <= 0.0:
      return 0.0
    root, step = scipy.optimize.brentq(excess, 0.0, most, xtol=1e-6 * most), 1e-6 * most
    while excess(root) > 0.0:
      root, step = root + step, 2.0 * step
    return min(root * (1.0 + _SLACK), most)

  def delta(self, epsilon: float, *, absent: bool) -> float:
    """Returns an upper bound on δ at ε in one direction."""
    masses, error, lost = self._absent if absent else self._present
    losses = epsilon + self._logs if absent else epsilon - self._logs[1:]
    if self._mu:
      each = np.exp(sampled_gaussian.log_delta(self._mu, losses))
    else:
      each = -np.expm1(np.minimum(losses, 0.0))
    within = float(masses[len(masses) - len(each) :] @ each)
    return within * (1.0 + _SLACK) + error * float(np.linalg.norm(each)) + lost

  @functools.cached_property
  def _logs(self) -> np.ndarray:
    """Logarithm of the mean in each cell."""
    with np.errstate(divide='ignore'):
      return np.log(np.arange(self._grid) * (self._step / self._size))

  @functools.cached_property
  def _present(self) -> tuple[np.ndarray, float, float]:
    return self._sums(self._x * self._step * np.arange(len(self._x)), biased=True)

  @functools.cached_property
  def _absent(self) -> tuple[np.ndarray, float, float]:
    return self._sums(self._x, biased=False)

  def _sums(self, one: np.ndarray, *, biased: bool) -> tuple[np.ndarray, float, float]:
    """Returns the law of m − 1 and this one, the error of a mass, and what lies beyond the grid."""
    root = math.sqrt(self._d)
    cut = (math.log(self._step * (len(one) - 1)) + self._d / 2.0) / root
    lost = (self._size - 1) * scipy.special.ndtr(-cut) + scipy.special.ndtr(
      root - cut if biased else -cut
    )
    end = self._step * self._grid
    bound = self._least(
      self._x, self._step, lambda moment, tilt: moment - tilt * end, biased=biased
    )
    lost += math.exp(min(bound, 0.0))
    others, last = (
      scipy.fft.rfft(masses.astype(np.longdouble), self._grid) for masses in (self._x, one)
    )
    sums = scipy.fft.irfft(others ** (self._size - 1) * last, self._grid)
    norm = max(np.linalg.norm(one), np.linalg.norm(self._x))
    error = _TRANSFORM * math.log2(self._grid) * (self._size + 2) * float(norm)
    return np.maximum(sums, 0.0).astype(float), error, float(lost)

  def _masses(self, cells: int, step: float) -> np.ndarray:
    """Returns the law of X on a grid from 0: the mass of each cell at its ends, with its mean."""
    root = math.sqrt(self._d)
    ends = np.append(-np.inf, (np.log(step * np.arange(1, cells + 1)) + self._d / 2.0) / root)
    mass, mean = _between(ends), _between(ends - root)
    upper = np.clip(mean / step - np.arange(cells) * mass, 0.0, mass)
    return np.append(mass - upper, 0.0) + np.append(0.0, upper)

  def _least(
    self,
    masses: np.ndarray,
    step: float,
    chernoff: Callable[[float, float], float],
    *,
    biased: bool = True,
  ) -> float:
    """Returns the least Chernoff bound, of ln E exp(tilt · sum) and tilt, over the tilts.

    It has one valley, as ln E exp(tilt · sum) is convex, so that a few of the tilts show it.
    """
    held = np.flatnonzero(masses)
    logs, x = np.log(masses[held]), step * held
    tilts = _TILTS / (step * len(masses))

    @functools.cache
    def at(place: int) -> float:
      moment = self._log_moment(logs, x, float(tilts[place]), biased)
      return chernoff(moment, float(tilts[place]))

    low, high = 0, len(tilts) - 1
    while low < high:
      middle = (low + high) // 2
      low, high = (low, middle) if at(middle) <= at(middle + 1) else (middle + 1, high)
    return at(low)

  def _log_moment(self, logs: np.ndarray, x: np.ndarray, tilt: float, biased: bool) -> float:
    """Returns ln E exp(tilt · sum), of `present` if biased, of masses with these logarithms."""
    tilted = tilt * x + logs
    most = float(tilted.max())
    densities = np.exp(tilted - most)
    moment = most + math.log(float(densities.sum()))
    longer = most + math.log(float(densities @ x)) if biased else moment
    return (self._size - 1) * moment + longer


def _between(ends: np.ndarray) -> np.ndarray:
  """Returns the probabilities of a standard normal between successive ends."""
  low, high = scipy.special.ndtr(ends), scipy.special.ndtr(-ends)
  return np.where(ends[1:] < 0.0, low[1:] - low[:-1], high[:-1] - high[1:])
