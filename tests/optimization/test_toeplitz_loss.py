"""Losses in closed form and their gradients."""

import numpy as np
import pytest

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.optimization import toeplitz_loss
from fl_dpftrl.participation import schemas

WORKLOADS = {
  'prefix': workloads.Workload(),
  'momentum': workloads.Workload(0.9),
  'everything': workloads.Workload(0.5, 0.2, 0.3),
}


def check_gradient(log_square, point):
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
@pytest.mark.parametrize('n, bands', [(1, 1), (4, 1), (5, 3), (30, 7), (5, 8)])
def test_rows_error(workload, normalized, power, n, bands):
  coefficients = example(bands)
  found = check_gradient(
    toeplitz_loss.rows_error(n, power, workload, normalized=normalized), coefficients
  )
  strategy = banded_toeplitz.BandedToeplitz(coefficients, n if normalized else None)
  queries = error.per_query_error(strategy, n, workload)
  assert found == pytest.approx(np.mean(queries ** (2 * power)) ** (0.5 / power), rel=1e-9)


@pytest.mark.parametrize('beta', [0.0, 0.9])
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('n, bands', [(1, 1), (5, 3), (30, 7), (5, 8)])
def test_response_error(beta, objective, n, bands):
  workload, coefficients = workloads.Workload(beta), example(bands)
  found = check_gradient(toeplitz_loss.response_error(n, objective, workload, n), coefficients)
  result = error.error(banded_toeplitz.BandedToeplitz(coefficients), n, workload)
  assert found == pytest.approx(getattr(result, objective), rel=1e-9)


@pytest.mark.parametrize('beta', [0.0, 0.9])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_the_limit_stands_for_the_tail(beta, objective):
  workload, coefficients = workloads.Workload(beta), 1.0 / np.arange(1.0, 6.0)
  found = check_gradient(
    toeplitz_loss.response_error(10**6, objective, workload, 5000), coefficients
  )
  result = error.error(banded_toeplitz.BandedToeplitz(coefficients), 10**6, workload)
  assert found == pytest.approx(getattr(result, objective), rel=1e-9)


@pytest.mark.parametrize('n, b, k', [(20, 3, None), (40, 9, 3), (9, 9, 1)])
def test_sensitivity(n, b, k):
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  coefficients = np.sort(np.random.default_rng(0).uniform(size=8))[::-1]
  found = check_gradient(toeplitz_loss.sensitivity(schema), coefficients)
  assert found == pytest.approx(
    sensitivity.sensitivity(banded_toeplitz.BandedToeplitz(coefficients), schema).value
  )


def test_outside_of_the_domain_there_is_no_value():
  growing = np.array([1.0, -9.0])
  workload = workloads.Workload()
  response = toeplitz_loss.response_error(1000, 'rms', workload, 1000)
  rows = toeplitz_loss.rows_error(1000, 1, workload, normalized=True)
  with np.errstate(all='ignore'):
    assert response(growing)[0] == np.inf
    assert rows(growing)[0] == np.inf
