"""X of a stream of noise with rows for ever, and the largest loss of a device in it.

X[s, t] is |Σ_r C[r, s] C[r, t]| over all rows r, those that are never computed included. With
absolute values, no direction of an update, and no rule by which a device comes back, makes a
device's loss Σ X[s, t] over its rounds s and t too small.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from fl_dpftrl.mechanisms.sensitivities import kinds, patterns

SLACK = 1.0 + 1e-8
"""Factor on a budget of loss: else rounding refuses patterns that are as costly as the budget."""


class Lags(NamedTuple):
  """X of a Toeplitz C, by the lag d = t − s.

  X(d) is table[d] below len(table), and rest + Σ scales · decays^(d − len(table)) from there on.

  Attributes:
    table: X(0), X(1), …; at least one entry.
    decays: θ of each geometric series, 0 to 1.
    scales: factors of the series, at least 0.
    rest: bound on |X(d)| beyond the table without the series.
    has_signs: whether some products of columns of C are below 0.
  """

  table: np.ndarray
  decays: np.ndarray = np.zeros(0)
  scales: np.ndarray = np.zeros(0)
  rest: float = 0.0
  has_signs: bool = False

  @property
  def own(self) -> float:
    """X(0), the loss of one participation."""
    return float(self.table[0])

  @property
  def least(self) -> float:
    """The least loss of one participation."""
    return self.own

  @property
  def falls(self) -> bool:
    """True if X falls with the lag, so that a device that may come may come later too."""
    beyond = self.at(np.array([self.table.size]))[0]
    return bool((np.diff(self.table) <= 0.0).all() and beyond <= self.table[-1]) and not self.rest

  def at(self, lags: np.ndarray) -> np.ndarray:
    """Returns X at each lag, which is at least 0."""
    if lags.max(initial=0) < self.table.size:
      return self.table[lags]
    entries = self.table[np.minimum(lags, self.table.size - 1)]
    is_beyond = lags >= self.table.size
    beyond = (lags[is_beyond] - self.table.size)[:, None]
    entries[is_beyond] = self.rest + np.power(self.decays, beyond) @ self.scales
    return entries

  def entries(self, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Returns X[s, t] for rounds s ≤ t."""
    return self.at(later - earlier)

  def tabulated(self, num_rounds: int) -> 'Lags':
    """Returns the same X with a table of so many lags at least, which is quicker."""
    more = num_rounds - self.table.size
    if more <= 0:
      return self
    table = self.at(np.arange(num_rounds))
    return self._replace(table=table, scales=self.scales * self.decays**more)

  def worst_square(self, min_sep: int, max_participations: int) -> kinds.Sensitivity:
    """Returns √(k X(0) + 2 Σ_{m<k} F(m)); F(m) is the largest sum of X over m lags b apart.

    It is exact where X is positive and falls with the lag: rounds min_sep apart are the worst then,
    with updates of one direction.
    """
    more, size = max_participations - 1, self.table.size
    falls = self.falls
    if falls or size <= min_sep:
      sums = np.cumsum(self.at(min_sep * np.arange(1, more + 1)))
    elif self.decays.size:
      raise ValueError('X must fall with the lag where it has geometric series')
    else:
      fits = min(more, -(-(size - min_sep) // min_sep))
      inside = patterns.separated_sums(self.table[None, min_sep:], min_sep, fits)[:, 0]
      inside = np.append(inside, np.full(more - fits, inside[-1] if fits else 0.0))
      sums = inside + self.rest * np.arange(1, more + 1)
    square = max_participations * self.own + 2.0 * float(sums.sum())
    is_exact = max_participations == 1 or (falls and not self.has_signs)
    return kinds.Sensitivity.from_square(square, exact=is_exact)


class Blocks(NamedTuple):
  """X of a C that starts again with every block of rounds.

  Attributes:
    block_rounds: rounds of a block.
    within: function from rounds of one block to entries of its X, signs included.
    sensitivity: function from min_sep, max_participations and a number of rounds to the sensitivity
      of so many.
    own: the largest loss of one participation.
    least: the least loss of one participation.
    falls: False, as a device's loss depends on where a block begins.
  """

  block_rounds: int
  within: kinds.Entries
  sensitivity: Callable[[int, int, int], kinds.Sensitivity]
  own: float
  least: float
  falls: bool = False

  def tabulated(self, num_rounds: int) -> 'Blocks':
    """Returns itself."""
    del num_rounds
    return self

  def entries(self, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Returns X[s, t], which is 0 for rounds of two blocks."""
    earlier, later = np.broadcast_arrays(earlier, later)
    size, total = self.block_rounds, np.zeros(earlier.shape)
    which = earlier // size == later // size
    total[which] = np.abs(self.within(earlier[which] % size, later[which] % size))
    return total

  def worst_square(self, min_sep: int, max_participations: int) -> kinds.Sensitivity:
    """Returns the sensitivity of as many rounds as any worst pattern needs.

    Whole blocks without a participation can be left out of a pattern as long as min_sep rounds
    stay between its neighbours. So at most ⌈b / block⌉ + 1 of them follow a block that has one.
    """
    blocks = max_participations * (2 - (-min_sep // self.block_rounds))
    return self.sensitivity(min_sep, max_participations, blocks * self.block_rounds)


Gram = Lags | Blocks
"""X of a C with rows for ever."""


class FiniteGram(NamedTuple):
  """X of a C with a last row, for losses that are followed round by round.

  Attributes:
    signed: function from rounds to entries, signs included.
    least: the least loss of one participation.
  """

  signed: kinds.Entries
  least: float

  @classmethod
  def of(cls, signed: kinds.Entries, num_rounds: int) -> 'FiniteGram':
    """Returns X of so many rows."""
    rounds = np.arange(num_rounds)
    return cls(signed, float(signed(rounds, rounds).min()))

  def tabulated(self, num_rounds: int) -> 'FiniteGram':
    """Returns itself."""
    del num_rounds
    return self

  def entries(self, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Returns X[s, t], which is at least 0."""
    return np.abs(self.signed(*np.broadcast_arrays(earlier, later)))


def column_lags(column: np.ndarray, tail_square: float = 0.0) -> Lags:
  """Returns X of a Toeplitz C by its first coefficients.

  Args:
    column: coefficients c, shape [any].
    tail_square: at least the sum of the squares of those that follow.
  """
  products = scipy.signal.correlate(column, column)[column.size - 1 :]
  # By Cauchy and Schwarz, twice: one factor of a product, or both, are in the tail.
  rest = 2.0 * float(np.sqrt((column @ column + tail_square) * tail_square))
  return Lags(np.abs(products) + rest, rest=rest, has_signs=bool((products < 0.0).any()))
