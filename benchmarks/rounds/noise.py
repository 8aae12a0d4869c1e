"""Times rows of noise without training; the caller pins the process.

python -m benchmarks.rounds.noise banded_toeplitz-64 4050748 1 9
"""

import json
import sys
import time

import numpy as np

from benchmarks.rounds import cases
from fl_dpftrl.noise import rows


def full(maker: rows.RowMaker, row: int) -> None:
  """Sets the state to that after many rows, snapshots included."""
  maker.buffers[:] = 0.5  # Writing makes the system allocate the pages.
  maker.restore(row, [-1] * len(maker.buffers))


def main(name: str, size: int, threads: int, repeats: int) -> dict:
  """Returns mean seconds per row of each repeat, over successive rows.

  The result also has the seconds of reading the buffers once, and of as many float64 normals of
  NumPy, in one thread.
  """
  maker = rows.RowMaker(
    cases.strategy(name),
    size=size,
    num_rounds=cases.NUM_ROUNDS,
    seed=bytes(32),
    num_threads=threads,
  )
  full(maker, cases.first_row(name))
  out = np.zeros(size, np.int64)
  generator, plain = np.random.default_rng(0), np.empty(size)
  seconds, cpu_seconds, reading, normals = [], [], [], []
  for _ in range(repeats):
    start, cpu_start = time.perf_counter(), time.process_time()
    for _ in range(cases.ROWS):
      maker.make(out)
    seconds.append((time.perf_counter() - start) / cases.ROWS)
    cpu_seconds.append((time.process_time() - cpu_start) / cases.ROWS)
    start = time.perf_counter()
    for buffer in maker.buffers:
      buffer.max()
    reading.append(time.perf_counter() - start)
    start = time.perf_counter()
    generator.standard_normal(out=plain)
    normals.append(time.perf_counter() - start)
  return {
    'seconds': seconds,
    'cpu_seconds': cpu_seconds,
    'reading': reading,
    'normals': normals,
    'state_bytes': maker.buffers.nbytes,
  }


if __name__ == '__main__':
  print(json.dumps(main(sys.argv[1], *map(int, sys.argv[2:]))))
