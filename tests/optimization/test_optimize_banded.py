"""Optimised banded strategies are banded, normalised and good."""

import numpy as np
import pytest

from fl_dpftrl import catalogue
from fl_dpftrl import participation
from fl_dpftrl import sensitivity
from fl_dpftrl.sensitivity import banded as banded_sensitivity
from fl_dpftrl import workloads
from fl_dpftrl.optimization import banded

SINGLE = participation.MinSep(num_rounds=96, max_participations=1)


def loss(strategy, schema, objective, workload=workloads.Workload()):
  file = catalogue.evaluate(strategy, schema=schema, workload=workload)
  return file.figures[f'{objective}_loss']


@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('n, b, k', [(40, 8, 3), (70, 66, None), (5, 2, 2)])
def test_columns_have_norm_one_and_the_sensitivity_is_exact(objective, n, b, k):
  schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = banded.optimize(schema, objective=objective)
  assert strategy.num_bands == min(b, n)
  np.testing.assert_allclose(banded_sensitivity.column_squares(strategy, n), 1.0)
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert kind == 'exact'
  assert value == pytest.approx(np.sqrt(schema.participations))


@pytest.mark.slow
def test_reaches_the_optimum_where_all_is_allowed():
  """512 rounds, one participation: 2.7393846561 (Denisov et al. 2022)."""
  schema = participation.MinSep(num_rounds=512, max_participations=1)
  strategy = banded.optimize(schema, objective='rms')
  assert strategy.num_bands == 512
  found = loss(strategy, schema, 'rms')
  assert 2.7393846561 - 1e-9 <= found <= 2.7393846561 * 1.0005


def test_the_mean_is_at_a_minimum():
  strategy = banded.optimize(SINGLE, objective='rms', num_bands=6)
  best = loss(strategy, SINGLE, 'rms')
  generator = np.random.default_rng(0)
  for _ in range(20):
    coefficients = np.array(strategy.coefficients)
    coefficients += (coefficients != 0) * generator.normal(
        size=coefficients.shape, scale=3e-3
    )
    other = type(strategy)(coefficients)
    assert loss(other, SINGLE, 'rms') >= best * (1 - 1e-5)


def test_each_objective_is_best_at_its_own_loss():
  found = {
      o: banded.optimize(SINGLE, objective=o, num_bands=6)
      for o in ('rms', 'max')
  }
  assert loss(found['rms'], SINGLE, 'rms') < loss(found['max'], SINGLE, 'rms')
  assert loss(found['max'], SINGLE, 'max') < loss(found['rms'], SINGLE, 'max')


def test_more_bands_are_better():
  losses = [
      loss(banded.optimize(SINGLE, objective='rms', num_bands=b), SINGLE, 'rms')
      for b in (1, 2, 4, 16, 96)
  ]
  assert all(np.diff(losses) < 0)


def test_momentum_asks_for_another_strategy():
  workload = workloads.Workload(0.9)
  for_prefix = banded.optimize(SINGLE, objective='rms', num_bands=6)
  for_momentum = banded.optimize(
      SINGLE, objective='rms', num_bands=6, workload=workload
  )
  assert loss(for_momentum, SINGLE, 'rms', workload) < 0.99 * loss(
      for_prefix, SINGLE, 'rms', workload
  )


@pytest.mark.parametrize('num_rounds', [1, 2, 3])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_short_runs(num_rounds, objective):
  schema = participation.MinSep(num_rounds=num_rounds, max_participations=1)
  strategy = banded.optimize(schema, objective=objective)
  independent = catalogue.load_strategy('identity')
  assert loss(strategy, schema, objective) <= loss(
      independent, schema, objective
  )


@pytest.mark.parametrize('schema, num_bands, most', [
    (participation.MinSep(num_rounds=9, min_sep=4), 5, 4),
    (participation.MinSep(num_rounds=9, min_sep=4), 0, 4),
    (participation.MinSep(num_rounds=9, max_participations=1), 10, 9),
])
def test_refuses_other_numbers_of_bands(schema, num_bands, most):
  with pytest.raises(ValueError, match=f'num_bands.*1 to {most}.*{num_bands}'):
    banded.optimize(schema, objective='rms', num_bands=num_bands)


def test_refuses_other_objectives_and_sizes():
  with pytest.raises(ValueError, match="objective.*'mean'"):
    banded.optimize(SINGLE, objective='mean')
  with pytest.raises(ValueError, match='num_rounds=100000'):
    banded.optimize(
        participation.MinSep(num_rounds=100_000, min_sep=2), objective='rms'
    )


@pytest.mark.parametrize(
    'n, num_bands', [(150, 5), (150, 70), (7, 3), (64, 64)]
)
@pytest.mark.parametrize('power', [1, 3])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_value_and_gradient(n, num_bands, power, momentum):
  # pylint: disable=protected-access
  problem = banded._Problem(workloads.Workload(momentum).matrix(n), num_bands)
  generator = np.random.default_rng(0)
  point = banded._start(n, num_bands)[problem.inside]
  point = point + generator.normal(size=point.shape, scale=2e-3)
  value, grad = problem.value_and_grad(point, power)

  gram = np.eye(n, num_bands) * 0
  gram[:, 0], gram[problem.inside] = 1.0, point
  dense = np.zeros((n, n))
  for j in range(num_bands):
    rows = np.arange(j, n)
    dense[rows, rows - j] = dense[rows - j, rows] = gram[rows, j]
  matrix = workloads.Workload(momentum).matrix(n)
  squares = np.diag(matrix @ np.linalg.inv(dense) @ matrix.T)
  assert value == pytest.approx(np.log(np.mean(squares**power)) / power)

  way, step = generator.normal(size=point.shape), 1e-6
  ahead, _ = problem.value_and_grad(point + step * way, power)
  behind, _ = problem.value_and_grad(point - step * way, power)
  assert grad @ way == pytest.approx((ahead - behind) / (2 * step), rel=1e-4)


def test_outside_of_the_domain_there_is_no_value():
  # pylint: disable-next=protected-access
  problem = banded._Problem(workloads.Workload().matrix(9), 3)
  size = int(problem.inside.sum())
  assert problem.value_and_grad(np.full(size, -0.9), 1)[0] == np.inf


@pytest.mark.slow
def test_reaches_what_is_known():
  schema = participation.MinSep(num_rounds=1024, max_participations=1)
  strategy = banded.optimize(schema, objective='rms', num_bands=32)
  assert loss(strategy, schema, 'rms') <= 4.8984
