"""One strategy of every family, for any number of rounds."""

import numpy as np
import pytest

from fl_dpftrl.families import (
  banded,
  banded_inverse,
  blt,
  dense,
  identity,
  lambda_cgd,
  low_rank,
  registry,
  stamped,
  tree_full,
)
from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.families import tree_online as tree


def _banded(num_rounds):
  num_bands = min(4, num_rounds)
  rng = np.random.default_rng(num_rounds)
  coefficients = rng.uniform(-0.4, 0.6, (num_rounds, num_bands))
  coefficients[:, 0] = rng.uniform(0.5, 1.5, num_rounds)
  coefficients[np.arange(num_rounds)[:, None] < np.arange(num_bands)] = 0.0
  return banded.Banded(coefficients)


def _dense(num_rounds):
  matrix = np.random.default_rng(num_rounds).uniform(-0.5, 0.5, (num_rounds,) * 2)
  return dense.Dense(np.tril(matrix, -1) + np.diag(1.5 + np.diag(matrix)))


def _low_rank(num_rounds):
  generator = np.random.default_rng(num_rounds)
  bands = min(4, num_rounds)
  near = generator.uniform(-0.3, 0.3, (num_rounds, bands))
  near[:, 0] += 1.0
  near[np.arange(num_rounds)[:, None] < np.arange(bands)] = 0.0
  left, right = generator.uniform(-0.2, 0.2, (2, num_rounds, 3))
  return low_rank.LowRank(near, left, right)


_EXAMPLES = {
  'identity': lambda num_rounds: identity.Identity(),
  'tree_online': lambda num_rounds: tree.TreeOnline(),
  'tree_full': tree_full.TreeFull,
  'banded': _banded,
  'lambda_cgd': lambda num_rounds: lambda_cgd.LambdaCGD(0.8),
  'banded_inverse': lambda num_rounds: banded_inverse.BandedInverse([1.2, -0.5, -0.2, 0.1]),
  'blt': lambda num_rounds: blt.BLT((0.99, 0.8, 0.3), (0.25, 0.3, 0.2)),
  'dense': _dense,
  'low_rank': _low_rank,
  'banded_toeplitz': lambda num_rounds: toeplitz.BandedToeplitz([1.5, -0.4, 0.6, 0.2], num_rounds),
  'stamped': lambda num_rounds: stamped.Stamped(_banded(5), 5),
}


_VARIANTS = {'completed tree_online': tree.TreeOnline}


@pytest.fixture(params=sorted(registry.FAMILIES) + sorted(_VARIANTS))
def example(request):
  """num_rounds → a strategy, for every family of the registry."""
  if request.param in _VARIANTS:
    return _VARIANTS[request.param]
  return _EXAMPLES[request.param]


@pytest.fixture
def examples():
  """For each family of the registry: num_rounds → a strategy."""
  return {family: _EXAMPLES[family] for family in sorted(registry.FAMILIES)}
