"""Tests of the noise of each tensor, each coordinate and each pair of coordinates.

Tests over all coordinates together do not see the few that lack noise. Here each
coordinate is judged by its own entries: its whitened rows of all runs (see
`noise_tests`), m independent standard normals if the claim holds. The sum of
their squares is chi-squared with m degrees of freedom, that of a tensor of d
coordinates with all their entries. A correlation r of two coordinates gives
√(m − 1) r / √(1 − r²), which has Student's t distribution of m − 1 degrees.

Each check has a false alarm with probability at most its alpha. A check that
takes the worst of many gives each an equal part of alpha (Bonferroni): tensors,
coordinates, all d (d − 1) / 2 pairs. The pairs that are looked at may be chosen
by the noise itself, since the limit is that of all pairs.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

from fl_dpftrl.auditing import noise_tests, result

# With so many releases, one value in all of them is no chance: floats of normals agree with
# probability below 1e-6.
_ENOUGH = 4
_LEVELS = 16  # halvings of the tail probability at which unusual coordinates are counted
_SAMPLE = 512  # coordinates of which each pair is looked at
_NEIGHBOURS = 2  # in the order of a projection, in which copies stand side by side
_ONE = 1.0 - 1e-9  # correlations beyond are not told apart from 1


class _Coordinates(NamedTuple):
  """Noise of every coordinate over all runs.

  Attributes:
    squares: sum of squares of the whitened entries, shape [num_coordinates].
    entries: number of these entries, same shape.
    tensors: number of the tensor of each coordinate, same shape.
    places: position of each coordinate in its tensor, same shape.
    constant: True where all releases have one value, same shape.
  """

  squares: np.ndarray
  entries: np.ndarray
  tensors: np.ndarray
  places: np.ndarray
  constant: np.ndarray

  def name(self, coordinate: int) -> str:
    return f'tensor {self.tensors[coordinate]}, coordinate {self.places[coordinate]}'


def checks(
  runs: Sequence[noise_tests.Noise], places: np.ndarray, alpha: float
) -> list[result.Check]:
  """Returns all tests of tensors, coordinates and pairs.

  Args:
    runs: at least one run; the first has all coordinates.
    places: position of each coordinate in its tensor, shape [num_coordinates].
    alpha: probability of a false alarm of all tests together.
  """
  seen = _coordinates(runs, places)
  each = alpha / 4  # `_noised` has no false alarms to speak of.
  return [
    _noised(seen),
    _scale_of_tensors(seen, each),
    _scale_of_coordinates(seen, each),
    _alike(seen, each),
    _pairs(runs, seen, each),
  ]


def constant(runs: Sequence[noise_tests.Noise]) -> np.ndarray:
  """Returns which coordinates have one value in all releases, shape [num_coordinates].

  Of fewer than 4 releases, which may agree by rounding, only zeros count.
  """
  first = runs[0].released[0]
  same, count = np.ones(len(first), bool), np.zeros(len(first), int)
  for run in runs:
    width = run.released.shape[1]
    same[:width] &= (run.released == first[:width]).all(axis=0)
    count[:width] += len(run.released)
  return same & ((count >= _ENOUGH) | (first == 0.0))


def _coordinates(runs: Sequence[noise_tests.Noise], places: np.ndarray) -> _Coordinates:
  squares, entries = np.zeros(len(places)), np.zeros(len(places), int)
  for run in runs:
    width = run.whitened.shape[1]
    squares[:width] += np.einsum('ij,ij->j', run.whitened, run.whitened)
    entries[:width] += len(run.whitened)
  return _Coordinates(squares, entries, runs[0].tensors, places, constant(runs))


def _noised(seen: _Coordinates) -> result.Check:
  names, where = np.unique(seen.tensors[seen.constant], return_counts=True), []
  for tensor, count in zip(*names):
    size = int((seen.tensors == tensor).sum())
    where.append(f'tensor {tensor}: {count:,} of {size:,} coordinate{"s" * (size > 1)}')
  shown = where if len(where) <= 4 else [*where[:4], f'{len(where) - 4} more']
  return result.Check(
    name='coordinates_noised',
    statistic=float(seen.constant.sum()),
    highest=0.0,
    where=', '.join(shown),
    meaning='coordinates are released without any noise, so ε is infinite',
  )


def _tails(squares: np.ndarray, entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Returns the probabilities of sums of squares at most and at least as large."""
  return special.chdtr(entries, squares), special.chdtrc(entries, squares)


def _worst_scale(
  squares: np.ndarray, entries: np.ndarray, alpha: float
) -> tuple[int, dict[str, float]]:
  """Returns the place of the most unusual scale, and its statistic with its limits."""
  worst = int(np.argmin(np.minimum(*_tails(squares, entries))))
  each, degrees = alpha / (2 * len(squares)), entries[worst]
  scale = lambda square: math.sqrt(float(square) / degrees)
  return worst, {
    'statistic': scale(squares[worst]),
    'lowest': scale(stats.chi2.ppf(each, degrees)),
    'highest': scale(stats.chi2.isf(each, degrees)),
  }


