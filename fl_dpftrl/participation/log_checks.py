"""Consistency checks of a log against the sampling scheme that it states.

A log is checked against what the scheme rules out. If each batch is drawn anew, a few statistics
are also tested, each with a bound on the probability of a value as far from its mean. They show
gross deviations only: batches that were shuffled, of one size although sizes should be random,
drawn from fewer examples, or drawn without the most recent ones. No log proves how it was drawn.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import scipy

from fl_dpftrl.participation.counts import participation_counts

_FALSE_ALARM, _TESTS = 1e-9, 7  # probability of a false alarm of all tests together
_LOG_ALARM = math.log(_FALSE_ALARM / _TESTS)
_TINY = 1e-200
_Batches = Any  # A scheme of batches, which calls these checks.
_DEVICES_A_GROUP = 100  # expected at least, for the chi-square law


def bins(happened: participation_counts.RunCounts, num_bins: int) -> Iterator[str]:
  """Yields faults of devices in rounds of two bins, and of bins that are not uniform."""
  if astray := _astray(happened, 'a device came back in another bin', num_bins=num_bins):
    yield from astray
    return
  # Only rounds in which each bin had as many turns as another tell of their sizes.
  seen = max(1, min(num_bins, happened.num_rounds))
  end = happened.num_rounds // seen * seen
  rounds, devices = happened.newcomers.values, happened.newcomers.counts
  members = np.bincount(rounds[rounds < end] % num_bins, devices[rounds < end], seen)
  # Neighbouring bins are tested together where few devices are expected in each.
  groups = min(seen, int(members.sum()) // _DEVICES_A_GROUP)
  if groups < 2:
    return
  starts = np.arange(groups) * seen // groups
  expected = np.diff(starts, append=seen) * (members.sum() / seen)
  totals = np.add.reduceat(members, starts)
  distance = float(((totals - expected) ** 2 / expected).sum())
  if scipy.stats.chi2.logsf(distance, groups - 1) < math.log(_FALSE_ALARM):
    worst = np.abs(totals - expected).argmax()
    yield (
      f'{totals[worst]:,.0f} devices have the bins from {starts[worst]}, where chance makes about'
      f' {expected[worst]:,.0f}: bins that are uniform do not differ so much'
    )


def parts(happened: participation_counts.RunCounts, scheme: _Batches) -> Iterator[str]:
  """Yields faults of examples that left their part or are none, or of too many examples."""
  parts = scheme.num_parts
  least, largest = happened.id_range or (0, 0)
  if least < 0 or largest >= scheme.num_examples:
    yield (
      f'its ids are {least} to {largest}, and num_examples={scheme.num_examples} examples are'
      f' numbered 0 to {scheme.num_examples - 1}'
    )
  yield from _astray(happened, 'an example came back in another part', num_parts=parts)
  members = _of_parts(happened.newcomers, parts)
  if members.max() > scheme.part_size:
    yield (
      f'{members.max():,} examples were in the rounds of one part, more than'
      f' the {scheme.part_size:,} that it has with'
      f' num_examples={scheme.num_examples} and num_parts={parts}'
    )


def sizes(happened: participation_counts.RunCounts, scheme: _Batches) -> Iterator[str]:
  """Yields faults of batches that do not have the scheme's one size."""
  cohorts = happened.cohorts
  wrong = np.flatnonzero(cohorts.counts != scheme.batch_size)
  if wrong.size:
    first = wrong[0]
    yield (
      f'{wrong.size:,} rounds do not have batch_size={scheme.batch_size} examples, the first of'
      f' them round {cohorts.values[first] + happened.first_round} with {cohorts.counts[first]:,}'
    )
  if happened.rounds_without_participants:
    yield (
      f'{happened.rounds_without_participants:,} rounds have no examples, the'
      f' first of them round {happened.first_gap()[0]}'
    )


