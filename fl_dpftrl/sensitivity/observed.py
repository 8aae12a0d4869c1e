"""The sensitivity of patterns that occurred."""

from typing import Sequence

import numpy as np

from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import entries as entries_lib
from fl_dpftrl.sensitivity import signed
from fl_dpftrl.strategies import base as strategies


_CHUNK_ENTRIES = 1 << 22  # float64 values of working memory: 32 MiB
_MOST_SIGNED = 1 << 21  # patterns times length³, of those with negative entries


def pattern_sensitivity(
    strategy: strategies.Strategy,
    num_rounds: int,
    patterns: Sequence[Sequence[int]],
) -> tuple[np.ndarray, str]:
  """The sensitivity of each given pattern of rounds of one device.

  Args:
    strategy: C.
    num_rounds: n, rounds that consumed noise.
    patterns: for each, distinct rounds from 0 to num_rounds - 1.

  Returns:
    Values of shape [len(patterns)]; and 'exact' where all of them are. Where X
    has negative entries between rounds of a pattern, they are as `signed` gives
    them, and Σ |X[i, j]| for those that are too many or too long for that:
    then 'upper_bound'.

  Raises:
    ValueError: for a round outside the rounds, or twice in a pattern, or more
      rounds than the strategy can run.
  """
  gram_entries = entries_lib.gram_entries(strategy, num_rounds)
  squares, exact = np.zeros(len(patterns)), True
  by_length: dict[int, list[int]] = {}
  for index, pattern in enumerate(patterns):
    by_length.setdefault(len(pattern), []).append(index)
  for length, indices in by_length.items():
    if not length:
      continue
    chunk = max(1, _CHUNK_ENTRIES // length**2)
    for start in range(0, len(indices), chunk):
      part = indices[start : start + chunk]
      rounds = _checked_rounds([patterns[i] for i in part], num_rounds)
      squares[part], all_exact = _squares(gram_entries, rounds)
      exact = exact and all_exact
  return np.sqrt(squares), base.EXACT if exact else base.UPPER_BOUND


def _squares(
    gram_entries: entries_lib.Entries, rounds: np.ndarray
) -> tuple[np.ndarray, bool]:
  """Squares for patterns of one length, and whether all of them are exact."""
  count, length = rounds.shape
  squares, exact = np.zeros(count), True
  rows = max(1, _CHUNK_ENTRIES // (count * length))
  if rows >= length:
    entries = gram_entries(rounds[:, :, None], rounds[:, None, :])
    if (entries >= 0.0).all():
      return entries.sum(axis=(1, 2)), True
    squares = np.abs(entries).sum(axis=(1, 2))
    # Where there are too many, those that may be the worst come first.
    which = np.argsort(-squares)[: _MOST_SIGNED // length**3]
    if which.size:
      squares[which], found = signed.worst_squares(entries[which])
      exact = which.size == count and bool(found.all())
    return squares, exact and bool(which.size)
  for start in range(0, length, rows):  # of very long patterns, a few rows
    part = rounds[:, start : start + rows]
    entries = gram_entries(part[:, :, None], rounds[:, None, :])
    exact = exact and bool((entries >= 0.0).all())
    squares += np.abs(entries).sum(axis=(1, 2))
  return squares, exact


def _checked_rounds(
    patterns: Sequence[Sequence[int]], num_rounds: int
) -> np.ndarray:
  rounds = np.sort(np.asarray(patterns), axis=1)
  if not np.issubdtype(rounds.dtype, np.integer):
    raise ValueError(f'patterns must hold whole rounds, got {rounds.dtype}')
  if rounds[:, 0].min() < 0 or rounds[:, -1].max() >= num_rounds:
    raise ValueError(
        f'patterns must lie in rounds 0 to {num_rounds - 1}, got rounds'
        f' {rounds[:, 0].min()} to {rounds[:, -1].max()}'
    )
  twice = (np.diff(rounds, axis=1) == 0).any(axis=1)
  if twice.any():
    raise ValueError(
        'a pattern must not hold a round twice, got'
        f' {rounds[twice][0].tolist()}'
    )
  return rounds
