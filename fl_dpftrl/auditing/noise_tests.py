"""Tests of released noise against the noise that is claimed.

Rows are whitened with the claimed covariance: row t becomes what it adds to the
rows before it, in claimed standard deviations. If the claim holds, all entries
are independent standard normals. Each test then has a false alarm with
probability at most its alpha. The tests by sums of products use the tail bound
of Laurent and Massart 2000 (lemma 1); that of the distribution function uses
the inequality of Dvoretzky, Kiefer and Wolfowitz with Massart's constant.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from fl_dpftrl.auditing import result


class Noise(NamedTuple):
  """Noise rows of one run, on the coordinates that no update touches.

  Attributes:
    released: the rows as released, shape [num_rounds, num_coordinates]. Runs
      have the same coordinates, but some may lack the last ones.
    whitened: the rows after whitening, same shape.
    tensors: number of the tensor of each coordinate, shape [num_coordinates].
  """

  released: np.ndarray
  whitened: np.ndarray
  tensors: np.ndarray


def checks(runs: Sequence[Noise], alpha: float) -> list[result.Check]:
  """Returns all tests of noise.

  Args:
    runs: at least two runs.
    alpha: probability of a false alarm of each test.
  """
  joined = np.hstack([run.whitened for run in runs])
  return [
    _scale(joined, alpha),
    _scale_of_rows(joined, alpha),
    _mean(joined, alpha),
    _shape(joined, alpha),
    _largest(joined, alpha),
    _distinct(runs),
    _rows(joined, alpha),
    _lags(joined, alpha),
    _coordinates(runs, alpha),
    _runs(runs, alpha),
  ]


def _scale(whitened: np.ndarray, alpha: float) -> result.Check:
  size = whitened.size
  return result.Check(
    name='noise_scale',
    statistic=math.sqrt(float(np.square(whitened).sum()) / size),
    lowest=math.sqrt(stats.chi2.ppf(alpha / 2, size) / size),
    highest=math.sqrt(stats.chi2.isf(alpha / 2, size) / size),
    meaning='the standard deviation of the noise, over the claimed one, is not 1',
  )


def _scale_of_rows(whitened: np.ndarray, alpha: float) -> result.Check:
  num_rounds, size = whitened.shape
  squares = np.square(whitened).sum(axis=1)
  each = alpha / (2 * num_rounds)
  lowest, highest = stats.chi2.ppf(each, size), stats.chi2.isf(each, size)
  worst = int(np.argmax(np.maximum(squares / highest, lowest / np.maximum(squares, 1e-300))))
  return result.Check(
    name='noise_scale_of_rows',
    statistic=math.sqrt(squares[worst] / size),
    lowest=math.sqrt(lowest / size),
    highest=math.sqrt(highest / size),
    where=f'round {worst}',
    meaning='one round, given the rounds before it, has more or less noise than claimed',
  )


def _mean(whitened: np.ndarray, alpha: float) -> result.Check:
  num_rounds, size = whitened.shape
  scores = np.abs(whitened.sum(axis=1)) / math.sqrt(size)
  return result.Check(
    name='noise_mean',
    statistic=float(scores.max()),
    highest=float(stats.norm.isf(alpha / (2 * num_rounds))),
    where=f'round {int(scores.argmax())}',
    meaning='a round without updates does not release noise around 0',
  )


def shape_distance(whitened: np.ndarray) -> float:
  """Returns the largest distance of the distribution function from a normal's.

  Each row is divided by its own standard deviation, so that the distance is of
  shape alone. Estimated scales make the distance smaller: the test remains valid.
  """
  scales = np.sqrt(np.square(whitened).mean(axis=1, keepdims=True))
  if not (scales > 0.0).all():
    return 1.0
  ordered = special.ndtr(np.sort((whitened / scales).ravel()))
  steps = np.arange(ordered.size + 1) / ordered.size
  return float(max((steps[1:] - ordered).max(), (ordered - steps[:-1]).max()))


def shape_limit(size: int, alpha: float) -> float:
  """Returns the distance that so many normals exceed with probability alpha."""
  return math.sqrt(math.log(2.0 / alpha) / (2.0 * size))


def _shape(whitened: np.ndarray, alpha: float) -> result.Check:
  return result.Check(
    name='noise_shape',
    statistic=shape_distance(whitened),
    highest=shape_limit(whitened.size, alpha),
    meaning='the noise is not Gaussian, so the lower bound uses counted errors alone',
  )


def _largest(whitened: np.ndarray, alpha: float) -> result.Check:
  # P(max ≤ x) = (1 − 2 Φ(−x))^size, solved for x at alpha / 2 and 1 − alpha / 2.
  size = whitened.size
  tail = lambda probability: -math.expm1(math.log(probability) / size) / 2.0
  lowest = float(stats.norm.isf(tail(alpha / 2)))
  highest = float(stats.norm.isf(-math.expm1(math.log1p(-alpha / 2) / size) / 2.0))
  return result.Check(
    name='noise_tail',
    statistic=float(np.abs(whitened).max()),
    lowest=lowest,
    highest=highest,
    meaning='the noise is cut off, or has outliers',
  )


def _distinct(runs: Sequence[Noise]) -> result.Check:
  rows = [
    ((f'run {number} ' if number else '') + f'round {t}', row)
    for number, run in enumerate(runs)
    for t, row in enumerate(run.released)
  ]
  width = min(run.released.shape[1] for run in runs)
  seen: dict[bytes, str] = {}
  equal = []
  for name, row in rows:
    key = np.ascontiguousarray(row[:width]).tobytes()
    if key in seen:
      equal.append(f'{seen[key]} and {name}')
    seen.setdefault(key, name)
  return result.Check(
    name='rows_distinct',
    statistic=float(len(equal)),
    highest=0.0,
    where=equal[0] if equal else '',
    meaning='the same noise row was released twice: differences of two releases are exact',
  )


def _rows(whitened: np.ndarray, alpha: float) -> result.Check:
  num_rounds, size = whitened.shape
  pairs = num_rounds * (num_rounds - 1) // 2
  norms = np.linalg.norm(whitened, axis=1)
  units = whitened / np.where(norms > 0.0, norms, 1.0)[:, None]
  correlation = np.abs(np.triu(units @ units.T, 1))
  first, second = divmod(int(np.argmax(correlation)), num_rounds)
  return result.Check(
    name='rows_uncorrelated',
    statistic=float(correlation[first, second]),
    highest=_largest_correlation(size, alpha / max(1, pairs)),
    where=f'rounds {first} and {second}' if pairs else '',
    meaning='two rounds, whitened as claimed, share noise: rows are reused or in another order',
  )


def _largest_correlation(size: int, alpha: float) -> float:
  """Returns the correlation that two rows of normals of mean 0 exceed at alpha."""
  quantile = float(stats.t.isf(alpha / 2, size - 1))
  return quantile / math.sqrt(size - 1 + quantile**2)


def _products(total: float, count: int) -> float:
  """Returns a sum of products of independent normals, in standard deviations."""
  return abs(total) / math.sqrt(count)


def _largest_product(count: int, alpha: float) -> float:
  """Returns what such a sum, |x' A x| with ‖A‖ ≤ 1 and trace 0, exceeds at alpha."""
  t = math.log(2.0 / alpha)
  return math.sqrt(2.0 * t) + 2.0 * t / math.sqrt(count)


