"""Fast sums over very many rounds, from a few of their terms.

The terms are products of decaying geometric series with positive weights. On a block of rounds
that starts far from round 0 such a product is nearly a polynomial, however fast it decays: if
it falls steeply within the block, little of it is left there. A Gauss rule for the *sum* over
the rounds of a block is exact for polynomials. Blocks grow geometrically, so there is one for
each power of four. All weights are positive, so nothing cancels.
"""

from typing import NamedTuple

import numpy as np

_SINGLE = 32  # number of rounds at the start that are summed one by one
_GROWTH = 4  # a block runs from a to 4a
_ORDER = 16  # nodes per block: relative error below 1e-16


class Nodes(NamedTuple):
  """Nodes of a sum: Σ over i < count of f(i) is Σ weights · f(positions).

  Attributes:
    positions: i, ascending; whole numbers only where each round counts once.
    weights: positive weights of the positions.
  """

  positions: np.ndarray
  weights: np.ndarray


def nodes(count: int) -> Nodes:
  """Returns nodes for sums over i = 0 … count − 1, about 10 per doubling."""
  single = min(count, _SINGLE)
  positions, weights = [np.arange(float(single))], [np.ones(single)]
  starts, lengths = [], []
  start = single
  while count - start > _ORDER:
    starts.append(start)
    lengths.append(min((_GROWTH - 1) * start, count - start))
    start += lengths[-1]
  if starts:
    inside, block_weights = _gauss(np.array(lengths, dtype=np.float64))
    positions.append((np.array(starts)[:, None] + inside).reshape(-1))
    weights.append(block_weights.reshape(-1))
  positions.append(np.arange(start, count, dtype=np.float64))
  weights.append(np.ones(count - start))
  return Nodes(np.concatenate(positions), np.concatenate(weights))


def _gauss(lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns nodes and weights for sums over 0 … length − 1.

  Both have shape [blocks, order].

  Source: Golub and Welsch 1969, with the recurrence of the discrete Chebyshev (Gram)
  polynomials, NIST DLMF table 18.22.1.
  """
  degree = np.arange(1.0, _ORDER)
  scale = 1.0 - np.square(degree / lengths[:, None])
  # Off-diagonal entries, in units of the length, which may exceed 10⁹.
  off = 0.5 * degree * np.sqrt(scale / (4.0 * degree**2 - 1.0))
  jacobi = np.zeros((lengths.size, _ORDER, _ORDER))
  index = np.arange(_ORDER - 1)
  jacobi[:, index + 1, index] = off
  points, vectors = np.linalg.eigh(jacobi)
  return (
    0.5 * (lengths[:, None] - 1.0) + lengths[:, None] * points,
    lengths[:, None] * np.square(vectors[:, 0]),
  )


def power_sum(rate: np.ndarray, count: np.ndarray) -> np.ndarray:
  """Returns Σ over i < count of e^(−rate·i), for rates above 0; broadcasts."""
  return np.expm1(-count * rate) / np.expm1(-rate)


def log_slope(rate: np.ndarray, count: np.ndarray) -> np.ndarray:
  """Returns the derivative of ln `power_sum` in the rate, also at rate 0."""
  return count * _without_pole(count * rate) - _without_pole(rate)


def _without_pole(z: np.ndarray) -> np.ndarray:
  """Returns 1 / (e^z − 1) − 1 / z, which lies between −½ and 0."""
  small = z < 0.05
  safe = np.where(small, 1.0, np.minimum(z, 700.0))
  square = z * z
  series = -0.5 + z / 12.0 * (1.0 - square / 60.0 * (1.0 - square / 42.0))
  return np.where(small, series, 1.0 / np.expm1(safe) - 1.0 / np.where(small, 1.0, z))
