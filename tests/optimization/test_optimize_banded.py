"""Optimised banded strategies are banded, normalised and good."""

import os
import subprocess
import sys

import numpy as np
import pytest

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.optimization import banded
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files
from tests import oracle

SINGLE = schemas.MinSep(num_rounds=96, max_participations=1)


def loss(strategy, schema, objective, workload=workloads.Workload()):
  file = files.describe(strategy, schema=schema, workload=workload)
  return file.figures[f'{objective}_loss']


@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('n, b, k', [(40, 8, 3), (70, 66, None), (5, 2, 2)])
def test_columns_have_norm_one_and_the_sensitivity_is_exact(objective, n, b, k):
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = banded.optimize(schema, objective=objective)
  assert strategy.num_bands == min(b, n)
  np.testing.assert_allclose(strategy.column_squares(n), 1.0)
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert kind == 'exact'
  assert value == pytest.approx(np.sqrt(schema.participations))


@pytest.mark.slow
def test_reaches_the_optimum_where_all_is_allowed():
  """512 rounds, one participation: 2.7393846561 (Denisov et al. 2022)."""
  schema = schemas.MinSep(num_rounds=512, max_participations=1)
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
    coefficients += (coefficients != 0) * generator.normal(size=coefficients.shape, scale=3e-3)
    other = type(strategy)(coefficients)
    assert loss(other, SINGLE, 'rms') >= best * (1 - 1e-5)


def test_each_objective_is_best_at_its_own_loss():
  found = {o: banded.optimize(SINGLE, objective=o, num_bands=6) for o in ('rms', 'max')}
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
  for_momentum = banded.optimize(SINGLE, objective='rms', num_bands=6, workload=workload)
  assert loss(for_momentum, SINGLE, 'rms', workload) < 0.99 * loss(
    for_prefix, SINGLE, 'rms', workload
  )


@pytest.mark.parametrize('num_rounds', [1, 2, 3])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_short_runs(num_rounds, objective):
  schema = schemas.MinSep(num_rounds=num_rounds, max_participations=1)
  strategy = banded.optimize(schema, objective=objective)
  independent = files.load_strategy('identity')
  assert loss(strategy, schema, objective) <= loss(independent, schema, objective)


@pytest.mark.parametrize(
  'schema, num_bands, most',
  [
    (schemas.MinSep(num_rounds=9, min_sep=4), 5, 4),
    (schemas.MinSep(num_rounds=9, min_sep=4), 0, 4),
    (schemas.MinSep(num_rounds=9, max_participations=1), 10, 9),
  ],
)
def test_refuses_other_numbers_of_bands(schema, num_bands, most):
  with pytest.raises(ValueError, match=f'num_bands.*1 to {most}.*{num_bands}'):
    banded.optimize(schema, objective='rms', num_bands=num_bands)


def test_refuses_other_objectives_and_sizes():
  with pytest.raises(ValueError, match="objective.*'mean'"):
    banded.optimize(SINGLE, objective='mean')
  with pytest.raises(ValueError, match='num_bands=100000.*at most 335 bands'):
    banded.optimize(schemas.MinSep(num_rounds=100_000, max_participations=1), objective='rms')
  with pytest.raises(ValueError, match='equal_norms=False'):
    banded.optimize(SINGLE, objective='rms', equal_norms=False)


@pytest.mark.parametrize('cls', [schemas.MinSep, schemas.FixedSeparation])
def test_x_is_c_transposed_c(cls):
  """With C Cᵀ for X, rows would have the norms that columns must have."""
  schema = cls(num_rounds=14, min_sep=5, max_participations=3)
  matrix = banded.optimize(schema, objective='rms').strategy_matrix(14)
  worst = [oracle.worst(c, schema) for c in (matrix, np.linalg.cholesky(matrix.T @ matrix))]
  assert worst[0] == pytest.approx(np.sqrt(3), rel=1e-12)
  assert worst[1] > 1.05 * worst[0]


@pytest.mark.slow
@pytest.mark.parametrize('n, b, k', [(60, 10, 6), (55, 10, 6), (60, 10, 2), (60, 20, 1)])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_unequal_norms_suit_a_fixed_separation(n, b, k, objective):
  schema = schemas.FixedSeparation(num_rounds=n, min_sep=b, max_participations=k)
  unequal, equal = (
    banded.optimize(schema, objective=objective, equal_norms=e, num_bands=7) for e in (False, True)
  )
  np.testing.assert_allclose(equal.column_squares(n), 1.0)
  value, kind = sensitivity.sensitivity(unequal, schema)
  assert (value, kind) == (pytest.approx(np.sqrt(schema.participations)), 'exact')
  better = loss(unequal, schema, objective) / loss(equal, schema, objective)
  assert better < (0.999 if k > 1 else 1.0001)
  default = banded.optimize(schema, objective=objective, num_bands=7)
  np.testing.assert_array_equal(default.coefficients, unequal.coefficients)


