"""Rows of inverses against inverses that are written out."""

import numpy as np
import pytest

from fl_dpftrl.families import banded, bands


def coefficients(n, num_bands):
  generator = np.random.default_rng(n)
  values = 0.3 * generator.normal(size=(n, num_bands)) / np.sqrt(num_bands)
  values[:, 0] = 1.0 + np.abs(values[:, 0])
  return np.where(np.arange(n)[:, None] >= np.arange(num_bands), values, 0.0)


SIZES = [
  (1, 1),
  (5, 1),
  (5, 2),
  (5, 5),
  (64, 3),
  (65, 64),
  (150, 3),
  (200, 66),
  (130, 130),
  (600, 290),
]


@pytest.mark.parametrize('n, num_bands', SIZES)
def test_row_norms(n, num_bands):
  values = coefficients(n, num_bands)
  inverse = banded.Banded(values).noising_matrix(n)
  np.testing.assert_allclose(bands.row_norms(values), np.linalg.norm(inverse, axis=1), rtol=1e-12)


@pytest.mark.parametrize('n, num_bands', SIZES)
def test_gradient(n, num_bands):
  values = coefficients(n, num_bands)
  weights = np.random.default_rng(0).random(n)
  inverse = banded.Banded(values).noising_matrix(n)
  dense = -2.0 * inverse.T @ np.diag(weights) @ inverse @ inverse.T
  expected = np.zeros((n, num_bands))
  for j in range(num_bands):
    expected[j:, j] = np.diagonal(dense, -j)
  found = bands.gradient(list(bands.blocks(values)), weights, num_bands)
  np.testing.assert_allclose(found, expected, atol=1e-11 * abs(expected).max())


def test_more_bands_than_rounds():
  values = np.pad(coefficients(5, 5), ((0, 0), (0, 3)))
  np.testing.assert_allclose(bands.row_norms(values), bands.row_norms(values[:, :5]))
