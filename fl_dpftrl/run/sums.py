"""Sums of bounded updates in whole numbers."""

import concurrent.futures
import math
from collections.abc import Callable, Sequence

import numpy as np

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.support import machine
from fl_dpftrl.support.kernels import sum_loops as loops

KEPT, CLIPPED, ZEROED, REJECTED = OUTCOMES = ('kept', 'clipped', 'zeroed', 'rejected')
"""What became of an update: it is in the sum as it was, or scaled down, or as zeros."""

_MARGIN = 1.0 - 2.0**-22  # See `Sum`.
_FAR = 2.0**-600  # Any number that is multiplied by it has a square in float64.
_PIECE = 1 << 20  # coordinates that are measured by themselves, whatever the number of threads
_AT_ONCE, _FEWEST = 1 << 20, 16  # coordinates, or updates, that are measured before they are added
_LARGE = 1 << 18  # coordinates of an update that several threads add
_MOST_THREADS = 8  # Memory is no faster for more.


class Sum:
  """The sum of the updates of a round, each no longer than the clip norm.

  Memory is 8 bytes a coordinate, for any number of updates. Sums are exact, so their bits do not
  depend on the order of the updates.

  An update x becomes kᵢ = trunc(fl(xᵢ·s)), where s is its scale, rounded to the type of x. Then
  ‖k‖ ≤ `unit.bound`, exactly, for any update of at most 2³⁶ coordinates:
  - Squares of float32 are exact in float64; those of float64 are off by 2⁻⁵³, or far below the clip
    norm. Each is in 2¹⁴ additions of its lane, 64 of lanes and 2¹⁶ of pieces at most, each of which
    is off by 2⁻⁵³: the norm is at least ‖x‖·(1 − 2⁻³⁷).
  - s is at most longest/norm, and off by 2⁻²⁴ of that; below 2⁻¹²⁶, where float32 has fewer bits,
    it is rounded down.
  - Where |kᵢ| ≥ 1, the product is off by 2⁻²⁴ of it; and truncation makes nothing longer.
  - longest is `unit.bound`·(1 − 2⁻²²), and (1 − 2⁻²²)·(1 + 2⁻²⁴)²·(1 + 2⁻³⁶) < 1.
  That is of an update that stays as it is. So Σ kᵢ² of what was added is compared too.

  Attributes:
    total: the sum, int64, shape [size], in units of updates; not to be changed.
  """

  def __init__(self, size: int, *, unit: lattice_units.Unit, zeroing_norm: float | None = None):
    self._unit, self._is_zeroing = unit, zeroing_norm is not None
    self._zeroing_norm = math.inf if zeroing_norm is None else zeroing_norm
    self._longest = unit.bound * _MARGIN
    self.total = np.zeros(size, np.int64)
    self._threads = min(machine.cores(), _MOST_THREADS) if size >= _LARGE else 1
    self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, 'sum')
    self._is_adding = False

  def begin(self, clip_norm: float) -> None:
    """Begins the sum of a round, with its clip norm."""
    self._clip_norm, self._scale = clip_norm, 1.0 / (self._unit.step * clip_norm)
    self.total[:] = 0
    if self._is_adding:  # It was interrupted: threads may still write to the sum of then.
      self.total = np.zeros_like(self.total)
    self._is_adding = False

  def add(self, arrays: Sequence[np.ndarray]) -> list[str]:
    """Adds updates, and returns what became of each.

    An update that holds a NaN or an infinity is rejected, and one with a coordinate beyond
    zeroing_norm is zeroed: neither changes the sum. One that is longer than the clip norm is scaled
    down to it. Each coordinate is rounded towards zero, so that nothing gets longer. A clipped
    update may fall short of the clip norm by 2⁻²¹ of it, and by what its coordinates lose.

    Args:
      arrays: parts of the updates, float32 or float64, each of shape [updates, coordinates].

    Raises:
      ValueError: if an update was changed meanwhile and got longer; the sum holds it then, and must
        not be released.
    """
    frozen = [_frozen(array) for array in arrays]
    at_once = max(_FEWEST, _AT_ONCE // self.total.size)  # They are read twice, the sums once.
    self._is_adding = True
    outcomes = [
      OUTCOMES[code]
      for first in range(0, len(frozen[0]), at_once)
      for code in self._add([array[first : first + at_once] for array in frozen]).tolist()
    ]
    self._is_adding = False
    return outcomes

  def add_last(self, totals: np.ndarray) -> None:
    """Adds whole numbers, int64, to the last coordinates, which updates do not have."""
    self.total[self.total.size - totals.size :] += totals

  def _add(self, arrays: Sequence[np.ndarray], shrunk: float = 1.0) -> np.ndarray:
    """Adds updates that were multiplied by `shrunk`, and returns the index of each outcome."""
    pieces, first = [], 0
    for array in arrays:
      size = array.shape[1]
      pieces += [(array, s, min(s + _PIECE, size), first + s) for s in range(0, size, _PIECE)]
      first += size
    count = len(arrays[0])
    squares, largest, added = np.zeros((3, len(pieces), count))
    self._spread(
      lambda i: loops.measure(*pieces[i], self._is_zeroing, squares[i], largest[i]), pieces
    )
    scales, codes = np.zeros(count), np.zeros(count, np.int64)
    loops.bound(
      squares,
      largest,
      self._scale / shrunk,
      self._longest,
      self._clip_norm * shrunk,
      self._zeroing_norm * shrunk,
      scales,
      codes,
    )
    self._spread(lambda i: loops.add(*pieces[i], scales, self.total, added[i]), pieces)
    if added.sum(axis=0).max(initial=0.0) > self._unit.most_square:
      raise ValueError(
        'an update was changed while it was added; add arrays that nobody else writes'
      )
    if shrunk == 1.0:  # Not finite, or too large for squares.
      for i in np.flatnonzero(codes == loops.REJECTED).tolist():
        row = [_frozen(array[i : i + 1].astype(np.float64) * _FAR) for array in arrays]
        codes[i] = self._add(row, _FAR)[0]
    return codes

  def _spread(self, work: Callable[[int], None], pieces: Sequence) -> None:
    """Does the work of each piece, by its index, on all threads."""
    for _ in (map if self._threads == 1 else self._pool.map)(work, range(len(pieces))):
      pass


def _frozen(array: np.ndarray) -> np.ndarray:
  """Returns a contiguous view that cannot be written: one type, for which loops are compiled."""
  view = (array if array.flags.c_contiguous else np.ascontiguousarray(array))[:]
  view.flags.writeable = False
  return view