def test_any_queries_are_a_workload():
  queries = np.triu(np.tri(40), -9)  # sums of ten rounds
  schema = schemas.MinSep(num_rounds=40, max_participations=1)
  sums = workloads.Matrix(queries)
  strategy = banded.optimize(schema, objective='rms', num_bands=6, workload=sums)
  prefix = banded.optimize(schema, objective='rms', num_bands=6)
  found = error.error(strategy, 40, sums).rms
  assert found < 0.99 * error.error(prefix, 40, sums).rms
  as_matrix = banded.optimize(
    schema, objective='rms', num_bands=6, workload=workloads.Matrix(np.tri(40))
  )
  assert loss(as_matrix, schema, 'rms') == pytest.approx(loss(prefix, schema, 'rms'), rel=1e-5)


def test_cooldown_asks_for_another_strategy():
  workload = workloads.Workload(0.95, cooldown_fraction=0.25)
  schema = schemas.MinSep(num_rounds=96, min_sep=24)
  suited = banded.optimize(schema, objective='rms', workload=workload)
  for_prefix = banded.optimize(schema, objective='rms')
  assert loss(suited, schema, 'rms', workload) < 0.91 * loss(for_prefix, schema, 'rms', workload)


def test_progress_ends_at_the_loss():
  steps = []
  strategy = banded.optimize(
    schemas.MinSep(num_rounds=400, min_sep=40, max_participations=4),
    objective='rms',
    num_bands=40,
    progress=lambda step, value: steps.append((step, value)),
  )
  schema = schemas.MinSep(num_rounds=400, min_sep=40, max_participations=4)
  assert [step for step, _ in steps] == list(range(1, len(steps) + 1))
  assert steps[-1][1] == pytest.approx(loss(strategy, schema, 'rms'))
  assert steps[0][1] == pytest.approx(steps[-1][1], rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
  'n, num_bands, known',
  [
    (1024, 32, 4.8983),
    (1024, 128, 3.4465),
    pytest.param(16384, 16, 23.092, marks=pytest.mark.thorough),
  ],
)
def test_reaches_what_is_known(n, num_bands, known):
  schema = schemas.MinSep(num_rounds=n, max_participations=1)
  strategy = banded.optimize(schema, objective='rms', num_bands=num_bands)
  assert round(loss(strategy, schema, 'rms'), 4) <= known


@pytest.mark.slow
def test_full_size():
  """342 bands for 2052 rounds, where 8.613 was the best elsewhere."""
  schema = schemas.MinSep(num_rounds=2052, min_sep=342, max_participations=6)
  strategy = banded.optimize(schema, objective='rms')
  assert loss(strategy, schema, 'rms') <= 8.5953


@pytest.mark.slow
def test_the_maximum_is_that_of_most_queries():
  schema = schemas.MinSep(num_rounds=257, min_sep=43, max_participations=6)
  strategy = banded.optimize(schema, objective='max')
  queries = error.per_query_error(strategy, 257)
  assert queries.max() <= 1.003 * np.median(queries)


_PRINT_LOSS = """
import sys
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.strategies import files as catalogue
from fl_dpftrl.optimization import banded
n, b, k, num_bands = map(int, sys.argv[1:])
schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
strategy = banded.optimize(schema, objective='max', num_bands=num_bands)
print(repr(catalogue.describe(strategy, schema=schema).figures['max_loss']))
"""


def loss_with_kernels(kernels, *sizes):
  """Returns the loss with OpenBLAS kernels of a processor, in a process of its own."""
  environment = dict(os.environ, OPENBLAS_CORETYPE=kernels, OPENBLAS_NUM_THREADS='1')
  command = [sys.executable, '-c', _PRINT_LOSS, *map(str, sizes)]
  done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
  return float(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
  'sizes, most',
  [
    ((150, 15, 4, 15), 7.0400),
    pytest.param((600, 60, 5, 30), 10.8870, marks=pytest.mark.thorough),
    pytest.param((600, 60, 5, 60), 8.5842, marks=pytest.mark.thorough),
  ],
)
def test_the_maximum_does_not_depend_on_the_processor(sizes, most):
  """The optimum for 600 rounds is at least 10.8797 and 8.5787, by the dual."""
  found = [loss_with_kernels(kernels, *sizes) for kernels in ('Haswell', 'Nehalem')]
  assert found[0] == pytest.approx(found[1], abs=1e-5)
  assert max(found) <= most
