"""Weights of the rows of Z in sums of noise rows, against the noising matrix."""

import numpy as np
import pytest

from fl_dpftrl.mechanisms import linear_noise
from tests import every_family


@pytest.mark.parametrize('name', every_family.NAMES)
@pytest.mark.parametrize('num_rounds', [2, 7, 16])
def test_sums_of_rows_are_those_of_the_noising_matrix(name, num_rounds):
  strategy = every_family.example(name, num_rounds)
  rng = np.random.default_rng(num_rounds)
  windows = [np.ones(num_rounds), rng.normal(size=num_rounds), np.eye(num_rounds)[-1]]
  for weights in windows:
    expected = weights @ strategy.noising_matrix(num_rounds)
    combined = linear_noise.combined_row(strategy.noise(num_rounds), weights)
    np.testing.assert_allclose(combined, expected[: combined.size], rtol=1e-9, atol=1e-12)
    assert not expected[combined.size :].any()
