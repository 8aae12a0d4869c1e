"""Whose noise is timed, for a model of how many parameters."""

from typing import NamedTuple

import numpy as np

from fl_dpftrl import catalogue
from fl_dpftrl.families import banded
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.families import base
from fl_dpftrl.families import identity
from fl_dpftrl.families import tree_online

NUM_PARAMETERS = 4_050_748
LARGE = 100_000_000
NUM_ROUNDS = 2052
# Of which one is timed together: where several rows are made at once, the time
# of each means nothing.
ROWS = 8


class Rows(NamedTuple):
  """Rows of noise alone."""

  strategy: str
  size: int = NUM_PARAMETERS
  threads: int = 1


ROW_CASES = (
    *(
        Rows(name, threads=threads)
        for name in (
            'identity', 'blt-4', 'tree_online', 'banded_toeplitz-64', 'banded-64',
            'banded-342',
        )
        for threads in (1, 2)
    ),
    # By bands, and by parameters.
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
# Of one thread and NUM_PARAMETERS, as others make them.
PEER_CASES = ('identity', 'blt-4', 'banded_toeplitz-64', 'banded-64')


class Rounds(NamedTuple):
  """Rounds of training, each mechanism's in turn.

  Attributes:
    mechanisms: the first is what the others are compared with.
    batches: that a client trains on.
    size: parameters of the model.
    concurrent: clients that train at the same time; 0 for no limit.
    repeats: rounds of each; None for as many as are asked for.
  """

  mechanisms: tuple[str, ...]
  batches: int = 1
  size: int = NUM_PARAMETERS
  concurrent: int = 0
  repeats: int | None = None


ROUND_CASES = (
    Rounds((
        'gaussian_fixed', 'plain', 'tree_aggregation', 'identity', 'blt-4',
        'tree_online',
    )),
    # The same in process, with the noise in TFF's state.
    Rounds((
        'gaussian_fixed',
        'in process: gaussian_fixed',
        'in process: plain',
        'in process: inside TFF: identity',
        'in process: inside TFF: blt-4',
        'in process: inside TFF: tree_online',
    )),
    # Of rows that are made together, each batch is one round's burden.
    Rounds(('gaussian_fixed', 'banded-342'), repeats=2 * ROWS),
    Rounds(('gaussian_fixed', 'banded-342'), batches=400, repeats=2 * ROWS),
    # Two of these at once would not fit into 24 GiB.
    Rounds(('plain',), size=LARGE, concurrent=1, repeats=2),
    Rounds(('blt-4',), size=LARGE, concurrent=1, repeats=2),
    Rounds(('in process: plain',), size=LARGE, concurrent=2, repeats=2),
    Rounds(
        ('in process: inside TFF: blt-4',), size=LARGE, concurrent=2, repeats=2
    ),
    Rounds(
        ('in process: gaussian_fixed', 'in process: banded-342'), batches=400,
        repeats=2 * ROWS,
    ),
)


def coefficients(num_bands: int) -> np.ndarray:
  """Those of the square root of prefix sums; which makes no difference."""
  steps = np.arange(1, num_bands)
  return np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / steps]))


def strategy(name: str) -> base.Strategy:
  """By its name in a case."""
  if name == 'identity':
    return identity.Identity()
  if name == 'blt-4':
    return catalogue.load_strategy('blt-b400')
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
  """A row for which all bands are full, where rows that are made together begin.

  It is just after that of a snapshot: the first snapshot of such a row would
  write all buffers, where a run has written most of them before.
  """
  if not name.startswith('banded'):
    return 8
  return -(-int(name.split('-')[1]) // 16) * 16 + 8
