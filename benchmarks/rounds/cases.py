"""Mechanisms whose noise the benchmark times, by model size."""

from typing import NamedTuple

import numpy as np

from fl_dpftrl.families import banded, banded_toeplitz, base, identity, tree_online
from fl_dpftrl.strategies import files

NUM_PARAMETERS = 4_050_748
LARGE = 100_000_000
NUM_ROUNDS = 2052
# Number of rows that are timed together: some strategies make several rows at
# once, so that the time of a single row means nothing.
ROWS = 8


class Rows(NamedTuple):
  """Rows of noise without training."""

  strategy: str
  size: int = NUM_PARAMETERS
  threads: int = 1


ROW_CASES = (
  *(
    Rows(name, threads=threads)
    for name in (
      'identity',
      'blt-4',
      'tree_online',
      'banded_toeplitz-64',
      'banded-64',
      'banded-342',
    )
    for threads in (1, 2)
  ),
  # By number of bands, and by number of parameters.
  Rows('banded_toeplitz-8'),
  Rows('banded_toeplitz-16'),
  Rows('banded_toeplitz-32'),
  Rows('banded_toeplitz-128'),
  Rows('banded_toeplitz-64', 1_000_000),
  Rows('banded_toeplitz-64', 16_000_000),
  Rows('blt-4', 1_000_000),
  Rows('blt-4', 16_000_000),
  Rows('blt-4', LARGE, 2),
)
# With one thread and NUM_PARAMETERS, as the peer makes them.
PEER_CASES = ('identity', 'blt-4', 'banded_toeplitz-64', 'banded-64')


class Rounds(NamedTuple):
  """Rounds of training, one of each mechanism in turn.

  Attributes:
    mechanisms: names; the others are compared with the first.
    batches: number of batches per client.
    size: number of parameters of the model.
    concurrent: number of clients that train at the same time; 0 for no limit.
    repeats: number of rounds of each; None for the requested number.
  """

  mechanisms: tuple[str, ...]
  batches: int = 1
  size: int = NUM_PARAMETERS
  concurrent: int = 0
  repeats: int | None = None


ROUND_CASES = (
  Rounds(
    (
      'gaussian_fixed',
      'plain',
      'tree_aggregation',
      'state: identity',
      'state: blt-4',
      'state: tree_online',
      'engine: identity',
      'engine: blt-4',
      'engine: tree_online',
    )
  ),
  # Beside TFF's own context and its worker.
  Rounds(('worker: gaussian_fixed', 'gaussian_fixed', 'state: blt-4', 'engine: blt-4')),
  # If rows are made together, one round pays for the whole batch.
  Rounds(('gaussian_fixed', 'engine: banded-342'), batches=400, repeats=2 * ROWS),
  Rounds(('plain',), size=LARGE, concurrent=2, repeats=2),
  Rounds(('engine: blt-4',), size=LARGE, concurrent=2, repeats=2),
)


LSTM, ONE_BATCH = 'lstm-128', 'one-batch'
MACHINES = {
  LSTM: 'LSTM 128, 30 clients × 64 sentences',
  ONE_BATCH: f'{NUM_PARAMETERS:,} parameters, 4 clients of one batch',
}
"""Rounds on two actors, each of which has one of two processors."""
NODES = (1, 2)


def coefficients(num_bands: int) -> np.ndarray:
  """Returns those of the square root of prefix sums; any would take as long."""
  steps = np.arange(1, num_bands)
  return np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / steps]))


def strategy(name: str) -> base.Strategy:
  """Returns a strategy by its name in a case."""
  if name == 'identity':
    return identity.Identity()
  if name == 'blt-4':
    return files.load_strategy('blt-b400')
  if name == 'tree_online':
    return tree_online.TreeOnline()
  family, num_bands = name.split('-')
  values = coefficients(int(num_bands))
  if family == 'banded_toeplitz':
    return banded_toeplitz.BandedToeplitz(values, None)
  rows = np.tile(values, (NUM_ROUNDS, 1))
  rows[np.arange(NUM_ROUNDS)[:, None] < np.arange(values.size)] = 0.0
  return banded.Banded(rows)


def first_row(name: str) -> int:
  """Returns a row at which all bands are full and a joint batch of rows starts.

  It is just after a snapshot. The first snapshot of such a row would write all
  buffers, but a run has written most of them before.
  """
  if not name.startswith('banded'):
    return 8
  return -(-int(name.split('-')[1]) // 16) * 16 + 8
