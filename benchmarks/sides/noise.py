"""Rows of noise without training, and the strategies of the benchmark of rounds."""

from typing import Any

import numpy as np

from benchmarks import rounds, runner
from benchmarks.sides import strategies
from fl_dpftrl.mechanisms import base
from fl_dpftrl.mechanisms.files import files
from fl_dpftrl.noise import integer_rows


def coefficients(num_bands: int) -> np.ndarray:
  """Returns those of the square root of prefix sums; any would take as long."""
  steps = np.arange(1, num_bands)
  return np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / steps]))


def parameters(name: str) -> dict[str, np.ndarray]:
  """Returns the parameters of a strategy in a case, as the peer's constructors take them."""
  match name.split('-'):
    case ['blt', _]:
      blt: Any = files.load_strategy('blt-b400')
      return {'buf_decay': blt.buffer_decay, 'output_scale': blt.output_scale}
    case ['banded_toeplitz', num_bands]:
      return {'coefs': coefficients(int(num_bands))}
    case ['banded', num_bands]:
      return {'params': np.tile(coefficients(int(num_bands)), (rounds.NUM_ROUNDS, 1))}
  return {}


def strategy(name: str) -> base.Strategy:
  """Returns a strategy by its name in a case."""
  if name in ('identity', 'tree_online'):
    return files.load_strategy(name)
  case = {'mechanism': name.split('-')[0], 'num_rounds': None}
  return strategies.strategy(case, parameters(name))


def store(name: str, path: str) -> None:
  """Writes the parameters of a strategy for the peer."""
  np.savez(path, **parameters(name))


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
  steps = (
    lambda: [maker.make(out) for _ in range(rounds.ROWS)],
    lambda: [buffer.max() for buffer in maker.buffers],
    lambda: generator.standard_normal(out=plain),
  )
  seconds, computed = runner.timed(3 * repeats, lambda t: steps[t % 3])
  return {
    'seconds': [time / rounds.ROWS for time in seconds[::3]],
    'cpu_seconds': [time / rounds.ROWS for time in computed[::3]],
    'reading': seconds[1::3],
    'normals': seconds[2::3],
    'state_bytes': maker.buffers.nbytes,
  }
