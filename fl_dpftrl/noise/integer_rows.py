"""Makes the rows of N·Z in integers one after the other, on all cores, in place."""

import concurrent.futures
import errno
import json
import math
import os
import tempfile
import threading
import time

import numpy as np

from fl_dpftrl.mechanisms import base as strategies
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.mechanisms.files import documents
from fl_dpftrl.noise import normals, recurrence
from fl_dpftrl.support import checks, machine

# Version of the rows: raise it with every change of their bits.
VERSION = 6
# Chunks that a thread makes at a time: with fewer, threads wait for each other's Python.
_FEWEST_CHUNKS, _MOST_CHUNKS = 4, 16
# Of the trail, a sum modulo 2⁶⁴: an odd number with bits of no pattern.
_FACTOR = 0x9E3779B97F4A7C15
_local = threading.local()


class RowMaker:
  """Rows 0, 1, … of N·Z as flat vectors of integers, in units of 2⁻³⁴ of the std. deviation of Z.

  Each normal is exactly rounded, from secret bits of AES-256. The same arguments give the same
  rows, bit for bit and however many threads work, on machines whose NumPy computes alike. A row
  has no more than 53 bits.

  Args:
    seed: secret, of 32 bytes.
    mapped_in: folder of a file that holds the buffers and is mapped into memory, for more than
      fits; None for buffers in memory.
    num_threads: None for one on each core.
    first_chunk: which of a longer row's chunks these coordinates begin with.
    bits: p; a unit is 2⁻ᵖ of the standard deviation of Z. Another one is for tests.

  Attributes:
    is_torn: whether a row failed midway, so that no other can be made.
    buffers: float64, shape [num_buffers, size].
    versions: the row that wrote each buffer last; −1 where none did.
    trail: sum of all rows so far, modulo 2⁶⁴, each times a factor of its own, by which a state of
      other rows is told; 0 without buffers. Trails of slices add up to that of the whole row.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    *,
    size: int,
    num_rounds: int,
    seed: bytes,
    mapped_in: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    first_chunk: int = 0,
    bits: int = lattice.BITS,
  ):
    checks.whole(size=size)
    if strategy.max_rounds is None:
      strategy.noise(None)  # Raises where rows depend on how many there will be.
    self._recurrence = recurrence.Recurrence(strategy, num_rounds, bits)
    self._strategy, self._seed = strategy, seed
    normals.Normals(seed)  # Raises for a seed that will not do.
    self._first_chunk = first_chunk
    self._threads = num_threads or machine.cores()
    self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, 'rows')
    self.size, self.num_rounds = size, num_rounds
    self.row, self.is_torn = 0, False
    shape = (self._recurrence.num_buffers, size)
    self.buffers = (
      np.zeros(shape) if mapped_in is None or not shape[0] else _mapped(shape, mapped_in)
    )
    self.versions, self.trail = [-1] * shape[0], 0

  @property
  def identity(self) -> int:
    """A 63-bit hash of all that determines rows; the seed cannot be recovered from it."""
    about = json.dumps([VERSION, documents.strategy_digest(self._strategy), self.size])
    return documents.short_digest(b'fl_dpftrl rows %s %s' % (about.encode(), self._seed))

  def make(self, out: np.ndarray) -> float:
    """Writes the next row into out and returns its standard deviation, that of Z being 1."""
    if self.is_torn:
      raise ValueError('a row failed midway; make a new RowMaker')
    t = self.row
    if t >= self.num_rounds:
      raise ValueError(f'row {t} is beyond the {self.num_rounds} that there are')
    self.is_torn = True  # Until every chunk is done; an interrupted step gives no other.
    step = self._recurrence.step(t)
    length = normals.CHUNK * _chunks_at_a_time(self.size, self._threads)
    work = lambda start: self._work(step, start, slice(start, min(start + length, self.size)), out)
    starts = range(0, self.size, length)
    is_small = self._threads == 1 or len(starts) == 1
    try:
      parts = map(work, starts) if is_small else self._pool.map(work, starts)
    except RuntimeError as error:
      raise OSError(errno.EAGAIN, f'{error} for a row of noise: raise ulimit -u') from error
    sums = list(parts)
    if self.versions:
      self.trail = (self.trail * _FACTOR + sum(sums)) % 2**64
    for buffer in step.written:
      self.versions[buffer] = t
    self.row, self.is_torn = t + 1, False
    return float(self._recurrence.norms[t])

  def _work(self, step: recurrence.IntegerStep, start: int, where: slice, out: np.ndarray) -> int:
    """Makes some chunks of a row, and returns the sum of their integers."""
    source, vectors = _workspace(self._seed)
    size, chunk = where.stop - start, self._first_chunk + start // normals.CHUNK
    fresh, total, oldest, again = vectors[:, :size]

    def draw(part: np.ndarray, group: int, scale: float, weight: float = 1.0) -> np.ndarray:
      source.fill(group, chunk, scale, part)
      return part if weight == 1.0 else np.multiply(part, weight, out=part)

    for place, normal in enumerate(step.again):
      if place:
        np.add(total, draw(again, *normal), out=total)
      else:
        draw(total, *normal)
    if step.oldest:
      draw(oldest, *step.oldest)
    draw(fresh, self.row, step.scale)
    trail = step.finish(total, not step.again, fresh, oldest, self.buffers, start, out[where])
    return trail if self.versions else 0

  def restore(self, row: int, versions: list[int], trail: int = 0) -> None:
    """Declares that the buffers now hold the state before a row."""
    self.row, self.versions, self.trail = row, list(versions), trail

  def close(self) -> None:
    vars(_local).clear()  # With the seed.
    self._pool.shutdown()
    self.buffers = self.buffers[:0]


def row_seconds(strategy: strategies.Strategy, *, num_rounds: int, size: int) -> float:
  """Returns seconds that one core of this machine takes for the middle row, by a part of it."""
  part = min(size, _MOST_CHUNKS * normals.CHUNK)
  out, row, seed = np.empty(part, np.int64), num_rounds // 2, normals.system_seed()
  maker = RowMaker(strategy, size=part, num_rounds=num_rounds, seed=seed, num_threads=1)
  for _ in range(2):  # The first compiles loops, and computes the steps before it.
    maker.restore(row, maker.versions)
    start = time.perf_counter()
    maker.make(out)
    seconds = time.perf_counter() - start
  maker.close()
  return seconds * size / part


def _chunks_at_a_time(size: int, threads: int) -> int:
  """Returns how many chunks of a row a thread makes at a time: an equal part of its share."""
  share = -(-size // (normals.CHUNK * threads))
  return max(_FEWEST_CHUNKS, -(-share // -(-share // _MOST_CHUNKS)))


def _workspace(seed: bytes) -> tuple[normals.Normals, np.ndarray]:
  """The source of a thread, and vectors for the chunks that it works on."""
  if getattr(_local, 'seed', None) != seed:
    _local.seed, _local.source = seed, normals.Normals(seed)
    _local.vectors = np.empty((4, _MOST_CHUNKS * normals.CHUNK))
  return _local.source, _local.vectors


def _mapped(shape: tuple[int, int], folder: str | os.PathLike[str]) -> np.ndarray:
  """Returns zeros in a nameless file, which ends with the process."""
  size = math.prod(shape) * np.dtype(np.float64).itemsize
  with tempfile.TemporaryFile(dir=folder) as file:
    try:
      if hasattr(os, 'posix_fallocate'):  # Not on macOS.
        os.posix_fallocate(file.fileno(), 0, size)
      else:
        file.truncate(size)
    except OSError as error:
      message = f'{error.strerror}: {size} bytes of noise memory'
      raise OSError(error.errno, message, os.fspath(folder)) from error
    return np.memmap(file, np.float64, 'r+', shape=shape)
