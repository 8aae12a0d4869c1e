"""Worth of the losses: how well the noise known before training predicts which models are better.

Intervals and p-values resample settings, and so take the mechanisms of a study
as a sample of mechanisms. Their random draws are fixed.
"""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
from scipy import stats

from fl_dpftrl.studies import intervals, results

MEASURES = {
  'rms': 'from RmsLoss',
  'max': 'from MaxLoss',
  'optimiser': 'from the loss of momentum and schedule',
}
_RESAMPLES = 4000
_SEED = 20220217
_FEWEST = 3  # settings of a rank correlation
_TAILS = (2.5, 97.5)  # percentiles of a 95 % interval


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
  """A rank correlation with its uncertainty.

  Attributes:
    value: Spearman's ρ.
    low, high: 95 % bootstrap interval over settings, drawn within each ε.
    p_value: probability of a ρ as far from 0 where gains are permuted.
  """

  value: float
  low: float
  high: float
  p_value: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Correlation:
  """Rank correlation of gains on test data with a prediction of the noise.

  Attributes:
    pooled: over all settings; None for fewer than three, or equal values.
    within: mean of Spearman's ρ over the levels of ε with three settings or
      more; None without one.
    by_epsilon: Spearman's ρ of each of these levels.
    settings: number of settings.
  """

  pooled: Estimate | None
  within: Estimate | None
  by_epsilon: dict[float, float]
  settings: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pairs:
  """Pairs of mechanisms at one ε, by how much their predicted noise differs.

  A pair is told apart if the 95 % interval of the paired difference of its
  gains does not hold 0.

  Attributes:
    total: number of pairs.
    apart: number of pairs that are told apart.
    right: number of those in which less noise is better.
    ratio: largest noise ratio of a pair that is told apart the other way round;
      1 without one.
    beyond: number of pairs told apart with a larger ratio.
  """

  total: int
  apart: int
  right: int
  ratio: float
  beyond: int


def text(estimate: Estimate | None) -> str:
  """Returns a correlation with its 95 % interval, in words."""
  if estimate is None:
    return 'unknown'
  value, low, high = (
    f'{part:+.2f}'.replace('-', '−') for part in (estimate.value, estimate.low, estimate.high)
  )
  return f'{value} (95 %: {low} to {high})'


def known(rows: Sequence[results.Row]) -> list[results.Row]:
  """Returns the settings with noise that have a result; none if all are of one mechanism.

  Its loss is then the same for all, and the noise differs by the clip norm alone, which
  scales the updates too.
  """
  noisy = [row for row in rows if row.noise is not None and row.tests]
  mechanisms = {
    dataclasses.replace(row.setting.mechanism, label='') for row in noisy if row.setting.mechanism
  }
  return noisy if len(mechanisms) > 1 else []


def correlation(rows: Sequence[results.Row], measure: str) -> Correlation:
  """Returns the rank correlation of mean gains with a field of `Noise`."""
  compared = known(rows)
  noises = np.array([getattr(row.noise, measure) for row in compared])
  gains = np.array([row.gain for row in compared])
  levels = _levels(compared)
  pooled = _spearman(noises[None], gains[None])[0]
  by_epsilon = {
    compared[level[0]].epsilon: float(_spearman(noises[level][None], gains[level][None])[0])
    for level in levels
    if len(level) >= _FEWEST
  }
  by_epsilon = {epsilon: value for epsilon, value in by_epsilon.items() if np.isfinite(value)}
  if not np.isfinite(pooled):
    return Correlation(pooled=None, within=None, by_epsilon=by_epsilon, settings=len(compared))
  drawn, drawn_within = _resampled(noises, gains, levels)
  rng = np.random.default_rng(_SEED)
  anywhere = rng.permuted(np.tile(gains, (_RESAMPLES, 1)), axis=1)
  mixed = np.tile(gains, (_RESAMPLES, 1))
  for level in levels:
    mixed[:, level] = rng.permuted(mixed[:, level], axis=1)
  noise = np.tile(noises, (_RESAMPLES, 1))
  within = None
  if by_epsilon:
    mean = float(np.mean(list(by_epsilon.values())))
    within = _estimate(mean, drawn_within, _within(noise, mixed, levels))
  return Correlation(
    pooled=_estimate(float(pooled), drawn, _spearman(noise, anywhere)),
    within=within,
    by_epsilon=by_epsilon,
    settings=len(compared),
  )


