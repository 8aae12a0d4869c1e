"""Optimised banded Toeplitz strategies reach the best losses known."""

import numpy as np
import pytest

from fl_dpftrl import sensitivity, workloads
from fl_dpftrl.families import banded_toeplitz as strategies
from fl_dpftrl.optimization import toeplitz
from fl_dpftrl.participation import schemas
from fl_dpftrl.strategies import files

MAIN = schemas.MinSep(num_rounds=2052, min_sep=342, max_participations=6)


def loss(strategy, schema, objective, workload=workloads.Workload()):
  file = files.describe(strategy, schema=schema, workload=workload)
  return file.figures[f'{objective}_loss']


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


@pytest.mark.slow
@pytest.mark.parametrize('n, b, k, num_bands, objective, known', KNOWN)
def test_reaches_what_is_known(n, b, k, num_bands, objective, known):
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = toeplitz.optimize(schema, objective=objective, num_bands=num_bands)
  assert strategy.num_bands == num_bands
  assert sensitivity.sensitivity(strategy, schema).kind == 'exact'
  assert loss(strategy, schema, objective) <= known


def test_columns_are_normalised_where_that_is_worth_it():
  assert toeplitz.optimize(MAIN, objective='rms').normalized_rounds == 2052
  long = schemas.MinSep(num_rounds=16384, max_participations=1)
  assert toeplitz.optimize(long, objective='rms', num_bands=16).normalized_rounds is None


def test_normalised_coefficients_are_at_a_minimum():
  schema = schemas.MinSep(num_rounds=60, min_sep=12)
  best = toeplitz.optimize(schema, objective='rms')
  assert best.normalized_rounds == 60
  generator = np.random.default_rng(0)
  for _ in range(20):
    other = strategies.BandedToeplitz(
      best.coefficients * (1 + generator.normal(size=12, scale=3e-3)), 60
    )
    assert loss(other, schema, 'rms') >= loss(best, schema, 'rms') * (1 - 1e-9)


@pytest.mark.parametrize('b, k', [(12, None), (5, 3)])
def test_any_start_of_the_search_is_undercut(b, k):
  schema = schemas.MinSep(num_rounds=60, min_sep=b, max_participations=k)
  for objective in ('rms', 'max'):
    best = loss(toeplitz.optimize(schema, objective=objective), schema, objective)
    for other in (toeplitz.one_parameter, toeplitz.square_root):
      found = other(schema, objective=objective, num_bands=12)
      assert best <= loss(found, schema, objective)


@pytest.mark.slow
@pytest.mark.parametrize('num_rounds', [1, 2, 3, 10])
@pytest.mark.parametrize('min_sep', [1, 2, 10])
@pytest.mark.parametrize('max_participations', [None, 1])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_short_runs_are_no_worse_than_independent_noise(
  num_rounds, min_sep, max_participations, objective
):
  schema = schemas.MinSep(
    num_rounds=num_rounds, min_sep=min_sep, max_participations=max_participations
  )
  independent = loss(files.load_strategy('identity'), schema, objective)
  for cls in (schemas.MinSep, schemas.FixedSeparation):
    schema = cls(num_rounds=num_rounds, min_sep=min_sep, max_participations=max_participations)
    strategy = toeplitz.optimize(schema, objective=objective)
    assert loss(strategy, schema, objective) <= independent * (1 + 1e-9)


@pytest.mark.parametrize(
  'schema, expected',
  [
    (MAIN, (342,)),
    (schemas.MinSep(num_rounds=5000, min_sep=2000), (1024,)),
    (schemas.MinSep(num_rounds=50, max_participations=1), (50,)),
    (schemas.MinSep(num_rounds=50), (1,)),
    (schemas.MinSep(num_rounds=900, max_participations=3), (1, 900)),
    (schemas.MinSep(num_rounds=9000, min_sep=2000, max_participations=2), (1024, 4096)),
  ],
)
def test_numbers_of_bands_worth_trying(schema, expected):
  assert toeplitz.default_bands(schema) == expected


