"""Rows of noise without training, and the strategies of the benchmark of rounds."""

import time
from typing import Any

import numpy as np

from benchmarks import rounds
from fl_dpftrl.families import banded, banded_toeplitz, base, identity, tree_online
from fl_dpftrl.noise import integer_rows
from fl_dpftrl.strategies import files


def coefficients(num_bands: int) -> np.ndarray:
  """Returns those of the square root of prefix sums; any would take as long."""
  steps = np.arange(1, num_bands)
  return np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / steps]))


def strategy(name: str) -> base.Strategy:
  """Returns a strategy by its name in a case."""
  match name.split('-'):
    case ['blt', _]:
      return files.load_strategy('blt-b400')
    case ['banded_toeplitz', num_bands]:
      return banded_toeplitz.BandedToeplitz(coefficients(int(num_bands)), None)
    case ['banded', num_bands]:
      matrix = np.tile(coefficients(int(num_bands)), (rounds.NUM_ROUNDS, 1))
      matrix[np.arange(rounds.NUM_ROUNDS)[:, None] < np.arange(int(num_bands))] = 0.0
      return banded.Banded(matrix)
  return {'identity': identity.Identity, 'tree_online': tree_online.TreeOnline}[name]()


def store(name: str, path: str) -> None:
  """Writes the parameters of a strategy in the form of the peer's constructors."""
  parameters = {}
  match name.split('-'):
    case ['blt', _]:
      blt = strategy(name)
      parameters = {'buf_decay': blt.buffer_decay, 'output_scale': blt.output_scale}
    case ['banded_toeplitz', num_bands]:
      parameters = {'coefs': coefficients(int(num_bands))}
    case ['banded', num_bands]:
      parameters = {'params': np.tile(coefficients(int(num_bands)), (rounds.NUM_ROUNDS, 1))}
  np.savez(path, **parameters)


def first_row(name: str) -> int:
  """Returns a row at which all bands are full and a joint batch of rows starts.

  It is just after a snapshot. The first snapshot of such a row would write all buffers, but a run
  has written most of them before.
  """
  if not name.startswith('banded'):
    return 8
  return -(-int(name.split('-')[1]) // 16) * 16 + 8


def fill(maker: integer_rows.RowMaker, row: int) -> None:
  """Sets the state to that after many rows, snapshots included."""
  maker.buffers[:] = 0.5  # Writing makes the system allocate the pages.
  maker.restore(row, [-1] * len(maker.buffers))


def measure(name: str, size: int, threads: int, repeats: int) -> dict[str, Any]:
  """Returns mean seconds per row of each repeat, over successive rows.

  The result also has the seconds of reading the buffers once, and of as many float64 normals of
  NumPy, in one thread.
  """
  num_rounds, made = rounds.NUM_ROUNDS, strategy(name)
  maker = integer_rows.RowMaker(
    made, size=size, num_rounds=num_rounds, seed=bytes(32), num_threads=threads
  )
  fill(maker, first_row(name))
  out = np.zeros(size, np.int64)
  generator, plain = np.random.default_rng(0), np.empty(size)
  times: dict[str, list[float]] = {'seconds': [], 'cpu_seconds': [], 'reading': [], 'normals': []}
  for _ in range(repeats):
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(rounds.ROWS):
      maker.make(out)
    times['seconds'].append((time.perf_counter() - start) / rounds.ROWS)
    times['cpu_seconds'].append((time.process_time() - cpu_start) / rounds.ROWS)
    start = time.perf_counter()
    for buffer in maker.buffers:
      buffer.max()
    times['reading'].append(time.perf_counter() - start)
    start = time.perf_counter()
    generator.standard_normal(out=plain)
    times['normals'].append(time.perf_counter() - start)
  return {**times, 'state_bytes': maker.buffers.nbytes}
