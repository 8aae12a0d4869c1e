"""The worst min-sep pattern of any X, by branch and bound.

Σ |X[i, j]| over a pattern is the sum over its rounds i of |X[i, i]| plus twice the entries of
row i at its later rounds. On its own, each row would take the best later rounds it can get.
Dynamic programmes turn this into bounds on what a round and those after it add, where the next
round is chosen once for the row and the rest of the pattern. Patterns are then built from their
first round on, the largest bound first, until no remaining bound exceeds the best value found.
"""

import heapq

import numpy as np

from fl_dpftrl.sensitivity import signed

_MOST_STEPS = 1 << 27  # most rounds² times participations, for the bounds
_MOST_VISITS = 1 << 23  # most entries that the search reads
_MOST_SIGNED = 1 << 18  # most rounds³ of all semidefinite programmes
_SWEEPS = 250  # of each
_CHUNK_ENTRIES = 1 << 22  # float64 values of working memory: 32 MiB
_ROUNDING = 1e-12


def worst_square(gram: np.ndarray, min_sep: int, most: int) -> tuple[float, bool] | None:
  """Returns a bound on the worst ‖C u‖² under min-sep, and whether it is exact.

  Args:
    gram: X, shape [num_rounds, num_rounds], symmetric.
    min_sep: b.
    most: k, at least 1.

  Returns:
    The square and whether it is exact, to a relative 1e-12; None if the bounds alone would take
    too long. The length of the search depends on sizes alone, so that the same X gives the same
    result everywhere.
  """
  num_rounds = len(gram)
  if num_rounds**2 * most > _MOST_STEPS:
    return None
  return _Search(gram, min_sep, most).run()


