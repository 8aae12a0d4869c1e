"""Banded Toeplitz strategies: gradients of their losses, and the best losses known."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities, workload_error, workloads
from fl_dpftrl.mechanisms.families import banded_toeplitz
from fl_dpftrl.mechanisms.search import toeplitz_loss, toeplitz_search
from fl_dpftrl.mechanisms.search.search_problem import Problem

MAIN = dpftrl.MinSep(num_rounds=2052, min_sep=342, max_participations=6)
WORKLOADS = {
  'prefix': workloads.Workload(),
  'momentum': workloads.Workload(0.9),
  'everything': workloads.Workload(0.5, 0.2, 0.3),
}


def check_gradient(log_square, point):
  """Returns the loss, its gradient compared with differences."""
  value, grad = log_square(point)
  numeric = [
    (log_square(point + 1e-6 * e)[0] - log_square(point - 1e-6 * e)[0]) / 2e-6
    for e in np.eye(point.size)
  ]
  np.testing.assert_allclose(grad, numeric, atol=1e-6)
  return np.exp(0.5 * value)


def example(num_bands):
  coefficients = np.random.default_rng(num_bands).normal(size=num_bands) * 0.3
  coefficients[0] = 1.1
  return coefficients


@pytest.mark.parametrize('workload', WORKLOADS.values(), ids=WORKLOADS)
@pytest.mark.parametrize('normalized', [False, True])
@pytest.mark.parametrize('power', [1, 4])
@pytest.mark.parametrize('n, bands', [(1, 1), (4, 1), (30, 7), (5, 8)])
def test_rows_error(workload, normalized, power, n, bands):
  coefficients = example(bands)
  of_error = toeplitz_loss.rows_error(n, power, workload, normalized=normalized)
  strategy = banded_toeplitz.BandedToeplitz(coefficients, n if normalized else None)
  queries = workload_error.per_query_error(strategy, n, workload)
  expected = np.mean(queries ** (2 * power)) ** (0.5 / power)
  assert check_gradient(of_error, coefficients) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize('beta', [0.0, 0.9])
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('n, bands, terms', [(1, 1, 1), (30, 7, 30), (5, 8, 5), (10**6, 5, 5000)])
def test_response_error(beta, objective, n, bands, terms):
  """With fewer terms than rounds, the limit stands for the tail."""
  workload = workloads.Workload(beta)
  coefficients = example(bands) if terms == n else 1.0 / np.arange(1.0, bands + 1.0)
  of_error = toeplitz_loss.response_error(n, objective, workload, terms)
  result = workload_error.error(banded_toeplitz.BandedToeplitz(coefficients), n, workload)
  expected = pytest.approx(getattr(result, objective), rel=1e-9)
  assert check_gradient(of_error, coefficients) == expected


@pytest.mark.parametrize('n, b, k', [(20, 3, None), (40, 9, 3), (9, 9, 1)])
def test_sensitivity(n, b, k):
  schema = dpftrl.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  coefficients = np.sort(np.random.default_rng(0).uniform(size=8))[::-1]
  strategy = banded_toeplitz.BandedToeplitz(coefficients)
  expected = pytest.approx(sensitivities.sensitivity(strategy, schema).value)
  assert check_gradient(toeplitz_loss.sensitivity(schema), coefficients) == expected


# n, b, k, bands, objective, loss that is known to be reached.
KNOWN = [
  (2052, 342, 6, 342, 'rms', 8.7450),
  (2052, 342, 6, 342, 'max', 9.9361),
  (16384, 1, 1, 16, 'rms', 23.0925),
  (16384, 1, 1, 16, 'max', 32.4173),
  (100_000, 1, 1, 64, 'rms', 28.7360),
  (100_000, 1, 1, 64, 'max', 40.2465),
  (10_000_000, 1, 1, 64, 'rms', 279.9071),
  (1_000_000_000, 1, 1, 16, 'max', 7905.762),
  (2000, 100, 10, 2000, 'max', 16.9173),
]
# The number of bands and the loss by default.
SPARSE = [
  (800, 25, 4, 800, 'max', 8.8951),
  (2000, 100, 5, 1858, 'rms', 9.4504),
  (200, 5, 2, 200, 'max', 4.7653),
  (2000, 100, 12, 100, 'rms', 15.6216),
  (2052, 342, 6, 342, 'rms', 8.7449),
  (2052, 342, 6, 342, 'max', 9.9360),
]


@pytest.mark.slow
@pytest.mark.parametrize(
  'n, b, k, num_bands, objective, known, given',
  [(*row, True) for row in KNOWN] + [(*row, False) for row in SPARSE],
)
def test_reaches_what_is_known(n, b, k, num_bands, objective, known, given):
  schema = dpftrl.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = toeplitz_search.optimize(Problem(schema, objective), num_bands if given else None)
  assert strategy.num_bands == pytest.approx(num_bands, abs=0 if given else 20)
  assert given or strategy.coefficients[-1] > 0.0
  assert sensitivities.sensitivity(strategy, schema).kind == 'exact'
  assert Problem(schema, objective).loss(strategy) <= known


def test_square_root():
  strategy = toeplitz_search.square_root(Problem(MAIN))
  assert strategy.num_bands == 2052
  np.testing.assert_allclose(strategy.coefficients[:5], [1, 1 / 2, 3 / 8, 5 / 16, 35 / 128])


def test_refuses_more_rounds_than_a_way_exists_for():
  schema = dpftrl.MinSep(num_rounds=100_000, min_sep=9)
  with pytest.raises(ValueError, match='num_bands'):
    toeplitz_search.square_root(Problem(schema))
  with pytest.raises(ValueError, match='num_rounds=100000'):
    toeplitz_search.optimize(Problem(schema, workload=workloads.Workload(0.0, 0.0, 0.5)))