def _scale_of_tensors(seen: _Coordinates, alpha: float) -> result.Check:
  entries = np.bincount(seen.tensors, seen.entries)
  numbers = np.flatnonzero(entries)
  squares = np.bincount(seen.tensors, seen.squares)[numbers]
  worst, figures = _worst_scale(squares, entries[numbers], alpha)
  return result.Check(
    name='noise_scale_of_tensors',
    where=f'tensor {numbers[worst]}',
    meaning='one tensor has more or less noise than claimed',
    **figures,
  )


def _scale_of_coordinates(seen: _Coordinates, alpha: float) -> result.Check:
  worst, figures = _worst_scale(seen.squares, seen.entries, alpha)
  return result.Check(
    name='noise_scale_of_coordinates',
    where=seen.name(worst),
    meaning='one coordinate has more or less noise than claimed',
    **figures,
  )


def _alike(seen: _Coordinates, alpha: float) -> result.Check:
  """Counts coordinates beyond quantiles of their distribution, in either tail.

  Each count is binomial if the claim holds. So many coordinates that are each a
  little unusual are found, wherever they are.
  """
  size = len(seen.squares)
  levels = 0.5 ** np.arange(2, 2 + _LEVELS)
  limits = stats.binom.isf(alpha / (2 * _LEVELS), size, levels)
  deviations = []
  for tail, word in zip(_tails(seen.squares, seen.entries), ('less', 'more')):
    counts = np.searchsorted(np.sort(tail), levels)
    worst = int(np.argmax(counts / np.maximum(limits, 1.0)))
    where = f'{word} noise than in a share of {levels[worst]:.2g}'
    deviations.append((float(counts[worst]), max(float(limits[worst]), 1.0), where))
  count, limit, where = max(deviations, key=lambda one: one[0] / one[1])
  return result.Check(
    name='coordinates_alike',
    statistic=count,
    highest=limit,
    where=where,
    meaning='more coordinates than by chance have little, or much, noise',
  )


class _Pair(NamedTuple):
  margin: float = -math.inf  # of the correlation over its limit
  correlation: float = 0.0
  limit: float | None = None
  names: str = ''


def _pairs(runs: Sequence[noise_tests.Noise], seen: _Coordinates, alpha: float) -> result.Check:
  """Tests pairs in the runs with all coordinates, and in all runs for the others."""
  width = min(run.whitened.shape[1] for run in runs)
  complete = [run for run in runs if run.whitened.shape[1] == len(seen.places)]
  views = [(complete, len(seen.places)), (runs, width)]
  worst = max(_closest(chosen, seen, size, alpha / len(views)) for chosen, size in views)
  return result.Check(
    name='pairs_uncorrelated',
    statistic=worst.correlation,
    highest=worst.limit,
    where=worst.names,
    meaning='two coordinates share noise: a combination of them has less than claimed',
  )


def _closest(
  runs: Sequence[noise_tests.Noise], seen: _Coordinates, width: int, alpha: float
) -> _Pair:
  """Returns the pair of the first coordinates with the largest correlation that is seen."""
  kept = np.flatnonzero(~seen.constant[:width])
  entries = sum(len(run.whitened) for run in runs)
  if entries < 2 or kept.size < 2:
    return _Pair()
  quantile = float(stats.t.isf(alpha / (width * (width - 1)), entries - 1))
  limit = quantile / math.hypot(math.sqrt(entries - 1), quantile)
  if not limit < _ONE:
    return _Pair()
  units = np.vstack([run.whitened[:, :width] for run in runs]).T[kept]
  units /= np.sqrt(np.einsum('ij,ij->i', units, units))[:, None]
  best = max(
    (float(abs(value)), one, other)
    for values, first, second in _candidates(units, seen.tensors[kept])
    for value, one, other in [_largest(values, first, second)]
  )
  one, other = sorted(kept[list(best[1:])])
  return _Pair(best[0] - limit, best[0], limit, f'{seen.name(one)} and {seen.name(other)}')


def _largest(values: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[float, int, int]:
  worst = int(np.argmax(np.abs(values)))
  return float(values[worst]), int(first[worst]), int(second[worst])


def _candidates(
  units: np.ndarray, tensors: np.ndarray
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
  """Yields correlations and the two coordinates of each, of unit vectors in rows.

  Copies, also of another scale or sign, have one projection on a direction but
  for the sign, and stand side by side in its order. Of a sample that takes small
  tensors whole, all pairs are yielded.
  """
  generator = np.random.default_rng(0)
  order = np.argsort(np.abs(units @ generator.standard_normal(units.shape[1])))
  ordered = units[order]
  for step in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
    products = np.einsum('ij,ij->i', ordered[:-step], ordered[step:])
    yield products, order[:-step], order[step:]
  # By a random place in its tensor, so that all tensors come in turn.
  shuffled = np.lexsort((generator.random(len(tensors)), tensors))
  starts = np.searchsorted(tensors[shuffled], tensors[shuffled])
  sample = shuffled[np.argsort(np.arange(len(tensors)) - starts, kind='stable')[:_SAMPLE]]
  products = np.triu(units[sample] @ units[sample].T, 1)
  one, other = np.divmod(int(np.argmax(np.abs(products))), len(sample))
  yield products[one, other][None], sample[one][None], sample[other][None]
