"""The sensitivity of patterns that occurred."""

from typing import Sequence

import numpy as np

from fl_dpftrl.sensitivity import base
from fl_dpftrl.sensitivity import gram as gram_lib
from fl_dpftrl.strategies import base as strategies


_CHUNK_ENTRIES = 1 << 22  # float64 values of working memory: 32 MiB


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
    Values of shape [len(patterns)]; and 'exact' where X has no negative entry
    between two rounds of a pattern of three or more, otherwise 'upper_bound',
    for all of them.

  Raises:
    ValueError: for a round outside the rounds, or twice in a pattern, or more
      rounds than the strategy can run.
  """
  gram = gram_lib.gram_matrix(strategy, num_rounds)
  values, exact = np.zeros(len(patterns)), True
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
      entries = gram[rounds[:, :, None], rounds[:, None, :]]
      exact = exact and (length <= 2 or bool((entries >= 0.0).all()))
      values[part] = np.sqrt(np.abs(entries).sum(axis=(1, 2)))
  return values, base.EXACT if exact else base.UPPER_BOUND


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
