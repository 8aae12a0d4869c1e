"""Errors of banded strategies: any workload of SGD, and any number of rounds."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import error, workloads
from fl_dpftrl.families import banded, bands

SGD = st.builds(
  workloads.Workload,
  momentum=st.sampled_from([0.0, 0.5, 0.95]),
  warmup_fraction=st.sampled_from([0.0, 0.15, 0.5]),
  cooldown_fraction=st.sampled_from([0.0, 0.25, 0.5]),
)


def example(n, num_bands):
  generator = np.random.default_rng(n)
  values = generator.normal(size=(n, num_bands)) / np.sqrt(4.0 * num_bands)
  values[:, 0] = 1.0 + values[:, 0] ** 2
  values[np.arange(n)[:, None] < np.arange(num_bands)] = 0.0
  return banded.Banded(values)


@hypothesis.given(st.integers(1, 90), st.integers(1, 90), SGD)
@hypothesis.settings(deadline=None, max_examples=60)
def test_row_norms_of_the_decoder(n, num_bands, workload):
  strategy = example(n, min(num_bands, n))
  for rounds in {n, (n + 1) // 2}:
    decoder = workload.matrix(rounds) @ strategy.noising_matrix(rounds)
    np.testing.assert_allclose(
      error.per_query_error(strategy, rounds, workload), np.linalg.norm(decoder, axis=1), rtol=1e-10
    )


@hypothesis.given(st.integers(1, 30), SGD)
@hypothesis.settings(deadline=None, max_examples=60)
def test_inverse_of_the_workload(n, workload):
  undone = bands.inverse_bands(workload, n)
  inverse = np.zeros((n, n))
  for j in range(min(undone.shape[1], n)):
    inverse[np.arange(j, n), np.arange(n - j)] = undone[j:, j]
  np.testing.assert_allclose(workload.matrix(n) @ inverse, np.eye(n), atol=1e-11)


def test_a_hundred_thousand_rounds():
  """With one band of ones, the t-th sum has a variance of t."""
  ones = banded.Banded(np.ones((100_000, 1)))
  np.testing.assert_allclose(
    error.per_query_error(ones, 100_000), np.sqrt(np.arange(1.0, 100_001.0)), rtol=1e-10
  )


def test_refuses_more_rounds_than_there_are():
  with pytest.raises(ValueError, match='num_rounds=6.*5 rounds'):
    error.per_query_error(example(5, 2), 6)
