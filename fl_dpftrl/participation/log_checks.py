"""Checks of a log against what the sampling scheme that it states rules out.

A device in two bins, an example twice in a pass, a batch of another size: nothing here depends on
how probable a log is. No log proves how it was drawn.
"""

from collections.abc import Iterator

import numpy as np

from fl_dpftrl.participation import cyclic
from fl_dpftrl.participation.counts import participation_counts


def bins(counts: participation_counts.RunCounts, num_bins: int) -> list[str]:
  """Returns the fault of devices in rounds of two bins, if any is."""
  return _astray(counts, 'a device came back in another bin', num_bins=num_bins)


def parts(counts: participation_counts.RunCounts, scheme: cyclic.Cyclic) -> Iterator[str]:
  """Yields faults of examples that left their part or are none, or of too many examples."""
  parts = scheme.num_parts
  least, largest = counts.id_range or (0, 0)
  if least < 0 or largest >= scheme.num_examples:
    yield (
      f'its ids are {least} to {largest}, and num_examples={scheme.num_examples} examples are'
      f' numbered 0 to {scheme.num_examples - 1}'
    )
  yield from _astray(counts, 'an example came back in another part', num_parts=parts)
  members = _of_parts(counts.newcomers, parts)
  if members.max(initial=0) > scheme.part_size:
    yield (
      f'{members.max():,} examples were in the rounds of one part, more than'
      f' the {scheme.part_size:,} that it has with'
      f' num_examples={scheme.num_examples} and num_parts={parts}'
    )


def sizes(counts: participation_counts.RunCounts, scheme: cyclic.Cyclic) -> Iterator[str]:
  """Yields faults of batches that do not have the scheme's one size."""
  cohorts = counts.cohorts
  wrong = np.flatnonzero(cohorts.counts != scheme.batch_size)
  if wrong.size:
    first = wrong[0]
    yield (
      f'{wrong.size:,} rounds do not have batch_size={scheme.batch_size} examples, the first of'
      f' them round {cohorts.values[first] + counts.first_round} with {cohorts.counts[first]:,}'
    )
  if counts.rounds_without_participants:
    yield (
      f'{counts.rounds_without_participants:,} rounds have no examples, the'
      f' first of them round {counts.first_gap()[0]}'
    )


def passes(
  counts: participation_counts.RunCounts, scheme: cyclic.Cyclic, pass_turns: int
) -> Iterator[str]:
  """Yields faults of examples drawn twice in a pass, or not at all."""
  end = scheme.num_parts * pass_turns
  twice = _before(counts.cohorts, end) - _before(counts.newcomers, end)
  if twice:
    yield f'in the first passes {twice:,} draws were of an example again'
  most = scheme.schema.participations
  if counts.max_participations > most:
    yield (
      f'an example was in {counts.max_participations:,} rounds, where no'
      f' part has more than {most:,} passes'
    )
  passes = scheme.num_rounds // end
  least = int(counts.participations.values[0])
  if least < passes and not scheme.part_size % scheme.batch_size:
    yield (
      f'an example was in {least:,} rounds, where each of the {passes:,}'
      ' passes goes through all of them'
    )


def _astray(counts: participation_counts.RunCounts, how: str, **period: int) -> list[str]:
  """Returns a fault where what takes turns came back outside of them."""
  ((name, turns),) = period.items()
  separations = counts.separations
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