class _Search:
  """The state of one search."""

  def __init__(self, gram: np.ndarray, min_sep: int, most: int):
    self.gram, self.min_sep, self.most = gram, min_sep, most
    self.size = len(gram)
    self.weights = np.abs(gram)
    self.diagonal = np.diagonal(self.weights).copy()
    self.negative = bool((gram < 0.0).any())
    self.signed_left = _MOST_SIGNED
    self.reached = 0.0
    self._bound_tails()

  def _bound_tails(self):
    """Computes bounds on what rounds can still add.

    row[i, m] is the largest sum of row i at up to m later rounds. tail[i, m] is a bound on what
    round i adds with up to m rounds after it.
    """
    size, b, most = self.size, self.min_sep, self.most
    self.row = np.zeros((size, most))
    self.tail = np.zeros((size, most))
    self.tail[:, 0] = self.diagonal
    chunk = max(1, _CHUNK_ENTRIES // ((size + b) * most))
    for end in range(size, 0, -chunk):
      rows = np.arange(max(0, end - chunk), end)
      # best[s, i, m]: the largest sum of up to m entries of row i from s on.
      best = np.zeros((size + b + 1, rows.size, most))
      for s in reversed(range(rows[0] + b, size)):
        best[s] = best[s + 1]
        taken = self.weights[rows, s][:, None] + best[min(s + b, size), :, :-1]
        np.maximum(best[s, :, 1:], taken, out=best[s, :, 1:])
      for i in rows[::-1]:
        if i + b >= size:
          continue
        own = best[:, i - rows[0]]
        self.row[i] = own[i + b]
        later = np.arange(i + b, size)
        after = own[np.minimum(later + b, size), : most - 1]
        through = 2.0 * (self.weights[i, later, None] + after)
        through = (through + self.tail[later, : most - 1]).max(axis=0)
        self.tail[i] = self.diagonal[i]
        self.tail[i, 1:] += through
    self.tail = np.maximum.accumulate(self.tail, axis=1)

  def run(self) -> tuple[float, bool]:
    self._try_regular_patterns()
    heap: list[tuple[float, tuple[int, ...], float]] = [(-float(self.tail[:, -1].max()), (), 0.0)]
    visits = resolved = 0.0
    while heap:
      bound, pattern, total = heap[0]
      if -bound <= max(self.reached, resolved) * (1.0 + _ROUNDING):
        break
      if visits > _MOST_VISITS:
        return max(-bound, resolved), False
      heapq.heappop(heap)
      first = pattern[-1] + self.min_sep if pattern else 0
      left = self.most - len(pattern)
      total, exact = self._total(pattern, total)
      if not left or first >= self.size:
        resolved = max(resolved, total)
        if exact:
          self.reached = max(self.reached, total)
        continue
      visits += (self.size - first) * (left + len(pattern)) + 100
      linear, bounds = self._children(pattern, first, left)
      bounds = np.minimum(total + bounds, -bound)
      bounds[self._leaves_room(pattern, first)] = 0.0
      open_ = bounds > max(self.reached, resolved) * (1.0 + _ROUNDING)
      for t in np.flatnonzero(open_):
        child = total + linear[t] + self.diagonal[first + t]
        heapq.heappush(heap, (-float(bounds[t]), (*pattern, first + int(t)), child))
      visits += 30.0 * open_.sum()
    value = max(self.reached, resolved)
    return value, self.reached >= value * (1.0 - _ROUNDING)

  def _leaves_room(self, pattern: tuple[int, ...], first: int) -> np.ndarray:
    """Returns for each next round whether one more always fits in before it.

    A pattern is no worse than the same pattern with one more round.
    """
    after = np.arange(first, self.size)
    fits = len(pattern) + 1 + -(-(self.size - after) // self.min_sep) - 1
    return (after - first >= self.min_sep) & (fits < self.most)

  def _children(
    self, pattern: tuple[int, ...], first: int, left: int
  ) -> tuple[np.ndarray, np.ndarray]:
    """Returns twice each next round's entries with the pattern, and a bound.

    The bound is on what it and the rounds after it add. It is the smaller of two: a programme
    that takes entries with the pattern and with later rounds together, and one that takes them
    separately.
    """
    b, size = self.min_sep, self.size - first
    linear = 2.0 * self.weights[list(pattern), first:].sum(axis=0)
    both, alone = np.zeros(size + b), np.zeros(size + b)
    for m in range(left):
      ahead_both = np.maximum.accumulate(both[::-1])[::-1][b:]
      ahead_alone = np.maximum.accumulate(alone[::-1])[::-1][b:]
      own = self.diagonal[first:] + 2.0 * self.row[first:, m]
      both[:size] = linear + own + ahead_both[:size]
      alone[:size] = linear + ahead_alone[:size]
    return linear, np.minimum(both[:size], alone[:size] + self.tail[first:, left - 1])

  def _total(self, pattern: tuple[int, ...], total: float) -> tuple[float, bool]:
    """Returns a pattern's worst square, or a bound; and whether it is exact."""
    if not self.negative or len(pattern) <= 2:
      return total, True
    block = self.gram[np.ix_(pattern, pattern)]
    if (block >= 0.0).all():
      return total, True
    self.signed_left -= len(pattern) ** 3
    if self.signed_left < 0:
      return total, False
    squares, exact = signed.worst_squares(block[None], sweeps=_SWEEPS)
    return min(total, float(squares[0])), bool(exact[0])

  def _try_regular_patterns(self):
    """Tries rounds min_sep apart, improved round by round, as lower bounds."""
    step, best = self.min_sep, (0.0, np.zeros(0, int))
    for start in range(min(self.size, 4 * step, 256)):
      pattern = np.arange(start, self.size, step)[: self.most]
      total = float(self.weights[np.ix_(pattern, pattern)].sum())
      best = max(best, (total, pattern), key=lambda found: found[0])
    for _ in range(2):
      pattern = np.arange(self.size)[:: max(step, self.size // self.most)]
      for candidate in (best[1], pattern[: self.most]):
        total, improved = self._improved(candidate.copy())
        best = max(best, (total, improved), key=lambda found: found[0])
    total, exact = self._total(tuple(best[1].tolist()), best[0])
    if exact:
      self.reached = total

  def _improved(self, pattern: np.ndarray) -> tuple[float, np.ndarray]:
    """Moves each round to the best place between its neighbours."""
    for _ in range(20):
      before = pattern.copy()
      for index, _ in enumerate(pattern):
        low = pattern[index - 1] + self.min_sep if index else 0
        high = self.size
        if index + 1 < pattern.size:
          high = pattern[index + 1] - self.min_sep + 1
        others = np.delete(pattern, index)
        gains = self.diagonal[low:high] + 2.0 * self.weights[others, low:high].sum(axis=0)
        pattern[index] = low + int(np.argmax(gains))
      if (pattern == before).all():
        break
    return float(self.weights[np.ix_(pattern, pattern)].sum()), pattern
