"""Tests of released noise against the noise that is claimed.

Rows are whitened with the claimed covariance: row t becomes what it adds to the rows before it, in
claimed standard deviations. If the claim holds, all entries are independent standard normals. So a
sum of their squares is chi-squared, and a correlation r of two vectors of m entries gives
√(m − 1) r / √(1 − r²), which has Student's t distribution of m − 1 degrees. Each test has a false
alarm with probability at most its alpha; one that takes the worst of many gives each of them an
equal part of alpha (Bonferroni). The test of the distribution function uses the inequality of
Dvoretzky, Kiefer and Wolfowitz with Massart's constant.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import scipy

from fl_dpftrl.prove.auditing import result

# With so many releases, one value in all of them is no chance: floats of normals agree with
# probability below 1e-6.
_ENOUGH = 4
_MOST_NAMED = 4  # tensors
_ONE = 1.0 - 1e-9  # correlations beyond are not told apart from 1


class NoiseSamples(NamedTuple):
  """Noise of several runs.

  Attributes:
    released: releases of the runs without updates, shape [runs, num_rounds, num_coordinates].
    whitened: noise of these and of further runs after whitening, shape alike.
    tensors: number of the tensor of each coordinate, ascending, shape [num_coordinates].
  """

  released: np.ndarray
  whitened: np.ndarray
  tensors: np.ndarray

  @property
  def columns(self) -> np.ndarray:
    """The releases of each coordinate, shape [num_coordinates, runs · num_rounds]."""
    return self.released.reshape(-1, self.released.shape[-1]).T

  def name(self, coordinate: int) -> str:
    tensor = self.tensors[coordinate]
    return f'tensor {tensor}, coordinate {coordinate - np.searchsorted(self.tensors, tensor)}'


def checks(noise: NoiseSamples, alpha: float) -> list[result.Check]:
  """Returns all tests of noise, each with a false alarm of probability alpha at most."""
  whitened, tensors = noise.whitened, noise.tensors
  runs, num_rounds, size = whitened.shape
  squares = np.square(whitened)
  coordinate_squares = squares.sum(axis=(0, 1))
  tensor_squares, counts = np.bincount(tensors, coordinate_squares), np.bincount(tensors)
  row_squares = squares.sum(axis=(0, 2))
  places = {
    '': (np.array([squares.sum()]), squares.size, lambda _: ''),
    '_of_rows': (row_squares, runs * size, lambda t: f'round {t}'),
    '_of_tensors': (tensor_squares, runs * num_rounds * counts, lambda tensor: f'tensor {tensor}'),
    '_of_coordinates': (coordinate_squares, runs * num_rounds, noise.name),
  }
  return [
    *(_scale(f'noise_scale{name}', *place, alpha) for name, place in places.items()),
    _noised(noise),
    _shape(whitened, alpha),
    _tail(whitened, alpha),
    _distinct(
      'rows_distinct',
      'the same noise row was released twice: differences of two releases are exact',
      (
        (f'run {number} round {t}' if number else f'round {t}', row)
        for number, rows in enumerate(noise.released)
        for t, row in enumerate(rows)
      ),
    ),
    _distinct(
      'coordinates_distinct',
      'two coordinates have the same noise: their difference has none',
      ((noise.name(i), column) for i, column in enumerate(noise.columns)),
    ),
    _rows_uncorrelated(noise, alpha),
  ]


def _scale(
  name: str,
  squares: np.ndarray,
  degrees: int | np.ndarray,
  place: Callable[[int], str],
  alpha: float,
) -> result.Check:
  """Tests the most unusual of several sums of squares."""
  degrees = np.broadcast_to(degrees, squares.shape)
  tails = np.minimum(scipy.special.chdtr(degrees, squares), scipy.special.chdtrc(degrees, squares))
  worst, level = int(np.argmin(tails)), alpha / (2 * squares.size)
  scaled = lambda square: math.sqrt(float(square) / degrees[worst])
  return result.Check(
    name=name,
    statistic=scaled(squares[worst]),
    lowest=scaled(scipy.stats.chi2.ppf(level, degrees[worst])),
    highest=scaled(scipy.stats.chi2.isf(level, degrees[worst])),
    where=place(worst),
    meaning='there is more or less noise than claimed; a round is judged given those before it',
  )


def _noised(noise: NoiseSamples) -> result.Check:
  columns = noise.columns
  constant = (columns == columns[:, :1]).all(axis=1)
  if columns.shape[1] < _ENOUGH:  # They may agree by rounding.
    constant &= columns[:, 0] == 0.0
  where = []
  for tensor, count in zip(*np.unique(noise.tensors[constant], return_counts=True)):
    size = int((noise.tensors == tensor).sum())
    where.append(f'tensor {tensor}: {count:,} of {size:,} coordinate{"s" * (size > 1)}')
  further = [f'{len(where) - _MOST_NAMED} more'] if len(where) > _MOST_NAMED else []
  return result.Check(
    name='coordinates_noised',
    statistic=float(constant.sum()),
    highest=0.0,
    where=', '.join(where[:_MOST_NAMED] + further),
    meaning='coordinates are released without any noise, so ε is infinite',
  )


def _shape(whitened: np.ndarray, alpha: float) -> result.Check:
  """Tests the distribution of rows scaled to deviation 1; estimated scales keep the test valid."""
  scales = np.sqrt(np.square(whitened).mean(axis=(0, 2), keepdims=True))
  distance = 1.0
  if (scales > 0.0).all():
    distance = float(scipy.stats.kstest((whitened / scales).ravel(), 'norm').statistic)
  return result.Check(
    name='noise_shape',
    statistic=distance,
    highest=math.sqrt(math.log(2.0 / alpha) / (2.0 * whitened.size)),
    meaning='the noise is not Gaussian',
  )


def _tail(whitened: np.ndarray, alpha: float) -> result.Check:
  # P(max ≤ x) = (1 − 2 Φ(−x))^size, solved for x at alpha / 2 and 1 − alpha / 2.
  size = whitened.size
  return result.Check(
    name='noise_tail',
    statistic=float(np.abs(whitened).max()),
    lowest=float(scipy.stats.norm.isf(-math.expm1(math.log(alpha / 2) / size) / 2.0)),
    highest=float(scipy.stats.norm.isf(-math.expm1(math.log1p(-alpha / 2) / size) / 2.0)),
    meaning='the noise is cut off, or has outliers',
  )


def _distinct(name: str, meaning: str, vectors: Iterable[tuple[str, np.ndarray]]) -> result.Check:
  """Counts vectors that are equal to an earlier one."""
  seen: dict[bytes, str] = {}
  equal = []
  for place, vector in vectors:
    first = seen.setdefault(vector.tobytes(), place)
    if first != place:
      equal.append(f'{first} and {place}')
  where = equal[0] if equal else ''
  return result.Check(
    name=name, statistic=float(len(equal)), highest=0.0, where=where, meaning=meaning
  )


def _rows_uncorrelated(noise: NoiseSamples, alpha: float) -> result.Check:
  """Tests the closest two rounds, of all coordinates and of each tensor."""
  _, num_rounds, size = noise.whitened.shape
  parts = [('', slice(0, size))]
  for tensor in range(noise.tensors[-1] + 1):
    first, last = np.searchsorted(noise.tensors, (tensor, tensor + 1))
    parts.append((f'tensor {tensor}, ', slice(first, last)))
  num_pairs = len(parts) * num_rounds * (num_rounds - 1) // 2
  correlations = [(0.0, math.inf, '')]
  for part, inside in parts if num_pairs else ():
    rows = noise.whitened[:, :, inside].swapaxes(0, 1).reshape(num_rounds, -1)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / np.where(norms > 0.0, norms, 1.0)
    products = np.abs(np.triu(units @ units.T, 1))
    t, u = divmod(int(np.argmax(products)), num_rounds)
    quantile = float(scipy.stats.t.isf(alpha / (2 * num_pairs), rows.shape[1] - 1))
    limit = quantile / math.hypot(math.sqrt(rows.shape[1] - 1), quantile)
    if limit < _ONE:
      correlations.append((float(products[t, u]), limit, f'{part}rounds {t} and {u}'))
  statistic, limit, where = max(correlations, key=lambda pair: pair[0] / pair[1])
  return result.Check(
    name='rows_uncorrelated',
    statistic=statistic,
    highest=None if math.isinf(limit) else limit,
    where=where,
    meaning='two rounds, whitened as claimed, share noise: rows are reused or in another order',
  )
