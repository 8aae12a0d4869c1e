"""The sensitivity of any C, from its Gram matrix X = CᵀC.

Under min-sep the worst pattern is found by branch and bound. Σ |X[i, j]| over a pattern is the
sum over its rounds i of |X[i, i]| plus twice the entries of row i at its later rounds. On its own,
each row would take the best later rounds it can get. Dynamic programmes turn this into bounds on
what a round and those after it add, where the next round is chosen once for the row and the rest
of the pattern. Patterns are then built from their first round on, the largest bound first, until
no remaining bound exceeds the best value reached.
"""

import heapq

import numpy as np

from fl_dpftrl.mechanisms import schemas
from fl_dpftrl.mechanisms.sensitivities import kinds, patterns

_MOST_STEPS = 1 << 27  # most rounds² times participations, for the bounds of a search
_MOST_VISITS = 1 << 23  # most entries that a search reads
_MOST_SIGNED = 1 << 18  # most rounds³ of all semidefinite programmes
_SWEEPS = 250  # of each
_ROUNDING = 1e-12


def gram_sensitivity(gram: np.ndarray, schema: schemas.Schema) -> kinds.Sensitivity:
  """Returns the sensitivity of a C with Gram matrix X = CᵀC.

  Under min-sep it is the result of a search over patterns, which is mostly the exact value,
  even if X has negative entries; see `worst_square` and `patterns.worst_squares`. If the search
  would take too long or proves less, a bound is used. A pattern π holds round i and rounds at
  least min_sep away. So Σ over i, j in π of |X[i, j]| is at most Σ over i in π of vᵢ, with vᵢ the
  largest possible sum of |X[i, i]| and allowed entries of row i. The square root is taken once,
  of the outer maximum: rooting the inner ones too would understate the sensitivity.

  Args:
    gram: shape [num_rounds, num_rounds], symmetric.

  Source: Choquette-Choo et al. 2023, theorem 2 and algorithms 3 and 4, for the bound by vᵢ.
  Leaving out the entries of a row that are closer than min_sep makes it tighter, and exact if
  no other entry is left.
  """
  gram = np.asarray(gram, dtype=np.float64)
  if gram.shape != (schema.num_rounds, schema.num_rounds):
    raise ValueError(f'gram must be square with {schema.num_rounds} rows, got shape {gram.shape}')
  if not np.isfinite(gram).all():
    raise ValueError('gram must be finite')
  if isinstance(schema, schemas.Fixed):
    return _fixed_separation(gram, schema)
  if schema.participations == 2:
    return kinds.Sensitivity.from_square(_worst_pair(gram, schema.min_sep))
  squares, exact = _row_maxima(gram, schema)
  result = kinds.Sensitivity.from_square(patterns.worst_sum(squares, schema), exact)
  if exact:
    return result
  worst = worst_square(gram, schema.min_sep, schema.participations)
  return kinds.better(result, kinds.Sensitivity.from_square(*worst)) if worst else result


def _worst_pair(gram: np.ndarray, min_sep: int) -> float:
  """Largest X[i, i] + X[j, j] + 2 |X[i, j]| over j - i >= min_sep."""
  diagonal = np.diagonal(gram)
  worst = float(diagonal.max())
  for i in range(gram.shape[0] - min_sep):
    pairs = diagonal[i + min_sep :] + 2.0 * np.abs(gram[i, i + min_sep :])
    worst = max(worst, float(diagonal[i] + pairs.max()))
  return worst


