"""The loss of banded strategies against dense matrices, and its gradient."""

import numpy as np
import pytest

from fl_dpftrl import workloads
from fl_dpftrl.optimization import banded

EQUAL = banded.Norms()
WORKLOADS = (
  workloads.Workload(),
  workloads.Workload(0.9),
  workloads.Workload(0.95, warmup_fraction=0.1, cooldown_fraction=0.25),
)


def columns(n, num_bands):
  generator = np.random.default_rng(0)
  start = banded.toeplitz(banded.root_coefficients(n, num_bands), n)
  noise = generator.normal(size=start.shape, scale=0.02)
  return start + np.where(start != 0.0, noise, 0.0)


def dense(by_column):
  num_bands, n = by_column.shape
  matrix = np.zeros((n, n))
  for u in range(n):
    for j in range(min(num_bands, n - u)):
      matrix[u + j, u] = by_column[j, u]
  return matrix


def check_gradient(loss, point, rel=1e-5):
  generator = np.random.default_rng(1)
  way = np.where(point != 0.0, generator.normal(size=point.shape), 0.0)
  _, gradient = loss.value_and_grad(point)
  ahead, _ = loss.value_and_grad(point + 1e-6 * way)
  behind, _ = loss.value_and_grad(point - 1e-6 * way)
  assert np.sum(gradient * way) == pytest.approx((ahead - behind) / 2e-6, rel=rel)
  assert not gradient[point == 0.0].any()


@pytest.mark.parametrize('n, num_bands', [(150, 5), (150, 70), (7, 3), (64, 64)])
@pytest.mark.parametrize('power', [1, 3])
@pytest.mark.parametrize('workload', WORKLOADS)
def test_value_and_gradient(n, num_bands, power, workload):
  point = columns(n, num_bands)
  matrix = dense(point)
  matrix /= np.linalg.norm(matrix, axis=0)
  decoder = workload.matrix(n) @ np.linalg.inv(matrix)
  expected = np.mean(np.sum(decoder**2, axis=1) ** power) ** (1 / power)
  for squared_errors in (
    banded.sgd_errors(workload, n),
    banded.dense_errors(workload.matrix(n)),
  ):
    loss = banded.Loss(EQUAL, squared_errors, power)
    assert loss.value_and_grad(point)[0] == pytest.approx(expected, rel=1e-10)
    check_gradient(loss, point)


@pytest.mark.parametrize('min_sep, turns', [(1, 1), (4, 3), (5, 3), (3, 2), (20, 1)])
def test_norms(min_sep, turns):
  n = 12
  norms = banded.Norms(min_sep, turns)
  point = columns(n, 4)
  scaled, _ = norms.rescale(point)
  squares = np.sum(scaled**2, axis=0)
  for start in range(n - (turns - 1) * min_sep):
    run = squares[start : start + turns * min_sep : min_sep]
    assert run.sum() == pytest.approx(turns)
  again, _ = norms.rescale(scaled)
  np.testing.assert_allclose(again, scaled)
  check_gradient(banded.Loss(norms, banded.sgd_errors(workloads.Workload(), n), 2), point)


def test_there_is_no_value_without_an_inverse():
  point = columns(9, 3)
  point[0, 4] = 0.0
  loss = banded.Loss(EQUAL, banded.sgd_errors(workloads.Workload(), 9), 1)
  assert loss.value_and_grad(point)[0] == np.inf
  point[:, :] = np.where(point != 0.0, [[1.0], [30.0], [1.0]], 0.0)
  far = banded.sgd_errors(workloads.Workload(), 2000)
  point = banded.toeplitz(np.array([1.0, 30.0, 1.0]), 2000)
  assert banded.Loss(EQUAL, far, 1).value_and_grad(point)[0] == np.inf


def test_rows_and_columns():
  point = columns(9, 4)
  rows = banded.to_rows(point)
  matrix = dense(point)
  for t in range(9):
    for j in range(4):
      assert rows[t, j] == (matrix[t, t - j] if t >= j else 0.0)
  np.testing.assert_array_equal(banded.to_columns(rows), point)


def test_what_is_refined_stays_itself():
  ratios = 1.0 + np.random.default_rng(0).random((4, 9))
  same = banded.refine(ratios, 4, 9)
  inside = np.arange(4)[:, None] + np.arange(9) < 9
  np.testing.assert_allclose(same[inside], ratios[inside])
  larger = banded.refine(ratios, 7, 20)
  assert larger.shape == (7, 20)
  assert ratios.min() <= larger.min() <= larger.max() <= ratios.max()


def test_a_straight_slope_is_refined_to_one():
  ratios = np.tile(np.arange(0.5, 8.0), (3, 1)) / 8
  finer = banded.refine(ratios, 3, 16)[0]
  np.testing.assert_allclose(finer[1:-1], np.arange(1.5, 15.0) / 16)