def passes(happened: participation_counts.RunCounts, scheme: _Batches) -> Iterator[str]:
  """Yields faults of examples drawn twice in a pass, or not at all."""
  end = scheme.num_parts * scheme.pass_turns
  twice = _before(happened.cohorts, end) - _before(happened.newcomers, end)
  if twice:
    yield f'in the first passes {twice:,} draws were of an example again'
  most = scheme.schema.participations
  if happened.max_participations > most:
    yield (
      f'an example was in {happened.max_participations:,} rounds, where no'
      f' part has more than {most:,} passes'
    )
  passes = scheme.num_rounds // end
  least = int(happened.participations.values[0])
  if least < passes and not scheme.part_size % scheme.batch_size:
    yield (
      f'an example was in {least:,} rounds, where each of the {passes:,}'
      ' passes goes through all of them'
    )


def _astray(happened: participation_counts.RunCounts, how: str, **period: int) -> list[str]:
  """Returns a fault where what takes turns came back outside of them."""
  ((name, turns),) = period.items()
  separations = happened.separations
  astray = np.flatnonzero(separations.values % turns)
  return [
    f'{separations.counts[astray].sum():,} times {how}, first of all after {rounds:,} rounds, which'
    f' is no multiple of {name}={turns}'
    for rounds in separations.values[astray[:1]].tolist()
  ]


def _of_parts(counts: participation_counts.Counts, num_parts: int) -> np.ndarray:
  """Adds counts by round up to counts by part, for parts that have any."""
  _, owners = np.unique(counts.values % num_parts, return_inverse=True)
  return np.bincount(owners, counts.counts).astype(np.int64)


def _before(counts: participation_counts.Counts, end: int) -> int:
  """Returns the total count of all rounds before the end."""
  return int(counts.counts[: np.searchsorted(counts.values, end)].sum())


def improbable(happened: participation_counts.RunCounts, scheme: _Batches) -> Iterator[str]:
  """Yields a phrase for each statistic that is improbable under a scheme that draws anew."""
  yield from _unlikely_repeats(happened, scheme)
  yield from _unlikely_coverage(happened, scheme)
  yield from _unlikely_favourites(happened, scheme)


def unlikely_sizes(happened: participation_counts.RunCounts, scheme: _Batches) -> Iterator[str]:
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


def unlikely_regularity(
  happened: participation_counts.RunCounts, scheme: _Batches
) -> Iterator[str]:
  """Tests whether batch sizes vary too little or too much."""
  rounds, mean = scheme.num_rounds, scheme.batch_size
  size = scipy.stats.binom(scheme.part_size, scheme.sampling_probability)
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


def _unlikely_repeats(happened: participation_counts.RunCounts, scheme: _Batches) -> Iterator[str]:
  """Tests how many examples are in two successive turns: independent hypergeometric overlaps."""
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


def _unlikely_coverage(happened: participation_counts.RunCounts, scheme: _Batches) -> Iterator[str]:
  """Tests how many examples were never drawn: negatively associated, given the batch sizes."""
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


def _unlikely_favourites(
  happened: participation_counts.RunCounts, scheme: _Batches
) -> Iterator[str]:
  """Tests how often the most frequently drawn example was drawn."""
  most, mean = happened.max_participations, scheme.sampling_probability
  mean *= scheme.turns
  chance = _log_chance(most, scheme.turns, mean)
  if most > mean and chance + math.log(scheme.num_examples) < _LOG_ALARM:
    yield (f'an example was drawn {most:,} times, where chance makes about {mean:.3g} of each')


def _log_chance(seen: np.ndarray | int, trials: int, mean: float) -> np.ndarray | float:
  """Bounds the log chance of a sum this far from its mean (Hoeffding 1963, theorem 1, twice)."""
  successes = max(mean, _TINY)
  failures = max(trials - mean, _TINY)
  beyond = seen - mean
  exponent = scipy.special.xlog1py(seen, beyond / successes)
  exponent += scipy.special.xlog1py(trials - seen, -beyond / failures)
  return math.log(2.0) - exponent
