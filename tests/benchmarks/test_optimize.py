"""The parts of the benchmarks that need no peer."""

import numpy as np
import pytest

from benchmarks.optimize import evaluate
from fl_dpftrl import error
from fl_dpftrl.families import banded


def test_peer_columns_become_our_rows():
  rng = np.random.default_rng(0)
  params = rng.uniform(0.5, 1.0, (5, 3))
  params[3, 2] = params[4, 1:] = 7.0  # outside of the matrix
  matrix = np.zeros((5, 5))
  for column in range(5):
    for j in range(min(3, 5 - column)):
      matrix[column + j, column] = params[column, j]
  matrix /= np.linalg.norm(matrix, axis=0)
  strategy = banded.Banded(evaluate.by_rows(params))
  np.testing.assert_allclose(strategy.strategy_matrix(5), matrix, atol=1e-15)
  # Rows of negative diagonal are the same mechanism.
  flipped = banded.Banded(evaluate.by_rows(-params))
  assert error.error(flipped, 5).rms == pytest.approx(error.error(strategy, 5).rms)
