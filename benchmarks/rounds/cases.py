"""Whose noise is timed, for a model of how many parameters."""

import numpy as np

from fl_dpftrl import catalogue
from fl_dpftrl.strategies import banded
from fl_dpftrl.strategies import base
from fl_dpftrl.strategies import identity
from fl_dpftrl.strategies import toeplitz
from fl_dpftrl.strategies import tree

NUM_PARAMETERS = 4_050_748
LARGE = 100_000_000
NUM_ROUNDS = 2052
STRATEGIES = (
    'identity', 'blt-4', 'tree_online', 'banded_toeplitz-64', 'banded-342',
)


def strategy(name: str) -> base.Strategy:
  """By its name in STRATEGIES. What coefficients are makes no difference."""
  if name == 'identity':
    return identity.Identity()
  if name == 'blt-4':
    return catalogue.load_strategy('blt-b400')
  if name == 'tree_online':
    return tree.TreeOnline()
  family, num_bands = name.split('-')
  steps = np.arange(1, int(num_bands))
  coefficients = np.cumprod(np.concatenate([[1.0], 1.0 - 0.5 / steps]))
  if family == 'banded_toeplitz':
    return toeplitz.BandedToeplitz(coefficients, None)
  rows = np.tile(coefficients, (NUM_ROUNDS, 1))
  rows[np.arange(NUM_ROUNDS)[:, None] < np.arange(coefficients.size)] = 0.0
  return banded.Banded(rows)


def first_row(name: str) -> int:
  """A row for which all bands are full, just after that of a snapshot.

  The first snapshot of such a row would write all buffers, where a run has
  written most of them before.
  """
  if not name.startswith('banded'):
    return 1
  return int(name.split('-')[1]) // 16 * 16 + 17
