"""One strategy for a range of min-seps beats what was made for one of them."""

import numpy as np
import pytest

from fl_dpftrl import workloads
from fl_dpftrl.families import banded_toeplitz as strategies
from fl_dpftrl.optimization import blt, toeplitz, toeplitz_range
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.strategies import files


def schemas(num_rounds, low, high, k, points):
  return [
    participation.MinSep(num_rounds=num_rounds, min_sep=int(b), max_participations=k)
    for b in np.linspace(low, high, points)
  ]


def losses(strategy, over, objective='rms', workload=workloads.Workload()):
  return np.array(
    [
      files.describe(strategy, schema=s, workload=workload).figures[f'{objective}_loss']
      for s in over
    ]
  )


def as_it_is(strategy):
  return strategies.BandedToeplitz(strategy.coefficients)


SMALL = schemas(120, 10, 30, 4, 5)


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('workload', [workloads.Workload(), workloads.Workload(0.9)])
def test_each_aim_is_best_at_its_own(objective, workload):
  options = {'objective': objective, 'workload': workload}
  best = np.array([losses(toeplitz.optimize(s, **options), [s], **options)[0] for s in SMALL])
  figures = {'mean': np.mean, 'worst': np.max, 'regret': lambda x: np.max(x / best)}
  found = {
    over: losses(toeplitz_range.optimize_range(SMALL, over=over, **options), SMALL, **options)
    for over in figures
  }
  alone = [
    losses(as_it_is(toeplitz.optimize(s, num_bands=s.min_sep, **options)), SMALL, **options)
    for s in SMALL
  ]
  for over, figure in figures.items():
    others = [v for o, v in found.items() if o != over] + alone
    assert figure(found[over]) <= min(map(figure, others)) * (1 + 1e-4)
    softened = toeplitz_range.soften(
      toeplitz.optimize(SMALL[-1], num_bands=30, **options).coefficients, 10, 30
    )
    assert figure(found[over]) <= figure(
      losses(strategies.BandedToeplitz(softened), SMALL, **options)
    )


@pytest.mark.slow
def test_its_sensitivity_is_exact_everywhere():
  strategy = toeplitz_range.optimize_range(SMALL, objective='rms', over='regret')
  assert 30 < strategy.num_bands <= 120
  for schema in SMALL:
    file = files.describe(strategy, schema=schema)
    assert file.sensitivity.kind == 'exact'


@pytest.mark.slow
def test_many_bands_where_participations_leave_rounds_free():
  over = schemas(400, 12, 25, 4, 3)
  best = np.array([losses(toeplitz.optimize(s, objective='max'), [s], 'max')[0] for s in over])
  options = {'objective': 'max', 'over': 'regret'}
  found = toeplitz_range.optimize_range(over, **options)
  assert np.max(losses(found, over, 'max') / best) < 1.05
  few = toeplitz_range.optimize_range(over, num_bands=25, **options)
  assert few.num_bands == 25
  assert np.max(losses(few, over, 'max') / best) > 1.2


@pytest.mark.parametrize(
  'over, expected',
  [
    (SMALL, 120),
    (schemas(2000, 200, 400, 5, 9), 400),
    (schemas(9000, 100, 200, 5, 2), 4096),
    ([SMALL[-1]], 30),
  ],
)
def test_numbers_of_bands_for_a_range(over, expected):
  assert toeplitz_range.default_bands(over) == expected


def test_one_schema_is_a_range_too():
  for schema in (SMALL[0], SMALL[-1]):
    alone = toeplitz.optimize(schema, objective='rms', num_bands=schema.min_sep)
    found = toeplitz_range.optimize_range([schema], objective='rms', over='worst')
    assert losses(found, [schema]) <= losses(as_it_is(alone), [schema]) * (1 + 1e-6)


def test_runs_of_different_lengths():
  several = [SMALL[0], participation.MinSep(num_rounds=300, min_sep=30)]
  found = toeplitz_range.optimize_range(several, objective='max', over='mean')
  for schema in several:
    alone = as_it_is(toeplitz.optimize(schema, objective='max', num_bands=schema.min_sep))
    assert losses(found, several, 'max').mean() <= losses(alone, several, 'max').mean() * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_setting_of_the_paper():
  """Choquette-Choo et al. 2024, appendix H: n = 2000, k = 5, b = 200 … 400."""
  over = schemas(2000, 200, 400, 5, 9)
  best = np.array([losses(toeplitz.optimize(s, objective='rms'), [s])[0] for s in over])
  for_one = toeplitz.optimize(over[-1], objective='rms').coefficients
  softened = losses(strategies.BandedToeplitz(toeplitz_range.soften(for_one, 200, 400)), over)
  of_blt = losses(blt.optimize(over[-1], objective='rms', num_buffers=3), over)
  regret = losses(toeplitz_range.optimize_range(over, objective='rms', over='regret'), over)
  mean = losses(toeplitz_range.optimize_range(over, objective='rms', over='mean'), over)
  assert np.max(regret / best) <= 1.0372
  assert np.max(softened / best) >= 1.05
  assert np.max(of_blt / best) >= 1.05
  assert mean.mean() <= 8.4214 < softened.mean() < of_blt.mean()
  assert (regret < of_blt).all()


def test_softening():
  found = toeplitz_range.soften(np.ones(6), 2, 6)
  np.testing.assert_allclose(found, [1.0, 1.0, 1.0, 0.75, 0.5, 0.25])
  for low, high in ((0, 3), (3, 3), (4, 3)):
    with pytest.raises(ValueError, match=f'least_min_sep.*{low} and {high}'):
      toeplitz_range.soften(np.ones(6), low, high)


@pytest.mark.slow
def test_tells_of_its_progress():
  told = []
  toeplitz_range.optimize_range(
    SMALL, objective='rms', over='regret', progress=lambda *args: told.append(args)
  )
  assert [steps for steps, _ in told] == list(range(1, len(told) + 1))
  assert 1.0 < told[-1][1] < 1.2


@pytest.mark.parametrize(
  'change, message',
  [
    ({'schemas': []}, 'schemas'),
    ({'over': 'median'}, "over.*'median'"),
    ({'objective': 'mean'}, "objective.*'mean'"),
    ({'num_bands': 121}, 'num_bands.*1 to 120.*121'),
    ({'workload': workloads.Workload(0.0, 0.1, 0.0)}, 'workload.*warm-up'),
  ],
)
def test_refuses_other_arguments(change, message):
  arguments = {'schemas': SMALL, 'objective': 'rms', 'over': 'mean', **change}
  with pytest.raises(ValueError, match=message):
    toeplitz_range.optimize_range(arguments.pop('schemas'), **arguments)