class _Worst(NamedTuple):
  ratio: float = 0.0
  statistic: float = 0.0
  limit: float = math.inf
  where: str = ''


def _worst(deviations: Sequence[tuple[float, float, str]]) -> _Worst:
  """Returns the statistic that is largest over its limit."""
  return max(
    (_Worst(s / limit, s, limit, where) for s, limit, where in deviations), default=_Worst()
  )


def _lags(whitened: np.ndarray, alpha: float) -> result.Check:
  num_rounds, size = whitened.shape
  deviations = []
  for lag in range(1, num_rounds):
    count = (num_rounds - lag) * size
    total = float(np.einsum('ij,ij->', whitened[lag:], whitened[:-lag]))
    limit = _largest_product(count, alpha / (num_rounds - 1))
    deviations.append((_products(total, count), limit, f'lag {lag}'))
  worst = _worst(deviations)
  return result.Check(
    name='lags_uncorrelated',
    statistic=worst.statistic,
    highest=None if math.isinf(worst.limit) else worst.limit,
    where=worst.where,
    meaning='rounds some distance apart, whitened as claimed, share noise',
  )


def _product(one: np.ndarray, other: np.ndarray) -> tuple[float, int]:
  """Returns the sum of products of the coordinates that both have, and their number."""
  size = min(one.shape[1], other.shape[1])
  return float(np.einsum('ij,ij->', one[:, :size], other[:, :size])), size * len(one)


def _coordinates(runs: Sequence[Noise], alpha: float) -> result.Check:
  width = min(run.whitened.shape[1] for run in runs)
  lags = [1 << power for power in range(width.bit_length()) if 1 << power < width]
  tensors = np.unique(runs[0].tensors)
  pairs = list(itertools.combinations(tensors, 2))
  each = alpha / max(1, len(lags) + len(pairs))
  deviations = []
  for lag in lags:
    products = [np.einsum('ij,ij->', r.whitened[:, lag:], r.whitened[:, :-lag]) for r in runs]
    count = sum(r.whitened[:, lag:].size for r in runs)
    deviations.append(
      (_products(sum(products), count), _largest_product(count, each), f'coordinates {lag} apart')
    )
  for one, other in pairs:
    total, count = 0.0, 0
    for run in runs:
      of_tensor = (run.whitened[:, run.tensors == tensor] for tensor in (one, other))
      product, size = _product(*of_tensor)
      total, count = total + product, count + size
    if count:
      where = f'tensors {one} and {other}'
      deviations.append((_products(total, count), _largest_product(count, each), where))
  worst = _worst(deviations)
  return result.Check(
    name='coordinates_uncorrelated',
    statistic=worst.statistic,
    highest=None if math.isinf(worst.limit) else worst.limit,
    where=worst.where,
    meaning='coordinates of the model share noise',
  )


def _runs(runs: Sequence[Noise], alpha: float) -> result.Check:
  deviations = []
  pairs = list(itertools.combinations(range(min(len(runs), 8)), 2))
  for one, other in pairs:
    total, count = _product(runs[one].whitened, runs[other].whitened)
    where = f'runs {one} and {other}'
    deviations.append((_products(total, count), _largest_product(count, alpha / len(pairs)), where))
  worst = _worst(deviations)
  return result.Check(
    name='runs_uncorrelated',
    statistic=worst.statistic,
    highest=worst.limit,
    where=worst.where,
    meaning='two runs share noise: the seed is not fresh',
  )
