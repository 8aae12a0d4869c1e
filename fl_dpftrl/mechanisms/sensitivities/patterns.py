"""Patterns of rounds: sums over them, their worst updates, and those that occurred.

Updates are unit vectors, so the square of a pattern, Σ X[i, j] ⟨uᵢ, uⱼ⟩, is linear in the matrix
of inner products, which is any positive semidefinite one with a diagonal of ones. The largest
value is that of a semidefinite programme. Its dual minimises Σ λᵢ subject to diag(λ) − X ⪰ 0.
Every such λ proves a bound, and the best one proves the exact value.
"""

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.mechanisms.sensitivities import kinds

CHUNK_ENTRIES = 1 << 22  # float64 values of working memory: 32 MiB
_MOST_SIGNED = 1 << 21  # most patterns times length³ with negative entries
_RELATIVE_GAP = 1e-10  # between the value reached and the proven bound
_SWEEPS_BETWEEN = 25


def repeated(values: np.ndarray, step: int, count: int) -> np.ndarray:
  """Returns Σ over a < count of values[i − a·step] for each i: columns 0, step, … of Toeplitz C."""
  blocks = -(-values.size // step)
  padded = np.zeros((blocks, step))
  padded.reshape(-1)[: values.size] = values
  total = np.cumsum(padded, axis=0)
  if count < blocks:
    total[count:] -= total[:-count].copy()
  return total.reshape(-1)[: values.size]


def max_min_sep_sum(
  values: np.ndarray, min_sep: int, max_participations: int | None = None
) -> np.ndarray:
  """Returns for each row the largest sum over at most k entries at least b apart; values ≥ 0.

  If k is None or as many entries fit, they need not be counted.
  """
  is_counted = max_participations and max_participations < -(-values.shape[1] // min_sep)
  return separated_sums(values, min_sep, max_participations if is_counted else None)[-1]


def separated_sums(values: np.ndarray, min_sep: int, most: int | None) -> np.ndarray:
  """Returns the largest sum over at most m + 1 entries of a row at least b apart, shape [m, row].

  F[i, m] = max(vᵢ + F[i + b, m − 1], F[i + 1, m]), 0 beyond the rounds, for all rows at once.
  m is below most. If most is None, the number of entries is not limited, and m is dropped.

  Source: Choquette-Choo et al. 2023, algorithm VecSens, without its root.
  """
  num_rows, num_rounds = values.shape
  depth = 1 if most is None else most
  # recent[i % b] holds F[i + b, 1:] until F[i, 1:] is written there.
  recent = np.zeros((min_sep, depth, num_rows))
  following, nothing = np.zeros((depth, num_rows)), np.zeros((1, num_rows))
  columns = np.ascontiguousarray(values.T)
  for i in reversed(range(num_rounds)):
    earlier = recent[i % min_sep]
    if most is not None:
      earlier = np.concatenate([nothing, earlier[:-1]])
    following = np.maximum(columns[i] + earlier, following)
    recent[i % min_sep] = following
  return following


def worst_sum(values: np.ndarray, schema: schemas.Schema) -> float:
  """Returns the largest sum of values, at least 0, over one allowed pattern."""
  if isinstance(schema, schemas.Fixed):
    return float(repeated(values, schema.min_sep, schema.participations).max())
  return float(max_min_sep_sum(values[None], schema.min_sep, schema.participations)[0])


def most_of_both(first: np.ndarray, second: np.ndarray, size: int) -> np.ndarray:
  """Returns the largest first[i] + second[m − i] for each m < size; size ≤ both sizes + 1."""
  if first.size > second.size:
    first, second = second, first
  total = np.full(size, -(1 << 60), second.dtype)
  for i, value in enumerate(first[:size]):
    part = total[i : i + second.size]
    np.maximum(part, value + second[: part.size], out=part)
  return total


def worst_squares(grams: np.ndarray, sweeps: int = 2000) -> tuple[np.ndarray, np.ndarray]:
  """Bounds the largest Σ X[i, j] ⟨uᵢ, uⱼ⟩ over unit vectors, for each of several X.

  Args:
    grams: shape [patterns, k, k], each symmetric.
    sweeps: sweeps over all updates, after which a bound is left as it is.

  Returns:
    Bounds that are never below the largest values, shape [patterns]; and which of them are
    exact, to a relative 1e-10.
  """
  grams = np.asarray(grams, dtype=np.float64)
  bounds = np.abs(grams).sum(axis=(1, 2))
  size = grams.shape[1]
  # Two vectors can always be turned to each other, or away.
  exact = (grams >= 0.0).all(axis=(1, 2)) | (size <= 2)
  open_ = np.flatnonzero(~exact)
  updates = np.random.default_rng(0).normal(size=(open_.size, size, size))
  updates /= np.linalg.norm(updates, axis=2, keepdims=True)
  for sweep in range(sweeps):
    if not open_.size:
      break
    part = grams[open_]
    _ascend(part, updates)
    if (sweep + 1) % _SWEEPS_BETWEEN:
      continue
    reached = np.einsum('pij,pic,pjc->p', part, updates, updates)
    bounds[open_] = np.minimum(bounds[open_], _dual(part, updates))
    closed = bounds[open_] <= reached * (1.0 + _RELATIVE_GAP)
    exact[open_[closed]] = True
    open_, updates = open_[~closed], updates[~closed]
  return bounds, exact


def _ascend(grams: np.ndarray, updates: np.ndarray):
  """Turns each update, in place, in the direction that the others favour."""
  for i in range(grams.shape[1]):
    entries = grams[:, i].copy()
    entries[:, i] = 0.0
    pull = np.einsum('pj,pjc->pc', entries, updates)
    norms = np.linalg.norm(pull, axis=1)
    pulled = norms > 0.0
    updates[pulled, i] = pull[pulled] / norms[pulled, None]


def _dual(grams: np.ndarray, updates: np.ndarray) -> np.ndarray:
  """Returns a proven bound: λ as the updates suggest, raised until valid."""
  size = grams.shape[1]
  pulls = np.einsum('pij,pjc->pic', grams, updates)
  diagonal = np.einsum('pic,pic->pi', pulls, updates)
  slack = diagonal[:, :, None] * np.eye(size) - grams
  lowest = np.linalg.eigvalsh(slack)[:, 0]
  # Adds the largest error that rounding can cause in the lowest eigenvalue.
  hidden = 1e-15 * size * (np.abs(grams).sum(axis=2).max(axis=1))
  return diagonal.sum(axis=1) + size * np.maximum(0.0, hidden - lowest)


def pattern_squares(
  entries: kinds.Entries, rounds: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, bool]:
  """Returns the squared sensitivity of many patterns at once.

  The value of a pattern does not depend on the other patterns.

  Args:
    rounds: rounds of one pattern after the other, shape [sum of sizes].
    sizes: rounds of each pattern, shape [patterns].

  Returns:
    Squares, shape [patterns]; and whether all of them are exact. If X has negative entries between
    rounds of a pattern, `worst_squares` gives its value. If there are too many such patterns, or
    too long ones, the value is Σ |X[i, j]|, an upper bound.
  """
  squares, exact = np.zeros(sizes.size), True
  ends = np.cumsum(sizes)
  for size in np.unique(sizes[sizes > 0]).tolist():
    which = np.flatnonzero(sizes == size)
    chunk = max(1, CHUNK_ENTRIES // size**2)
    for first in range(0, which.size, chunk):
      part = which[first : first + chunk]
      starts = ends[part] - size
      squares[part], all_exact = _squares(entries, rounds[starts[:, None] + np.arange(size)])
      exact = exact and all_exact
  return squares, exact


def _squares(gram_entries: kinds.Entries, rounds: np.ndarray) -> tuple[np.ndarray, bool]:
  """Squares for patterns of one length, and whether all of them are exact."""
  count, length = rounds.shape
  if count * length**2 > CHUNK_ENTRIES and length > 1:
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
  squares[which], exact = worst_squares(gram_entries(part[:, :, None], part[:, None, :]))
  return squares, which.size == negative.size and bool(exact.all())


def _squares_by_rows(gram_entries: kinds.Entries, rounds: np.ndarray) -> tuple[np.ndarray, bool]:
  """Squares of very long patterns, computed a few rows of X at a time."""
  count, length = rounds.shape
  squares, exact = np.zeros(count), True
  rows = max(1, CHUNK_ENTRIES // (count * length))
  for start in range(0, length, rows):
    part = rounds[:, start : start + rows]
    entries = gram_entries(part[:, :, None], rounds[:, None, :])
    exact = exact and bool((entries >= 0.0).all())
    squares += np.abs(entries).sum(axis=(1, 2))
  return squares, exact
