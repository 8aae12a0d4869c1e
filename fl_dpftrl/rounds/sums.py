"""Sums of bounded updates in whole numbers, in NumPy."""

import concurrent.futures
import functools
import math
import os
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fl_dpftrl.noise import units
from fl_dpftrl.rounds import in_jax

KEPT, CLIPPED, ZEROED, REJECTED = 'kept', 'clipped', 'zeroed', 'rejected'
"""What became of an update: it is in the sum as it was, or scaled down, or as zeros."""

_CHUNK = 1 << 17  # coordinates that are worked on in a processor's cache
# Squares of float32 are added up in so many terms, and their sums in float64. A square and a sum
# are each off by 2⁻²⁴ of it, so the norm is off by less than 2⁻¹⁸ in all.
_TERMS = 128
# A product in float32 and its factor are each off by 2⁻²⁴ of it, too. This is twice as much, which
# is room for the second order.
_MARGIN = 1.0 - 2.0**-16
# A square below this is taken for 0, or is less exact.
_LEAST_FLOAT32 = 2.0**-126
# Of an update that several threads add.
_LARGE = 1 << 18
# A coordinate has at most 2²⁴ units, so 2⁶ updates have a sum in int32.
_UPDATES_IN_32_BITS = 1 << 6


class Sum:
  """The sum of the updates of a round, each no longer than the clip norm.

  Memory is 12 bytes a coordinate, and some chunks, for any number of updates. Sums are exact, so
  their bits do not depend on the order of the updates.
  """

  def __init__(
    self, size: int, *, unit: units.Unit, clip_norm: float, zeroing_norm: float | None = None
  ):
    self._unit, self._clip_norm, self._zeroing_norm = unit, clip_norm, zeroing_norm
    self._total = np.zeros(size, np.int64)
    self._recent = np.zeros(size, np.int32)
    self._num_recent = 0
    self._whole = np.empty(_CHUNK if size <= _CHUNK else 0, np.int32)  # Of small updates.
    self._threads = _num_cores() if size >= _LARGE else 1
    self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, 'sum')

  def clear(self) -> None:
    """Begins the sum of another round."""
    self._total[:] = 0
    if self._num_recent:
      self._recent[:] = 0
      self._num_recent = 0

  def add(self, arrays: Sequence[np.ndarray]) -> str:
    """Adds an update, and returns what became of it.

    An update that holds a NaN or an infinity is rejected, and one with a coordinate beyond
    zeroing_norm is zeroed: neither changes the sum. One that is longer than the clip norm is scaled
    down to it. Each coordinate is rounded towards zero, so that nothing gets longer:
    ‖k‖ ≤ scale · ‖update‖ · (1 + 2⁻²²), where scale and product are float32. A clipped update may
    fall short of the clip norm by 2⁻¹⁵ of it, and by what its coordinates lose.
    """
    with np.errstate(over='ignore', invalid='ignore', under='ignore'):
      norm = self._norm(arrays)
    if norm is None:
      return REJECTED
    if self._zeroing_norm is not None and norm > self._zeroing_norm:
      if max((float(np.abs(a).max()) for a in arrays if a.size), default=0.0) > self._zeroing_norm:
        return ZEROED
    if not norm:
      return KEPT
    scale, longest = 1.0 / (self._unit.step * self._clip_norm), self._unit.bound * _MARGIN
    outcome = KEPT
    if norm * scale > longest:
      # Within the margin of the clip norm, an update is scaled too, but not by what would count.
      outcome = CLIPPED if norm > self._clip_norm else KEPT
      scale = longest / norm
    self._add(arrays, scale)
    return outcome

  def add_batch(
    self, arrays: Sequence[np.ndarray], compiled: in_jax.Summed | None = None
  ) -> list[str]:
    """Adds updates at once, and returns what became of each.

    The sum and the outcomes are bit for bit those of `add` for one after another.

    Args:
      arrays: parts of the updates, each of shape [updates, coordinates].
      compiled: where JAX adds them; None to do it here.
    """
    with np.errstate(over='ignore', invalid='ignore', under='ignore'):
      norms = self._norms(arrays)
      outcomes = np.full(norms.shape, KEPT, object)
      if self._zeroing_norm is not None:
        largest = _largest(arrays)
        outcomes[(norms > self._zeroing_norm) & (largest > self._zeroing_norm)] = ZEROED
      outcomes[np.isnan(norms)] = REJECTED
      scale, longest = 1.0 / (self._unit.step * self._clip_norm), self._unit.bound * _MARGIN
      long = norms * scale > longest
      outcomes[long & (norms > self._clip_norm) & (outcomes == KEPT)] = CLIPPED
      scales = np.divide(longest, norms, out=np.full(norms.shape, scale), where=long)
    summed = np.flatnonzero(((outcomes == KEPT) | (outcomes == CLIPPED)) & (norms > 0.0))
    if compiled is not None:
      chosen = np.zeros(norms.shape, np.float32)
      chosen[summed] = scales[summed]
      np.add(self._total, compiled(chosen).sum(axis=0, dtype=np.int64), out=self._total)
      return outcomes.tolist()
    block = min(_CHUNK // self._total.size, _UPDATES_IN_32_BITS)  # Updates in a processor's cache.
    if block < 2:
      for i in summed:
        self._add([array[i] for array in arrays], float(scales[i]))
      return outcomes.tolist()
    for start in range(0, summed.size, block):
      self._add_block(arrays, summed[start : start + block], scales)
    return outcomes.tolist()

  def total(self) -> np.ndarray:
    """Returns the sum, int64, shape [size], in units of updates. It must not be changed."""
    self._merge()
    return self._total

  def _norm(self, arrays: Sequence[np.ndarray]) -> float | None:
    """Returns the L2 norm; None if a coordinate is a NaN or an infinity."""
    spread = map if self._threads == 1 else self._pool.map
    square = sum(float(_sums_of_squares(array[None], spread)[0]) for array in arrays)
    if _least_square(sum(array.size for array in arrays)) < square < math.inf:
      return math.sqrt(square)
    # Squares that float32 or float64 does not hold, or zeros.
    if not all(np.isfinite(array).all() for array in arrays):
      return None
    largest = max((float(np.abs(array).max()) for array in arrays if array.size), default=0.0)
    if not largest:
      return 0.0
    ratios = (np.asarray(array, np.float64) / largest for array in arrays)
    return largest * math.sqrt(sum(float(np.dot(ratio, ratio)) for ratio in ratios))

  def _norms(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the L2 norm of each update; NaN for one that `_norm` has none of."""
    squares = np.zeros(len(arrays[0]))
    for array in arrays:  # In the order of `_norm`.
      squares += _sums_of_squares(array)
    norms = np.sqrt(squares)
    least = _least_square(sum(array.shape[1] for array in arrays))
    for i in np.flatnonzero(~((least < squares) & (squares < math.inf))):
      norm = self._norm([array[i] for array in arrays])
      norms[i] = math.nan if norm is None else norm
    return norms

  def _add_block(
    self, arrays: Sequence[np.ndarray], chosen: np.ndarray, scales: np.ndarray
  ) -> None:
    """Adds some updates of a batch, no more than have a sum in int32."""
    if self._num_recent + len(chosen) > _UPDATES_IN_32_BITS:
      self._merge()
    rows: slice | np.ndarray = chosen
    if chosen[-1] - chosen[0] == len(chosen) - 1:
      rows = slice(chosen[0], chosen[-1] + 1)  # A view.
    at = 0
    for array in arrays:
      part = array[rows]
      whole = self._whole[: part.size].reshape(part.shape)
      _scaled(part, scales[rows, None], whole)
      total = self._recent[at : at + part.shape[1]]
      np.add(total, whole.sum(axis=0, dtype=np.int32), out=total)
      at += part.shape[1]
    self._num_recent += len(chosen)
    if self._num_recent == _UPDATES_IN_32_BITS:
      self._merge()

  def _add(self, arrays: Sequence[np.ndarray], scale: float) -> None:
    parts, at = [], 0
    for array in arrays:
      if self._whole.size:  # It fits, and so does an update.
        total = self._recent[at : at + array.size]
        np.add(total, _scaled(array, scale, self._whole[: array.size]), out=total)
        at += array.size
        continue
      for start in range(0, array.size, _CHUNK):
        part = array[start : start + _CHUNK]
        parts.append((part, self._recent[at : at + part.size]))
        at += part.size
    if parts:
      shares = [parts[thread :: self._threads] for thread in range(self._threads)]
      add = functools.partial(_add_scaled, scale=scale)
      for _ in map(add, shares) if self._threads == 1 else self._pool.map(add, shares):
        pass
    self._num_recent += 1
    if self._num_recent == _UPDATES_IN_32_BITS:
      self._merge()

  def _merge(self) -> None:
    if self._num_recent:
      for start in range(0, self._total.size, _CHUNK):
        total, recent = (each[start : start + _CHUNK] for each in (self._total, self._recent))
        np.add(total, recent, out=total)
        recent[:] = 0
      self._num_recent = 0


def _sums_of_squares(rows: np.ndarray, spread: Callable[..., Iterable] = map) -> np.ndarray:
  """Returns the sum of squares of each row, float64. No row's bits depend on the others."""
  if rows.dtype == np.float64:
    return np.array([np.dot(row, row) for row in rows])
  whole = rows.shape[1] - rows.shape[1] % _TERMS
  if not whole:
    return _dots(rows)
  terms = rows[:, :whole].reshape(len(rows), whole // _TERMS, _TERMS)
  # Squares of terms, then float64: a type converted within a sum would be summed in buffers.
  squares = np.empty(terms.shape[:2], np.float32)

  def square(start: int) -> None:
    part = slice(start, start + _LARGE // _TERMS)
    np.einsum('ijk,ijk->ij', terms[:, part], terms[:, part], out=squares[:, part])

  list(spread(square, range(0, terms.shape[1], _LARGE // _TERMS)))
  return squares.astype(np.float64).sum(axis=1) + _dots(rows[:, whole:])


def _dots(rows: np.ndarray) -> np.ndarray:
  """Returns the bits of `np.dot` of each row, float32, with itself in float64."""
  rows = rows.astype(np.float64)  # Contiguous, so that both call the same function of BLAS.
  return np.matmul(rows[:, None, :], rows[:, :, None])[:, 0, 0]


def _least_square(size: int) -> float:
  """Returns the sum of squares from which on float32 holds those of so many coordinates."""
  return _LEAST_FLOAT32 * 2.0**24 * size


def _largest(arrays: Sequence[np.ndarray]) -> np.ndarray:
  """Returns the L∞ norm of each update of a batch, float64."""
  largest = np.zeros(len(arrays[0]))
  for array in arrays:
    if array.shape[1]:
      largest = np.maximum(largest, np.abs(array).max(axis=1))
  return largest


def _add_scaled(parts: Sequence[tuple[np.ndarray, np.ndarray]], *, scale: float) -> None:
  """Adds scaled coordinates, rounded towards zero, to sums: pairs of both."""
  whole = np.empty(_CHUNK if len(parts) > 1 else sum(part.size for part, _ in parts), np.int32)
  for part, total in parts:
    np.add(total, _scaled(part, scale, whole[: part.size]), out=total)


def _scaled(part: np.ndarray, factors: float | np.ndarray, out: np.ndarray) -> np.ndarray:
  """Writes the products with factors of the same type to out, int32, rounded towards zero."""
  with np.errstate(under='ignore'):
    factors = np.asarray(factors, part.dtype)
    return np.multiply(part, factors, out=out, dtype=part.dtype, casting='unsafe')


def _num_cores() -> int:
  """Cores that this process may use, up to 8: memory is no faster for more."""
  if hasattr(os, 'sched_getaffinity'):
    return min(len(os.sched_getaffinity(0)), 8)
  return min(os.cpu_count() or 1, 8)
