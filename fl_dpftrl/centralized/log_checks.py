"""Consistency checks of a log against the sampling scheme that it states.

A log is checked against what the scheme rules out. If each batch is drawn anew, it is also put
to statistical tests. A log that passes does not prove that batches were drawn as stated.
"""

from collections.abc import Iterator

import numpy as np

from fl_dpftrl.centralized import chances, sampling
from fl_dpftrl.participation import counts as counts_lib


def contradictions(happened: counts_lib.RunCounts, scheme: sampling.Cyclic) -> list[str]:
  """Returns reasons why a log contradicts a scheme; empty if it does not.

  Args:
    happened: participation observed in the log.
    scheme: sampling scheme for the same number of rounds.
  """
  violations = list(_parts(happened, scheme))
  if not isinstance(scheme, sampling.CyclicPoisson):
    violations += _sizes(happened, scheme)
  if isinstance(scheme, sampling.Shuffled):
    violations += _passes(happened, scheme)
  if not violations and isinstance(scheme, sampling.Sampled):
    violations += chances.improbable(happened, scheme)
  return violations


def _parts(happened: counts_lib.RunCounts, scheme: sampling.Cyclic) -> Iterator[str]:
  """Yields faults of examples that left their part, or of too many examples."""
  parts, separations = scheme.num_parts, happened.separations
  astray = np.flatnonzero(separations.values % parts)
  if astray.size:
    yield (
      f'{separations.counts[astray].sum():,} times an example came back in'
      f' another part, first of all after {separations.values[astray[0]]:,}'
      f' rounds, which is no multiple of num_parts={parts}'
    )
  members = _of_parts(happened.newcomers, parts)
  if members.max() > scheme.part_size:
    yield (
      f'{members.max():,} examples were in the rounds of one part, more than'
      f' the {scheme.part_size:,} that it has with'
      f' num_examples={scheme.num_examples} and num_parts={parts}'
    )


def _sizes(happened: counts_lib.RunCounts, scheme: sampling.Cyclic) -> Iterator[str]:
  """Yields faults of batches that do not have the scheme's one size."""
  cohorts = happened.cohorts
  wrong = np.flatnonzero(cohorts.counts != scheme.batch_size)
  if wrong.size:
    first = wrong[0]
    yield (
      f'{wrong.size:,} rounds do not have batch_size={scheme.batch_size} examples, the first of'
      f' them round {cohorts.values[first]} with {cohorts.counts[first]:,}'
    )
  if happened.rounds_without_participants:
    yield (
      f'{happened.rounds_without_participants:,} rounds have no examples, the'
      f' first of them round {happened.first_gaps()[0][0]}'
    )


def _passes(happened: counts_lib.RunCounts, scheme: sampling.Shuffled) -> Iterator[str]:
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
  if isinstance(scheme, sampling.ShuffledOnce):
    apart = happened.separations.values
    wrong = apart[apart != scheme.schema.min_sep]
    if wrong.size:
      yield (
        f'an example came back after {wrong[0]:,} rounds, where each does after exactly'
        f' {scheme.schema.min_sep:,}'
      )


def _of_parts(counts: counts_lib.Counts, num_parts: int) -> np.ndarray:
  """Adds counts by round up to counts by part, for parts that have any."""
  _, owners = np.unique(counts.values % num_parts, return_inverse=True)
  return np.bincount(owners, counts.counts).astype(np.int64)


def _before(counts: counts_lib.Counts, end: int) -> int:
  """Returns the total count of all rounds before the end."""
  return int(counts.counts[: np.searchsorted(counts.values, end)].sum())
