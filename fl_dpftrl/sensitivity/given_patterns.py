"""The sensitivity of participation patterns that occurred."""

from collections.abc import Sequence

import numpy as np

from fl_dpftrl.sensitivity import base, signed

_CHUNK_ENTRIES = 1 << 22  # float64 values of working memory: 32 MiB
_MOST_SIGNED = 1 << 21  # most patterns times length³ with negative entries


def pattern_sensitivity(
  strategy: base.HasEntries, num_rounds: int, patterns: Sequence[Sequence[int]]
) -> tuple[np.ndarray, str]:
  """Returns the sensitivity of each given pattern of rounds of one device.

  Args:
    strategy: C.
    num_rounds: n, rounds that consumed noise.
    patterns: for each, distinct rounds from 0 to num_rounds - 1.

  Returns:
    Values of shape [len(patterns)], and their kind. The kind is 'exact' if all of them are. If
    X has negative entries between rounds of a pattern, `signed` gives its value. If there are
    too many such patterns, or too long ones, the value is Σ |X[i, j]| and the kind
    'upper_bound'.

  Raises:
    ValueError: for a round out of range or twice in a pattern, or more rounds than the strategy
      can run.
  """
  sizes = np.array([len(pattern) for pattern in patterns], dtype=np.int64)
  rounds = [np.asarray(pattern) for pattern in patterns if len(pattern)]
  rounds = np.concatenate(rounds) if rounds else np.zeros(0, np.int64)
  _check_rounds(rounds, sizes, num_rounds)
  entries = strategy.gram_entries(num_rounds)
  squares, exact = pattern_squares(entries, rounds.astype(np.int64), sizes)
  return np.sqrt(squares), base.EXACT if exact else base.UPPER_BOUND


def pattern_squares(
  entries: base.Entries, rounds: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, bool]:
  """Returns the squared sensitivity of many patterns at once.

  The value of a pattern does not depend on the other patterns.

  Args:
    entries: entries of X.
    rounds: rounds of one pattern after the other, shape [sum of sizes].
    sizes: rounds of each pattern, shape [patterns].

  Returns:
    Squares, shape [patterns]; and whether all of them are exact, rather than upper bounds as in
    `pattern_sensitivity`.
  """
  squares, exact = np.zeros(sizes.size), True
  ends = np.cumsum(sizes)
  for size in np.unique(sizes[sizes > 0]).tolist():
    which = np.flatnonzero(sizes == size)
    chunk = max(1, _CHUNK_ENTRIES // size**2)
    for first in range(0, which.size, chunk):
      part = which[first : first + chunk]
      starts = ends[part] - size
      found, all_exact = _squares(entries, rounds[starts[:, None] + np.arange(size)])
      squares[part] = found
      exact = exact and all_exact
  return squares, exact


def _squares(gram_entries: base.Entries, rounds: np.ndarray) -> tuple[np.ndarray, bool]:
  """Squares for patterns of one length, and whether all of them are exact."""
  count, length = rounds.shape
  if count * length**2 > _CHUNK_ENTRIES and length > 1:
    return _squares_by_rows(gram_entries, rounds)
  # Row by row in memory, so that a pattern's terms are summed in one order.
  first, second = np.triu_indices(length, 1)
  above = gram_entries(np.take(rounds, first, axis=1), np.take(rounds, second, axis=1))
  diagonal = gram_entries(rounds, rounds)
  if (above >= 0.0).all():
    return diagonal.sum(axis=1) + 2.0 * above.sum(axis=1), True
  squares = diagonal.sum(axis=1) + 2.0 * np.abs(above).sum(axis=1)
  # If there are too many, those that may be the worst come first.
  negative = np.flatnonzero((above < 0.0).any(axis=1))
  worst = np.argsort(-squares[negative], kind='stable')
  which = negative[worst[: _MOST_SIGNED // length**3]]
  if not which.size:
    return squares, False
  part = rounds[which]
  squares[which], found = signed.worst_squares(gram_entries(part[:, :, None], part[:, None, :]))
  return squares, which.size == negative.size and bool(found.all())


def _squares_by_rows(gram_entries: base.Entries, rounds: np.ndarray) -> tuple[np.ndarray, bool]:
  """Squares of very long patterns, computed a few rows of X at a time."""
  count, length = rounds.shape
  squares, exact = np.zeros(count), True
  rows = max(1, _CHUNK_ENTRIES // (count * length))
  for start in range(0, length, rows):
    part = rounds[:, start : start + rows]
    entries = gram_entries(part[:, :, None], rounds[:, None, :])
    exact = exact and bool((entries >= 0.0).all())
    squares += np.abs(entries).sum(axis=(1, 2))
  return squares, exact


def _check_rounds(rounds: np.ndarray, sizes: np.ndarray, num_rounds: int) -> None:
  if not rounds.size:
    return
  if not np.issubdtype(rounds.dtype, np.integer):
    raise ValueError(f'patterns must hold whole rounds, got {rounds.dtype}')
  if rounds.min() < 0 or rounds.max() >= num_rounds:
    raise ValueError(
      f'patterns must lie in rounds 0 to {num_rounds - 1}, got rounds'
      f' {rounds.min()} to {rounds.max()}'
    )
  owner = np.repeat(np.arange(sizes.size), sizes)
  order = np.lexsort((rounds, owner))
  twice = (np.diff(rounds[order]) == 0) & (np.diff(owner[order]) == 0)
  if twice.any():
    pattern = rounds[owner == owner[order][np.flatnonzero(twice)[0]]]
    raise ValueError(f'a pattern must not hold a round twice, got {np.sort(pattern).tolist()}')