# n, b, k, objective, the number of bands and the loss by default.
SPARSE = [
  (800, 25, 4, 'max', 800, 8.8951),
  (2000, 100, 5, 'rms', 1858, 9.4504),
  (200, 5, 2, 'max', 200, 4.7653),
  (2000, 100, 12, 'rms', 100, 15.6216),
  (2052, 342, 6, 'rms', 342, 8.7449),
  (2052, 342, 6, 'max', 342, 9.9360),
]


@pytest.mark.slow
@pytest.mark.parametrize('n, b, k, objective, num_bands, known', SPARSE)
def test_takes_many_bands_where_they_are_worth_it(n, b, k, objective, num_bands, known):
  schema = schemas.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = toeplitz.optimize(schema, objective=objective)
  assert strategy.num_bands == pytest.approx(num_bands, abs=20)
  assert strategy.coefficients[-1] > 0.0
  assert sensitivity.sensitivity(strategy, schema).kind == 'exact'
  assert loss(strategy, schema, objective) <= known


@pytest.mark.parametrize(
  'workload', [workloads.Workload(0.95), workloads.Workload(0.95, 0.15, 0.25)]
)
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_another_workload_asks_for_another_strategy(workload, objective):
  schema = schemas.MinSep(num_rounds=300, min_sep=50, max_participations=6)
  for_prefix = toeplitz.optimize(schema, objective=objective)
  for_workload = toeplitz.optimize(schema, objective=objective, workload=workload)
  assert loss(for_workload, schema, objective, workload) < 0.995 * loss(
    for_prefix, schema, objective, workload
  )


def test_square_root():
  strategy = toeplitz.square_root(MAIN, objective='max')
  assert strategy.num_bands == 2052
  np.testing.assert_allclose(strategy.coefficients[:5], [1, 1 / 2, 3 / 8, 5 / 16, 35 / 128])
  assert loss(strategy, MAIN, 'rms') == pytest.approx(10.870, abs=5e-4)
  assert loss(strategy, MAIN, 'max') == pytest.approx(11.401, abs=5e-4)


def test_one_parameter_is_near_the_best_where_runs_are_long():
  schema = schemas.MinSep(num_rounds=100_000, max_participations=1)
  for num_bands, objective in ((16, 'rms'), (64, 'max')):
    options = {'objective': objective, 'num_bands': num_bands}
    found = toeplitz.one_parameter(schema, **options)
    steps = np.diff(1.0 / found.coefficients[0] * found.coefficients)
    ratios = steps / np.diff(1.0 / np.arange(1.0, num_bands + 1.0))
    np.testing.assert_allclose(ratios, ratios[0])
    best = loss(toeplitz.optimize(schema, **options), schema, objective)
    assert best <= loss(found, schema, objective) <= 1.005 * best


@pytest.mark.slow
def test_is_the_same_every_time():
  found = [toeplitz.optimize(MAIN, objective='rms') for _ in range(2)]
  np.testing.assert_array_equal(found[0].coefficients, found[1].coefficients)


@pytest.mark.parametrize('num_bands', [20, 30])
def test_tells_of_its_progress(num_bands):
  schema = schemas.MinSep(num_rounds=200, min_sep=20)
  told = []
  strategy = toeplitz.optimize(
    schema, objective='rms', num_bands=num_bands, progress=lambda *args: told.append(args)
  )
  assert [steps for steps, _ in told] == list(range(1, len(told) + 1))
  assert told[-1][1] == pytest.approx(loss(strategy, schema, 'rms'))


@pytest.mark.parametrize('find', [toeplitz.optimize, toeplitz.square_root, toeplitz.one_parameter])
def test_refuses_other_arguments(find):
  for num_bands in (0, 2053):
    with pytest.raises(ValueError, match=f'num_bands.*1 to 2052.*{num_bands}'):
      find(MAIN, objective='rms', num_bands=num_bands)
  with pytest.raises(ValueError, match="objective.*'mean'"):
    find(MAIN, objective='mean')


def test_refuses_more_rounds_than_a_way_exists_for():
  schema = schemas.MinSep(num_rounds=100_000, min_sep=9)
  with pytest.raises(ValueError, match='num_bands'):
    toeplitz.square_root(schema, objective='rms')
  with pytest.raises(ValueError, match='num_rounds=100000'):
    toeplitz.optimize(schema, objective='rms', workload=workloads.Workload(0.0, 0.0, 0.5))