def _row_maxima(gram: np.ndarray, schema: schemas.Schema) -> tuple[np.ndarray, bool]:
  """Returns vᵢ of `gram_sensitivity`, and whether rows have diagonals only."""
  num_rounds, min_sep = schema.num_rounds, schema.min_sep
  diagonal = np.diagonal(gram).copy()
  others = schema.participations - 1
  if not others:
    return diagonal, True
  best, exact = np.zeros(num_rounds), True
  rounds = np.arange(num_rounds)
  # A pattern with row i has room for one round fewer. If as many as fit are allowed, that
  # remains so, and `max_min_sep_sum` need not count them.
  if schema.participations == -(-num_rounds // min_sep):
    others = None
  chunk = max(1, patterns.CHUNK_ENTRIES // (num_rounds + min_sep * (others or 1)))
  for start in range(0, num_rounds, chunk):
    rows = rounds[start : start + chunk]
    allowed = np.abs(rows[:, None] - rounds) >= min_sep
    entries = np.where(allowed, np.abs(gram[rows]), 0.0)
    if entries.any():
      exact = False
      best[rows] = patterns.max_min_sep_sum(entries, min_sep, others)
  return diagonal + best, exact


def _fixed_separation(gram: np.ndarray, schema: schemas.Fixed) -> kinds.Sensitivity:
  """Returns the worst sum over patterns: runs of rounds min_sep apart."""
  step, count = schema.min_sep, schema.participations
  total = patterns.repeated(np.diagonal(gram), step, count)
  negative = False
  for lag in range(1, count):
    entries = np.diagonal(gram, lag * step)
    negative = negative or bool((entries < 0.0).any())
    total[lag * step :] += 2.0 * patterns.repeated(np.abs(entries), step, count - lag)
  if not negative or count == 2:
    return kinds.Sensitivity.from_square(float(total.max()))
  return kinds.Sensitivity.from_square(*_worst_run(gram, schema, total))


def _worst_run(gram: np.ndarray, schema: schemas.Fixed, bounds: np.ndarray) -> tuple[float, bool]:
  """Returns the worst square over runs, tried by their bounds, or a bound; and if it is exact."""
  worst, exact, work = 0.0, True, 0
  for last in np.argsort(-bounds, kind='stable'):
    if bounds[last] <= worst:
      break
    run = np.arange(last, -1, -schema.min_sep)[: schema.participations]
    work += run.size**3
    if work > _MOST_SIGNED:
      return max(worst, float(bounds[last])), False
    (square,), (is_exact,) = patterns.worst_squares(gram[np.ix_(run, run)][None])
    # A run's own value is exact for the whole only if it is the largest.
    if square > worst:
      worst, exact = float(square), bool(is_exact)
  return worst, exact


def worst_square(gram: np.ndarray, min_sep: int, most: int) -> tuple[float, bool] | None:
  """Returns a bound on the worst ‖C u‖² under min-sep, and whether it is exact.

  Args:
    gram: X, shape [num_rounds, num_rounds], symmetric.
    most: k, at least 1.

  Returns:
    The square and whether it is exact, to a relative 1e-12; None if only the bounds would take
    too long. The length of the search depends only on sizes, so that the same X gives the same
    result everywhere.
  """
  if len(gram) ** 2 * most > _MOST_STEPS:
    return None
  return _PatternSearch(gram, min_sep, most).run()


class _PatternSearch:
  """The state of one search.

  Attributes:
    row: [i, m], the largest sum of row i at up to m later rounds.
    tail: [i, m], a bound on what round i adds with up to m rounds after it.
    reached: largest square of a pattern so far.
    signed_budget: rounds³ that semidefinite programmes may still take.
  """

  def __init__(self, gram: np.ndarray, min_sep: int, most: int):
    self.gram, self.min_sep, self.most = gram, min_sep, most
    self.size = len(gram)
    self.weights = np.abs(gram)
    self.diagonal = np.diagonal(self.weights).copy()
    self.negative = bool((gram < 0.0).any())
    self.signed_budget = _MOST_SIGNED
    self.reached = 0.0
    self._bound_tails()

  def _bound_tails(self):
    size, b, most = self.size, self.min_sep, self.most
    self.row = np.zeros((size, most))
    self.tail = np.zeros((size, most))
    self.tail[:, 0] = self.diagonal
    chunk = max(1, patterns.CHUNK_ENTRIES // ((size + b) * most))
    for end in range(size, 0, -chunk):
      rows = np.arange(max(0, end - chunk), end)
      # best[s, i, m]: the largest sum of up to m entries of row i from s on.
      best = np.zeros((size + b + 1, rows.size, most))
      for s in reversed(range(rows[0] + b, size)):
        best[s] = best[s + 1]
        with_s = self.weights[rows, s][:, None] + best[min(s + b, size), :, :-1]
        np.maximum(best[s, :, 1:], with_s, out=best[s, :, 1:])
      for i in rows[::-1]:
        if i + b >= size:
          continue
        sums = best[:, i - rows[0]]
        self.row[i] = sums[i + b]
        later = np.arange(i + b, size)
        beyond = sums[np.minimum(later + b, size), : most - 1]
        through = 2.0 * (self.weights[i, later, None] + beyond)
        through = (through + self.tail[later, : most - 1]).max(axis=0)
        self.tail[i] = self.diagonal[i]
        self.tail[i, 1:] += through
    self.tail = np.maximum.accumulate(self.tail, axis=1)

  def run(self) -> tuple[float, bool]:
    self._try_regular_patterns()
    heap: list[tuple[float, tuple[int, ...], float]] = [(-float(self.tail[:, -1].max()), (), 0.0)]
    visits = resolved = passed_over = 0.0  # The last is the largest bound that is not looked into.
    while heap:
      bound, pattern, total = heap[0]
      if -bound <= max(self.reached, resolved) * (1.0 + _ROUNDING):
        passed_over = max(passed_over, -bound)
        break
      if visits > _MOST_VISITS:
        return max(-bound, resolved), False
      heapq.heappop(heap)
      first = pattern[-1] + self.min_sep if pattern else 0
      remaining = self.most - len(pattern)
      total, exact = self._total(pattern, total)
      if not remaining or first >= self.size:
        resolved = max(resolved, total)
        if exact:
          self.reached = max(self.reached, total)
        continue
      visits += (self.size - first) * (remaining + len(pattern)) + 100
      linear, bounds = self._children(pattern, first, remaining)
      bounds = np.minimum(total + bounds, -bound)
      bounds[self._leaves_room(pattern, first)] = 0.0
      open_ = bounds > max(self.reached, resolved) * (1.0 + _ROUNDING)
      passed_over = max(passed_over, float(bounds[~open_].max(initial=0.0)))
      for t in np.flatnonzero(open_):
        child = total + linear[t] + self.diagonal[first + t]
        heapq.heappush(heap, (-float(bounds[t]), (*pattern, first + int(t)), child))
      visits += 30.0 * open_.sum()
    value = max(self.reached, resolved, passed_over)
    return value, self.reached >= value * (1.0 - _ROUNDING)

  def _leaves_room(self, pattern: tuple[int, ...], first: int) -> np.ndarray:
    """Returns for each next round if one more fits in before it, which makes no pattern better."""
    rounds = np.arange(first, self.size)
    fits = len(pattern) + 1 + -(-(self.size - rounds) // self.min_sep) - 1
    return (rounds - first >= self.min_sep) & (fits < self.most)

  def _children(
    self, pattern: tuple[int, ...], first: int, remaining: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns twice each next round's entries with the pattern, and a bound on what follows."""
    b, size = self.min_sep, self.size - first
    linear = 2.0 * self.weights[list(pattern), first:].sum(axis=0)
    both, single = np.zeros(size + b), np.zeros(size + b)
    for m in range(remaining):
      ahead_both = np.maximum.accumulate(both[::-1])[::-1][b:]
      ahead_single = np.maximum.accumulate(single[::-1])[::-1][b:]
      entries = self.diagonal[first:] + 2.0 * self.row[first:, m]
      both[:size] = linear + entries + ahead_both[:size]
      single[:size] = linear + ahead_single[:size]
    return linear, np.minimum(both[:size], single[:size] + self.tail[first:, remaining - 1])

  def _total(self, pattern: tuple[int, ...], total: float) -> tuple[float, bool]:
    """Returns a pattern's worst square, or a bound; and whether it is exact."""
    if not self.negative or len(pattern) <= 2:
      return total, True
    block = self.gram[np.ix_(pattern, pattern)]
    if (block >= 0.0).all():
      return total, True
    self.signed_budget -= len(pattern) ** 3
    if self.signed_budget < 0:
      return total, False
    (square,), (exact,) = patterns.worst_squares(block[None], sweeps=_SWEEPS)
    return min(total, float(square)), bool(exact)

  def _try_regular_patterns(self):
    """Tries rounds min_sep apart, improved round by round, as lower bounds."""
    step, total, best = self.min_sep, 0.0, np.zeros(0, int)
    for start in range(min(self.size, 4 * step, 256)):
      pattern = np.arange(start, self.size, step)[: self.most]
      value = float(self.weights[np.ix_(pattern, pattern)].sum())
      if value > total:
        total, best = value, pattern
    for _ in range(2):
      pattern = np.arange(self.size)[:: max(step, self.size // self.most)]
      for candidate in (best, pattern[: self.most]):
        value, improved = self._improved(candidate.copy())
        if value > total:
          total, best = value, improved
    total, exact = self._total(tuple(best.tolist()), total)
    if exact:
      self.reached = total

  def _improved(self, pattern: np.ndarray) -> tuple[float, np.ndarray]:
    """Moves each round to the best place between its neighbours."""
    for _ in range(20):
      previous = pattern.copy()
      for index, _ in enumerate(pattern):
        low = pattern[index - 1] + self.min_sep if index else 0
        high = self.size
        if index + 1 < pattern.size:
          high = pattern[index + 1] - self.min_sep + 1
        others = np.delete(pattern, index)
        gains = self.diagonal[low:high] + 2.0 * self.weights[others, low:high].sum(axis=0)
        pattern[index] = low + int(np.argmax(gains))
      if (pattern == previous).all():
        break
    return float(self.weights[np.ix_(pattern, pattern)].sum()), pattern
