"""The sensitivity of any C, from its Gram matrix X = CᵀC."""

import math

import numpy as np

from fl_dpftrl.participation import schemas
from fl_dpftrl.sensitivity import base, patterns, search, signed

_CHUNK_ENTRIES = 1 << 22  # float64 values of working memory: 32 MiB
_MOST_SIGNED = 1 << 18  # most rounds³ of runs with negative entries


def gram_sensitivity(gram: np.ndarray, schema: schemas.MinSep) -> base.Sensitivity:
  """Returns the sensitivity of a C with Gram matrix X = CᵀC.

  Under min-sep it is the result of a search over patterns, which is mostly the exact value,
  even if X has negative entries; see `search` and `signed`. If the search would take too long
  or proves less, a bound is used. A pattern π holds round i and rounds at least min_sep away.
  So Σ over i, j in π of |X[i, j]| is at most Σ over i in π of vᵢ, with vᵢ the largest possible
  sum of |X[i, i]| and allowed entries of row i. The square root is taken once, of the outer
  maximum: rooting the inner ones too would understate the sensitivity.

  Args:
    gram: shape [num_rounds, num_rounds], symmetric.
    schema: a MinSep or a FixedSeparation.

  Raises:
    ValueError: if gram has another shape or values that are not finite.

  Source: Choquette-Choo et al. 2023, theorem 2 and algorithms 3 and 4, for the bound by vᵢ.
  Leaving out the entries of a row that are closer than min_sep makes it tighter, and exact if
  no other entry is left.
  """
  gram = np.asarray(gram, dtype=np.float64)
  if gram.shape != (schema.num_rounds, schema.num_rounds):
    raise ValueError(f'gram must be square with {schema.num_rounds} rows, got shape {gram.shape}')
  if not np.isfinite(gram).all():
    raise ValueError('gram must be finite')
  if isinstance(schema, schemas.FixedSeparation):
    return _fixed_separation(gram, schema)
  if schema.participations == 2:
    square = _worst_pair(gram, schema.min_sep)
    return base.Sensitivity(math.sqrt(square), base.EXACT)
  squares, exact = _row_maxima(gram, schema)
  value = math.sqrt(patterns.worst_sum(squares, schema))
  result = base.Sensitivity(value, base.EXACT if exact else base.UPPER_BOUND)
  if exact:
    return result
  worst = search.worst_square(gram, schema.min_sep, schema.participations)
  if worst is None:
    return result
  square, exact = worst
  kind = base.EXACT if exact else base.UPPER_BOUND
  return base.better(result, base.Sensitivity(math.sqrt(square), kind))


def _worst_pair(gram: np.ndarray, min_sep: int) -> float:
  """Largest X[i, i] + X[j, j] + 2 |X[i, j]| over j - i >= min_sep."""
  diagonal = np.diagonal(gram)
  worst = float(diagonal.max())
  for i in range(gram.shape[0] - min_sep):
    pairs = diagonal[i + min_sep :] + 2.0 * np.abs(gram[i, i + min_sep :])
    worst = max(worst, float(diagonal[i] + pairs.max()))
  return worst


def _row_maxima(gram: np.ndarray, schema: schemas.MinSep) -> tuple[np.ndarray, bool]:
  """Returns vᵢ of `gram_sensitivity`, and whether rows have diagonals only."""
  num_rounds, min_sep = schema.num_rounds, schema.min_sep
  diagonal = np.diagonal(gram).copy()
  others = schema.participations - 1
  if not others:
    return diagonal, True
  best, exact = np.empty(num_rounds), True
  rounds = np.arange(num_rounds)
  # A pattern with row i has room for one round fewer. If as many as fit are allowed, that
  # remains so, and `max_min_sep_sum` need not count them.
  if schema.participations == -(-num_rounds // min_sep):
    others = None
  chunk = max(1, _CHUNK_ENTRIES // (num_rounds + min_sep * (others or 1)))
  for start in range(0, num_rounds, chunk):
    rows = rounds[start : start + chunk]
    allowed = np.abs(rows[:, None] - rounds) >= min_sep
    entries = np.where(allowed, np.abs(gram[rows]), 0.0)
    if entries.any():
      exact = False
      best[rows] = patterns.max_min_sep_sum(entries, min_sep, others)
    else:
      best[rows] = 0.0
  return diagonal + best, exact


def _fixed_separation(gram: np.ndarray, schema: schemas.FixedSeparation) -> base.Sensitivity:
  """Returns the worst sum over patterns: runs of rounds min_sep apart."""
  step, count = schema.min_sep, schema.participations
  total = patterns.repeated(np.diagonal(gram), step, count)
  negative = False
  for lag in range(1, count):
    entries = np.diagonal(gram, lag * step)
    negative = negative or bool((entries < 0.0).any())
    total[lag * step :] += 2.0 * patterns.repeated(np.abs(entries), step, count - lag)
  if not negative or count == 2:
    return base.Sensitivity(math.sqrt(float(total.max())), base.EXACT)
  square, exact = _worst_run(gram, schema, total)
  return base.Sensitivity(math.sqrt(square), base.EXACT if exact else base.UPPER_BOUND)


def _worst_run(
  gram: np.ndarray, schema: schemas.FixedSeparation, bounds: np.ndarray
) -> tuple[float, bool]:
  """Returns the worst square over runs, or a bound, and whether it is exact.

  Runs are tried in the order of their bounds, the largest first.

  Args:
    gram: X.
    schema: schema of the runs.
    bounds: for each round, a bound for the run that ends there.
  """
  order = np.argsort(-bounds, kind='stable')
  worst, exact, work = 0.0, True, 0
  for last in order:
    if bounds[last] <= worst:
      break
    run = np.arange(last, -1, -schema.min_sep)[: schema.participations]
    work += run.size**3
    if work > _MOST_SIGNED:
      return max(worst, float(bounds[last])), False
    squares, found = signed.worst_squares(gram[np.ix_(run, run)][None])
    # A run's own value is exact for the whole only if it is the largest.
    if squares[0] > worst:
      worst, exact = float(squares[0]), bool(found[0])
  return worst, exact
