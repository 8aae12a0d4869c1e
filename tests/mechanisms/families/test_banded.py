"""Banded strategies and matrices by their bands: what they refuse, errors, inverses."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.mechanisms import bands, workloads
from fl_dpftrl.mechanisms.families import banded


def test_coefficients_are_diagonals():
  strategy = banded.Banded([[2.0, 0.0], [3.0, 5.0], [7.0, 11.0]])
  np.testing.assert_array_equal(strategy.strategy_matrix(3), [[2, 0, 0], [5, 3, 0], [0, 11, 7]])
  assert (strategy.num_bands, strategy.max_rounds, strategy.memory_copies(3)) == (2, 3, 1)


def test_keeps_its_own_copy():
  coefficients = np.ones((3, 1))
  strategy = banded.Banded(coefficients)
  coefficients[1] = 9.0
  np.testing.assert_array_equal(strategy.strategy_matrix(3), np.eye(3))


@hypothesis.given(
  st.integers(1, 30),
  st.builds(
    workloads.Workload,
    momentum=st.sampled_from([0.0, 0.5, 0.95]),
    warmup_fraction=st.sampled_from([0.0, 0.15, 0.5]),
    cooldown_fraction=st.sampled_from([0.0, 0.25, 0.5]),
  ),
)
def test_inverse_of_the_workload(n, workload):
  undone = bands.inverse_bands(workload, n)
  inverse = np.zeros((n, n))
  for j in range(min(undone.shape[1], n)):
    inverse[np.arange(j, n), np.arange(n - j)] = undone[j:, j]
  np.testing.assert_allclose(workload.matrix(n) @ inverse, np.eye(n), atol=1e-11)


def coefficients(n, num_bands):
  generator = np.random.default_rng(n)
  values = 0.3 * generator.normal(size=(n, num_bands)) / np.sqrt(num_bands)
  values[:, 0] = 1.0 + np.abs(values[:, 0])
  return np.where(np.arange(n)[:, None] >= np.arange(num_bands), values, 0.0)


@pytest.mark.parametrize(
  'n, num_bands',
  [(1, 1), (5, 1), (5, 2), (5, 5), (64, 3), (65, 64), (150, 3), (200, 66), (130, 130), (600, 290)],
)
def test_row_norms_of_the_inverse_and_their_gradient(n, num_bands):
  values = coefficients(n, num_bands)
  inverse = banded.Banded(values).noising_matrix(n)
  np.testing.assert_allclose(bands.row_norms(values), np.linalg.norm(inverse, axis=1), rtol=1e-12)
  weights = np.random.default_rng(0).random(n)
  dense = -2.0 * inverse.T @ np.diag(weights) @ inverse @ inverse.T
  diagonals = [np.diagonal(dense, -j) for j in range(num_bands)]
  expected = np.stack([np.pad(each, (n - each.size, 0)) for each in diagonals], axis=1)
  gradient = bands.gradient(list(bands.blocks(values)), weights, num_bands)
  np.testing.assert_allclose(gradient, expected, atol=1e-11 * abs(expected).max())