def advantage(
  rows: Sequence[results.Row], measure: str, other: str
) -> tuple[float, float, float] | None:
  """Returns how much closer to −1 a measure's correlation within an ε is than another's.

  Returns:
    Difference of the two, and its 95 % bootstrap interval; None without both.
  """
  compared = known(rows)
  gains = np.array([row.gain for row in compared])
  levels = _levels(compared)
  values = []
  for name in (measure, other):
    noises = np.array([getattr(row.noise, name) for row in compared])
    exact = _within(noises[None], gains[None], levels)
    values.append(np.concatenate([exact, _resampled(noises, gains, levels)[1]]))
  differences = values[1] - values[0]
  if not np.isfinite(differences[0]):
    return None
  low, high = np.nanpercentile(differences[1:], _TAILS)
  return float(differences[0]), float(low), float(high)


def choices(rows: Sequence[results.Row], measure: str) -> list[results.Row]:
  """Returns what the least predicted noise selects, at each ε with several mechanisms."""
  compared = known(rows)
  levels = [[compared[i] for i in level] for level in _levels(compared)]
  noise = lambda row: getattr(row.noise, measure)
  return [min(level, key=noise) for level in levels if len(level) > 1]


def pairs(rows: Sequence[results.Row], measure: str) -> Pairs:
  """Returns how often less predicted noise is better, at one ε."""
  compared = known(rows)
  total = 0
  right: list[float] = []
  wrong: list[float] = []
  for level in _levels(compared):
    for one, other in itertools.combinations([compared[i] for i in level], 2):
      total += 1
      if getattr(one.noise, measure) > getattr(other.noise, measure):
        one, other = other, one
      ratio = getattr(other.noise, measure) / getattr(one.noise, measure)
      difference = intervals.paired(one.gains, other.gains, one.looks)
      if difference is not None and difference.is_clear:
        (right if difference.mean > 0 else wrong).append(ratio)
  largest = max(wrong, default=1.0)
  return Pairs(
    total=total,
    apart=len(right) + len(wrong),
    right=len(right),
    ratio=largest,
    beyond=sum(ratio > largest for ratio in right),
  )


def _levels(compared: Sequence[results.Row]) -> list[list[int]]:
  """Returns the places of the settings of each ε."""
  levels: dict[float, list[int]] = {}
  for place, row in enumerate(compared):
    levels.setdefault(row.epsilon, []).append(place)
  return list(levels.values())


def _spearman(noises: np.ndarray, gains: np.ndarray) -> np.ndarray:
  """Returns Spearman's ρ of each line of two matrices; NaN where it is undefined."""
  if noises.shape[1] < _FEWEST:
    return np.full(len(noises), np.nan)
  ranks = [stats.rankdata(values, axis=1) for values in (noises, gains)]
  one, other = (values - values.mean(axis=1, keepdims=True) for values in ranks)
  scale = np.sqrt((one**2).sum(axis=1) * (other**2).sum(axis=1))
  with np.errstate(invalid='ignore', divide='ignore'):
    return np.where(scale > 0, (one * other).sum(axis=1) / scale, np.nan)


def _within(noises: np.ndarray, gains: np.ndarray, levels: Sequence[Sequence[int]]) -> np.ndarray:
  """Returns the mean over levels of each line's ρ; NaN where a line has none."""
  values = [
    _spearman(noises[:, level], gains[:, level]) for level in levels if len(level) >= _FEWEST
  ]
  if not values:
    return np.full(len(noises), np.nan)
  defined = np.isfinite(values)
  with np.errstate(invalid='ignore'):
    return np.where(defined, values, 0.0).sum(axis=0) / defined.sum(axis=0)


def _resampled(
  noises: np.ndarray, gains: np.ndarray, levels: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
  """Returns pooled ρ and mean ρ within an ε of settings drawn with replacement.

  The draws are the same for every measure, whose correlations are then paired.
  """
  rng = np.random.default_rng(_SEED)
  drawn = np.concatenate(
    [np.array(level)[rng.integers(len(level), size=(_RESAMPLES, len(level)))] for level in levels],
    axis=1,
  )
  order = np.concatenate(levels)
  places = [np.flatnonzero(np.isin(order, level)).tolist() for level in levels]
  return (_spearman(noises[drawn], gains[drawn]), _within(noises[drawn], gains[drawn], places))


def _estimate(value: float, drawn: np.ndarray, permuted: np.ndarray) -> Estimate:
  low, high = np.nanpercentile(drawn, _TAILS)
  as_far = np.sum(np.abs(permuted) >= abs(value) - 1e-9)
  return Estimate(
    value=value, low=float(low), high=float(high), p_value=float((1 + as_far) / (1 + len(permuted)))
  )
