"""Optimised banded strategies are banded, normalised and good, and their gradients are true."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import sensitivities, workloads
from fl_dpftrl.mechanisms.families import banded as family
from fl_dpftrl.mechanisms.search import banded_search
from fl_dpftrl.mechanisms.search.search_problem import Problem
from tests import made

SINGLE = dpftrl.MinSep(num_rounds=96, max_participations=1)
WORKLOADS = (
  workloads.Workload(),
  workloads.Workload(0.9),
  workloads.Workload(0.95, warmup_fraction=0.1, cooldown_fraction=0.25),
)


def columns(n, num_bands):
  generator = np.random.default_rng(0)
  start = banded_search.toeplitz(banded_search.root_coefficients(n, num_bands), n)
  noise = generator.normal(size=start.shape, scale=0.02)
  return start + np.where(start != 0.0, noise, 0.0)


def dense(by_column):
  num_bands, n = by_column.shape
  matrix = np.zeros((n, n))
  for u in range(n):
    for j in range(min(num_bands, n - u)):
      matrix[u + j, u] = by_column[j, u]
  return matrix


def check_gradient(loss, point):
  way = np.where(point != 0.0, np.random.default_rng(1).normal(size=point.shape), 0.0)
  _, gradient = loss.value_and_grad(point)
  ahead, behind = (loss.value_and_grad(point + step * way)[0] for step in (1e-6, -1e-6))
  assert np.sum(gradient * way) == pytest.approx((ahead - behind) / 2e-6, rel=1e-5)
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
  loss = banded_search.Loss((1, 1), banded_search.sgd_errors(workload, n), power)
  assert loss.value_and_grad(point)[0] == pytest.approx(expected, rel=1e-10)
  check_gradient(loss, point)


@pytest.mark.parametrize('min_sep, turns', [(1, 1), (4, 3), (5, 3), (3, 2), (20, 1)])
def test_norms(min_sep, turns):
  n = 12
  norms = (min_sep, turns)
  point = columns(n, 4)
  scaled, _ = banded_search.rescale(norms, point)
  squares = np.sum(scaled**2, axis=0)
  for start in range(n - (turns - 1) * min_sep):
    run = squares[start : start + turns * min_sep : min_sep]
    assert run.sum() == pytest.approx(turns)
  again, _ = banded_search.rescale(norms, scaled)
  np.testing.assert_allclose(again, scaled)
  check_gradient(
    banded_search.Loss(norms, banded_search.sgd_errors(workloads.Workload(), n), 2), point
  )


def test_there_is_no_value_without_an_inverse():
  point = columns(9, 3)
  point[0, 4] = 0.0
  far = banded_search.toeplitz(np.array([1.0, 30.0, 1.0]), 2000)
  for singular in (point, far):
    squared_errors = banded_search.sgd_errors(workloads.Workload(), singular.shape[1])
    loss = banded_search.Loss((1, 1), squared_errors, 1)
    assert loss.value_and_grad(singular)[0] == np.inf


@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('n, b, k', [(40, 8, 3), (70, 66, None), (5, 2, 2)])
def test_columns_have_norm_one_and_the_sensitivity_is_exact(objective, n, b, k):
  schema = dpftrl.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = banded_search.optimize(Problem(schema, objective))
  assert strategy.num_bands == min(b, n)
  np.testing.assert_allclose(strategy.column_squares(n), 1.0)
  expected = pytest.approx(np.sqrt(schema.participations))
  assert sensitivities.sensitivity(strategy, schema) == (expected, 'exact')


@pytest.mark.slow
@made.cases(
  'n, b, k, num_bands, known',
  (512, 1, 1, None, 2.7393846561 * 1.0005),  # the optimum of all C, Denisov et al. 2022
  (1024, 1, 1, 32, 4.89835),
  *(
    pytest.param(*row, marks=pytest.mark.thorough)
    for row in ((1024, 1, 1, 128, 3.44655), (16384, 1, 1, 16, 23.0925))
  ),
)
def test_reaches_what_is_known(n, b, k, num_bands, known):
  problem = Problem(dpftrl.MinSep(n, b, k), 'rms')
  loss = problem.loss(banded_search.optimize(problem, num_bands))
  assert loss <= known
  assert n != 512 or loss >= 2.7393846561 - 1e-9


@made.cases(
  'schema, options, message',
  (dpftrl.MinSep(9, 4), {'num_bands': 5}, 'num_bands.*1 to 4.*5'),
  (dpftrl.MinSep(9, 4), {'num_bands': 0}, 'num_bands.*1 to 4.*0'),
  (dpftrl.MinSep(9, 1, 1), {'num_bands': 10}, 'num_bands.*1 to 9.*10'),
  (dpftrl.MinSep(100_000, 1, 1), {}, 'num_bands=100000.*at most 335 bands'),
  (SINGLE, {'equal_norms': False}, 'equal_norms=False'),
)
def test_refuses(schema, options, message):
  with pytest.raises(ValueError, match=message):
    banded_search.optimize(Problem(schema), **options)


def test_the_mean_is_at_a_minimum():
  problem = Problem(SINGLE, 'rms')
  strategy = banded_search.optimize(problem, 6)
  best = problem.loss(strategy)
  generator = np.random.default_rng(0)
  for _ in range(20):
    noise = generator.normal(size=strategy.coefficients.shape, scale=3e-3)
    other = family.Banded(strategy.coefficients + (strategy.coefficients != 0) * noise)
    assert problem.loss(other) >= best * (1 - 1e-5)


@made.cases(
  'schema, before',
  (dpftrl.MinSep(256, 32), 9.592494),
  (dpftrl.MinSep(300, 16, 2), 6.533078),
  pytest.param(dpftrl.FixedSeparation(320, 40), 9.604219, marks=pytest.mark.slow),
  pytest.param(dpftrl.MinSep(800, 25, 4), 11.923322, marks=pytest.mark.thorough),
  pytest.param(dpftrl.MinSep(512, 64), 10.086425, marks=pytest.mark.thorough),
)
def test_the_search_ends_at_a_gap_and_loses_nothing(schema, before):
  """The losses before are of a search to the last digit, in twice to four times the steps."""
  problem = Problem(schema, 'max')
  assert problem.loss(banded_search.optimize(problem)) <= 1.0005 * before
