"""Makes the rows of N·Z one after the other, on all cores, in place."""

import concurrent.futures
import functools
import json
import math
import os
import pathlib
import tempfile

import numpy as np

from fl_dpftrl.families import base as strategies
from fl_dpftrl.families import identity as identity_strategy
from fl_dpftrl.noise import draws, recurrence
from fl_dpftrl.strategies import document

# Version of the rows: raise it with every change of their bits.
VERSION = 4
_CHUNKS_AT_A_TIME = 8
MEMORIES = ('memory', 'mapped')
PRECISIONS = ('float32', 'float64')
_BFLOAT16 = (
  'precision=bfloat16 is refused: rows that are rounded to 8 bits before later'
  ' rows build on them let two neighbouring data sets be told apart by more'
  ' than the accounted Gaussian does; float32 buffers that are mapped need less memory'
)


class RowMaker:
  """Rows 0, 1, … of N·Z, as a flat vector of float32.

  The same arguments give the same rows, bit for bit and however many threads
  work, on machines whose NumPy computes alike.

  Args:
    strategy: C and N.
    size: coordinates in a row.
    num_rounds: rows that there will be at most.
    stddev: of each entry of Z, by which finished rows are multiplied.
    seed: secret, of 16 bytes.
    memory: where the buffers are: in 'memory', or in a file that is 'mapped' into it, for
      more than fits.
    precision: of buffers and sums, 'float32' or 'float64'.
    folder: for the mapped file, which has no name there.
    num_threads: None for one on each core.
    first_chunk: which of a longer row's chunks these coordinates begin with.

  Attributes:
    size, num_rounds: as given.
    row: the row that comes next.
    is_torn: whether a row failed midway, so that no other can be made.
    buffers: shape [num_buffers, size].
    versions: the row that wrote each buffer last; −1 where none did.

  Raises:
    ValueError: for an argument that will not do.
  """

  def __init__(
    self,
    strategy: strategies.Strategy,
    *,
    size: int,
    num_rounds: int,
    stddev: float,
    seed: bytes,
    memory: str = 'memory',
    precision: str = 'float32',
    folder: str | os.PathLike[str] | None = None,
    num_threads: int | None = None,
    first_chunk: int = 0,
  ):
    check(size=size, stddev=stddev, memory=memory, precision=precision)
    if not stddev:  # Nothing to correlate.
      strategy = identity_strategy.Identity()
    if strategy.max_rounds is None:
      strategy.noise(None)  # Raises where rows depend on how many there will be.
    noise = strategy.noise(num_rounds)
    self._recurrence = recurrence.Recurrence(strategy, noise, num_rounds)
    self._draws = lambda: draws.Draws(seed)
    self._stddev = float(stddev)
    self._first_chunk = first_chunk
    self._threads = num_threads or _num_cores()
    self._pool = concurrent.futures.ThreadPoolExecutor(self._threads, 'rows')
    self.size, self.num_rounds = size, num_rounds
    self.row, self.is_torn = 0, False
    shape = (self._recurrence.num_buffers, size)
    if memory == 'mapped' and shape[0]:
      self.buffers = _mapped(shape, precision, folder)
    else:
      self.buffers = np.zeros(shape, precision)
    self.versions = [-1] * shape[0]

  def make(self, out: np.ndarray) -> float:
    """Writes the next row into out and returns its standard deviation.

    Args:
      out: float32, shape [size].

    Raises:
      ValueError: past the last row, and after a row that failed midway.
    """
    if self.is_torn:
      raise ValueError('a row failed midway; make a new RowMaker')
    t = self.row
    if t >= self.num_rounds:
      raise ValueError(f'row {t} is beyond the {self.num_rounds} that there are')
    step = self._recurrence.step(t)
    self.is_torn = True  # Until every chunk is done.
    count = -(-self.size // draws.CHUNK)
    groups = [
      range(first, min(first + _CHUNKS_AT_A_TIME, count))
      for first in range(0, count, _CHUNKS_AT_A_TIME)
    ]
    work = lambda chunks: self._work(step, chunks, out)
    if self._threads == 1:
      for chunks in groups:
        work(chunks)
    else:
      list(self._pool.map(work, groups))
    for buffer in step.written:
      self.versions[buffer] = t
    self.row, self.is_torn = t + 1, False
    return self._stddev * float(self._recurrence.norms[t])

  def _work(self, step: recurrence.Step, chunks: range, out: np.ndarray) -> None:
    source = self._draws()
    part, scratch = np.empty((2, draws.CHUNK), self.buffers.dtype)
    for chunk in chunks:
      where = slice(chunk * draws.CHUNK, (chunk + 1) * draws.CHUNK)
      target = out[where]
      if not self._stddev:
        target[:] = 0.0
        continue
      made = step.apply(
        functools.partial(_fill, source, self._first_chunk + chunk),
        self.buffers[:, where],
        part[: target.size],
        scratch[: target.size],
      )
      # Buffers hold rows for Z of standard deviation 1, so that another one
      # continues them; the chunk is in the cache here.
      np.multiply(made, step.scale * self._stddev, out=target, casting='same_kind')

  def restore(self, row: int, versions: list[int]) -> None:
    """Declares that the buffers now hold the state before a row."""
    self.row, self.versions = row, list(versions)

  def close(self) -> None:
    self._pool.shutdown()
    self.buffers = self.buffers[:0]


def check(*, size: int, stddev: float, memory: str, precision: str) -> None:
  """Raises ValueError for invalid arguments of `RowMaker`."""
  if size < 1:
    raise ValueError(f'size must be at least 1, got {size!r}')
  if not 0.0 <= stddev <= np.finfo(np.float32).max:
    raise ValueError(f'stddev must be at least 0 and fit into float32, got {stddev!r}')
  if memory not in MEMORIES:
    raise ValueError(f'memory must be one of {", ".join(MEMORIES)}, got {memory!r}')
  if precision == 'bfloat16':
    raise ValueError(_BFLOAT16)
  if precision not in PRECISIONS:
    raise ValueError(f'precision must be one of {", ".join(PRECISIONS)}, got {precision!r}')


def _fill(source, chunk, row, part):
  source.fill(row, chunk, part)


def identity(strategy: strategies.Strategy, *, size: int, seed: bytes, precision: str) -> int:
  """Returns 63 bits for all that determines a maker's rows but their scale.

  The standard deviation is left out: rows are made for Z of standard deviation 1 and multiplied
  last. So a run whose noise multiplier is changed on purpose continues with the same noise. The
  bits are a hash of the seed too, whose 128 bits cannot be recovered from it.
  """
  about = [VERSION, document.strategy_digest(strategy), size, precision, 'buffered']
  return document.short_digest(b'fl_dpftrl rows %s %s' % (json.dumps(about).encode(), seed))


def _num_cores() -> int:
  """Cores that this process may use."""
  if hasattr(os, 'sched_getaffinity'):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def _mapped(shape, precision, folder) -> np.ndarray:
  """Returns zeros in a nameless file, which ends with the process.

  Raises:
    OSError: the disk has no room; it is reserved here, since writing to a page
      of a mapped file that the disk cannot hold would end the process.
  """
  there = pathlib.Path(folder or tempfile.gettempdir())
  size = math.prod(shape) * np.dtype(precision).itemsize
  with tempfile.TemporaryFile(dir=there) as file:
    try:
      if hasattr(os, 'posix_fallocate'):  # Not on macOS.
        os.posix_fallocate(file.fileno(), 0, size)
      else:
        file.truncate(size)
    except OSError as error:
      message = f'{error.strerror}: {size} bytes of noise memory'
      raise OSError(error.errno, message, os.fspath(there)) from error
    return np.memmap(file, precision, 'r+', shape=shape)
