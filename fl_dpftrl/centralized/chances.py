"""Statistical tests of a sampling scheme that draws each batch anew.

A few statistics of a log are tested, each with a bound on the probability of a value as far
from its mean. They show gross deviations only: batches that were shuffled, of one size although
sizes should be random, drawn from fewer examples, or drawn without the most recent ones.
"""

import math
from collections.abc import Iterator

import numpy as np
from scipy import special, stats

from fl_dpftrl.centralized import sampling
from fl_dpftrl.participation import counts

FALSE_ALARM = 1e-9
"""The most that a log whose batches were drawn as said is found improbable."""

_TESTS = 7
_LOG_ALARM = math.log(FALSE_ALARM / _TESTS)
_TINY = 1e-200


def improbable(happened: counts.RunCounts, scheme: sampling.Sampled) -> Iterator[str]:
  """Yields a phrase for each statistic that is improbable under the scheme.

  Args:
    happened: participation in a log that the scheme does not rule out.
    scheme: sampling scheme for the same number of rounds.
  """
  if isinstance(scheme, sampling.CyclicPoisson):
    yield from _unlikely_sizes(happened, scheme)
    yield from _unlikely_regularity(happened, scheme)
  yield from _unlikely_repeats(happened, scheme)
  yield from _unlikely_coverage(happened, scheme)
  yield from _unlikely_favourites(happened, scheme)


def _unlikely_sizes(happened: counts.RunCounts, scheme: sampling.Sampled) -> Iterator[str]:
  """Tests batch sizes, singly and in total: each is binomial."""
  rounds, mean = scheme.num_rounds, scheme.batch_size
  chance = _log_chance(happened.num_participations, rounds * scheme.part_size, rounds * mean)
  if chance < _LOG_ALARM:
    yield (
      f'{happened.num_participations / rounds:.6g} examples were drawn in a round on average, which'
      f' chance does not make of batch_size={mean:.6g}'
    )
  sizes = happened.cohorts.counts
  if happened.rounds_without_participants:
    sizes = np.append(sizes, 0)
  chances = _log_chance(sizes, scheme.part_size, mean) + math.log(rounds)
  odd = sizes[chances < _LOG_ALARM]
  if odd.size:
    yield (
      f'a round has {odd[np.abs(odd - mean).argmax()]:,} examples, which'
      f' chance does not make of batch_size={mean:.6g}'
    )


def _unlikely_regularity(happened: counts.RunCounts, scheme: sampling.Sampled) -> Iterator[str]:
  """Tests whether batch sizes vary too little or too much."""
  rounds, mean = scheme.num_rounds, scheme.batch_size
  size = stats.binom(scheme.part_size, scheme.sampling_probability)
  sizes = happened.cohorts.counts
  values, often = np.unique(sizes, return_counts=True)
  value, most = values[often.argmax()], int(often.max())
  chance = _log_chance(most, rounds, rounds * size.pmf(value))
  # A union bound: any other size could have been the most frequent one.
  if chance + math.log(scheme.part_size + 1) < _LOG_ALARM:
    yield (
      f'{most:,} of {rounds:,} rounds have {value:,} examples, which chance does not make so often'
    )
  low, high = math.ceil(mean - 0.5 * size.std()), mean + 0.5 * size.std()
  usual = size.cdf(high) - size.cdf(low - 1)
  near = int(((low <= sizes) & (sizes <= high)).sum())
  near += happened.rounds_without_participants if low <= 0 else 0
  if _log_chance(near, rounds, rounds * usual) < _LOG_ALARM:
    yield (
      f'{near:,} of {rounds:,} rounds have {low:,} to {math.floor(high):,}'
      f' examples, where chance makes about {rounds * usual:,.0f}'
    )


def _unlikely_repeats(happened: counts.RunCounts, scheme: sampling.Sampled) -> Iterator[str]:
  """Tests how many examples are in two successive turns of their part.

  Given the batch sizes, each overlap is hypergeometric, and the overlaps are independent.
  """
  rounds, sizes = happened.cohorts.values, happened.cohorts.counts
  later = np.searchsorted(rounds, rounds + scheme.num_parts)
  later[later == rounds.size] = 0
  follows = rounds[later] == rounds + scheme.num_parts
  first, second = sizes[follows], sizes[later[follows]]
  mean = float((first * (second / scheme.part_size)).sum())
  trials = int(np.minimum(first, second).sum())
  repeats = happened.separations.to_dict().get(scheme.num_parts, 0)
  if _log_chance(repeats, trials, mean) < _LOG_ALARM:
    yield (
      f'{repeats:,} times an example was in two successive turns of its part,'
      f' where chance makes about {mean:,.0f}'
    )


def _unlikely_coverage(happened: counts.RunCounts, scheme: sampling.Sampled) -> Iterator[str]:
  """Tests how many examples were never drawn.

  Given the batch sizes, these events are negatively associated, so their sum has the tail
  bounds of independent ones.
  """
  size, cohorts = scheme.part_size, happened.cohorts
  parts, owners = np.unique(cohorts.values % scheme.num_parts, return_inverse=True)
  with np.errstate(divide='ignore'):  # A batch may be a whole part.
    missed = np.log1p(-cohorts.counts / size)
  never = size * np.exp(np.bincount(owners, missed, parts.size)).sum()
  examples = parts.size * size
  seen = happened.num_devices
  if _log_chance(examples - seen, examples, never) < _LOG_ALARM:
    yield (
      f'{seen:,} examples were drawn at least once, where chance makes about'
      f' {examples - never:,.0f} of num_examples={scheme.num_examples}'
    )


def _unlikely_favourites(happened: counts.RunCounts, scheme: sampling.Sampled) -> Iterator[str]:
  """Tests how often the most frequently drawn example was drawn."""
  most, mean = happened.max_participations, scheme.sampling_probability
  mean *= scheme.turns
  chance = _log_chance(most, scheme.turns, mean)
  if most > mean and chance + math.log(scheme.num_examples) < _LOG_ALARM:
    yield (f'an example was drawn {most:,} times, where chance makes about {mean:.3g} of each')


def _log_chance(seen: np.ndarray | int, trials: int, mean: float) -> np.ndarray | float:
  """Bounds from above the log probability of a deviation at least this large.

  The deviation is that of a sum from its mean. The sum has independent or negatively associated
  terms, each 0 or 1.

  Source: Hoeffding 1963, theorem 1, on both sides.
  """
  successes = max(mean, _TINY)
  failures = max(trials - mean, _TINY)
  beyond = seen - mean
  exponent = special.xlog1py(seen, beyond / successes)
  exponent += special.xlog1py(trials - seen, -beyond / failures)
  return math.log(2.0) - exponent
