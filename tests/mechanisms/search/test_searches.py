"""What every search has in common: progress, the same result each time, workloads, short runs."""

import numpy as np
import pytest

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import workloads
from fl_dpftrl.mechanisms.families import identity
from fl_dpftrl.mechanisms.search import (
  banded_inverse_search,
  banded_search,
  blt_search,
  dense_search,
  toeplitz_search,
)
from fl_dpftrl.mechanisms.search.search_problem import Problem

SCHEMA = dpftrl.MinSep(num_rounds=96, min_sep=24)
MOMENTUM = workloads.Workload(0.9)
COOLDOWN = workloads.Workload(0.95, cooldown_fraction=0.25)
SEARCHES = {
  'banded': lambda problem: banded_search.optimize(problem, 6),
  'banded_inverse': lambda problem: banded_inverse_search.optimize(problem, 4),
  'blt': lambda problem: blt_search.optimize(problem, 2),
  'dense': lambda problem: dense_search.solve(problem).strategy,
  'toeplitz, fewer bands than min_sep': lambda problem: toeplitz_search.optimize(problem, 20),
  'toeplitz, more bands than min_sep': lambda problem: toeplitz_search.optimize(problem, 30),
}
each = pytest.mark.parametrize('search', SEARCHES.values(), ids=SEARCHES)


def schema_of(search, num_rounds=96, min_sep=24):
  most = 1 if search is SEARCHES['dense'] else None
  return dpftrl.MinSep(num_rounds, min_sep, most)


@each
def test_tells_of_its_progress_and_is_the_same_every_time(search):
  schema, told = schema_of(search), []
  problem = Problem(schema, 'rms', progress=lambda *args: told.append(args))
  strategy = search(problem)
  assert [steps for steps, _ in told] == list(range(1, len(told) + 1))
  assert min(value for _, value in told) == pytest.approx(problem.loss(strategy), rel=1e-3)
  for one, other in zip(strategy.parameters().values(), search(problem).parameters().values()):
    np.testing.assert_array_equal(one, other)


@each
@pytest.mark.parametrize('objective, workload', [('rms', COOLDOWN), ('max', MOMENTUM)])
def test_each_workload_asks_for_its_own_strategy(search, objective, workload):
  prefix, own = (Problem(schema_of(search), objective, w) for w in (workloads.Workload(), workload))
  for_prefix, for_own = search(prefix), search(own)
  assert own.loss(for_own) < 0.9995 * own.loss(for_prefix)
  assert prefix.loss(for_prefix) < prefix.loss(for_own)


@pytest.mark.parametrize('num_rounds', [1, 2, 3, 10])
@pytest.mark.parametrize(
  'objective, cls', [('rms', dpftrl.FixedSeparation), ('max', dpftrl.MinSep)]
)
@pytest.mark.parametrize('optimize', [banded_search.optimize, toeplitz_search.optimize])
def test_short_runs_are_no_worse_than_independent_noise(num_rounds, objective, cls, optimize):
  for min_sep, most in ((1, None), (2, None), (10, None), (1, 1)):
    problem = Problem(cls(num_rounds, min_sep, most), objective)
    independent = problem.loss(identity.Identity())
    assert problem.loss(optimize(problem)) <= independent * (1 + 1e-9)


@pytest.mark.parametrize(
  'find', [banded_inverse_search.optimize, toeplitz_search.optimize, toeplitz_search.square_root]
)
@pytest.mark.parametrize('num_bands', [0, 97])
def test_refuses_other_numbers_of_bands(find, num_bands):
  with pytest.raises(ValueError, match=f'num_bands.*1 to 96.*{num_bands}'):
    find(Problem(SCHEMA), num_bands)


@each
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_a_search_ends_early_where_it_gains_little(search, objective):
  told = []
  report = lambda *step: told.append(step)
  whole = Problem(schema_of(search), objective, progress=report)
  best, most = whole.loss(search(whole)), len(told)
  told.clear()
  early = Problem(schema_of(search), objective, progress=report, least_gain=5e-4)
  loss = early.loss(search(early))
  assert len(told) <= most
  assert best * (1 - 1e-9) <= loss <= 1.001 * best
