"""Errors of banded Toeplitz strategies, also where B is not Toeplitz."""

import numpy as np
import pytest

from fl_dpftrl import error, workloads
from fl_dpftrl.families import banded_toeplitz

WORKLOADS = {
  'prefix': workloads.Workload(),
  'momentum': workloads.Workload(0.9),
  'cooldown': workloads.Workload(0.0, cooldown_fraction=0.3),
  'everything': workloads.Workload(0.5, 0.2, 0.3),
}


@pytest.mark.parametrize('workload', WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize('num_rounds', [1, 2, 5, 6, 40])
@pytest.mark.parametrize('more', [None, 0, 1, 3, 9])
@pytest.mark.parametrize('num_bands', [1, 2, 6])
def test_errors_are_row_norms_of_the_decoder(workload, num_rounds, more, num_bands):
  coefficients = np.array([1.5, 0.7, -0.3, 0.4, 0.2, 0.1])[:num_bands]
  strategy = banded_toeplitz.BandedToeplitz(
    coefficients, None if more is None else num_rounds + more
  )
  expected = np.linalg.norm(
    workload.matrix(num_rounds) @ strategy.noising_matrix(num_rounds), axis=1
  )
  queries = error.per_query_error(strategy, num_rounds, workload)
  np.testing.assert_allclose(queries, expected, rtol=1e-11)
  result = error.error(strategy, num_rounds, workload)
  assert result.rms == pytest.approx(np.sqrt(np.mean(expected**2)), rel=1e-11)
  assert result.max == pytest.approx(expected.max(), rel=1e-11)


@pytest.mark.parametrize('normalized', [False, True])
def test_any_matrix_of_queries(normalized):
  queries = np.random.default_rng(0).normal(size=(3, 8))
  strategy = banded_toeplitz.BandedToeplitz([1.0, 0.5], 8 if normalized else None)
  expected = np.linalg.norm(queries @ strategy.noising_matrix(8), axis=1)
  result = error.error(strategy, 8, workloads.Matrix(queries))
  assert result.rms == pytest.approx(np.sqrt(np.mean(expected**2)))
  assert result.max == pytest.approx(expected.max())


@pytest.mark.parametrize('workload', [workloads.Workload(), workloads.Workload(0.9)])
@pytest.mark.parametrize('normalized', [False, True])
def test_the_limit_stands_for_the_tail(monkeypatch, workload, normalized):
  num_rounds = 30_000
  strategy = banded_toeplitz.BandedToeplitz(
    1.0 / np.arange(1.0, 13.0) + 0.05, num_rounds if normalized else None
  )
  short = error.error(strategy, num_rounds, workload)
  queries = error.per_query_error(strategy, num_rounds, workload)
  monkeypatch.setattr('fl_dpftrl.families.power_series._ALWAYS_WHOLE', num_rounds)
  whole = error.error(strategy, num_rounds, workload)
  assert short == pytest.approx(whole, rel=1e-9)
  np.testing.assert_allclose(
    queries, error.per_query_error(strategy, num_rounds, workload), rtol=1e-9
  )


def test_a_billion_rounds():
  """Nearly all rounds are at the limit, and errors are those of a constant."""
  strategy = banded_toeplitz.BandedToeplitz([1.0, 0.5, 0.25])
  result = error.error(strategy, 10**9)
  assert result.max == pytest.approx(np.sqrt(1e9) / 1.75, rel=1e-6)
  assert result.rms == pytest.approx(np.sqrt(1e9 / 2) / 1.75, rel=1e-6)
  normalised = banded_toeplitz.BandedToeplitz(strategy.coefficients, 10**9)
  norm = np.linalg.norm(strategy.coefficients)
  assert error.error(normalised, 10**9).max == pytest.approx(norm * result.max, rel=1e-6)


def test_refuses_what_cannot_be_done():
  schedule = workloads.Workload(0.0, cooldown_fraction=0.5)
  with pytest.raises(ValueError, match='num_rounds=1000000'):
    error.error(banded_toeplitz.BandedToeplitz([1.0]), 10**6, schedule)
  with pytest.raises(ValueError, match='num_rounds=9.*8 rounds'):
    error.error(banded_toeplitz.BandedToeplitz([1.0], 8), 9)
