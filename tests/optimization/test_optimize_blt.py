"""Optimised BLTs reach the best losses known, and their gradients are true."""

import functools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl import workloads
from fl_dpftrl.families import blt as blt_lib
from fl_dpftrl.optimization import blt, blt_loss, blt_search, many_starts
from fl_dpftrl.participation import schemas as participation
from fl_dpftrl.strategies import files

MAIN = participation.MinSep(num_rounds=2052, min_sep=342, max_participations=6)


optimized = functools.cache(blt.optimize)  # Once for each setting that several tests look at.


def loss(strategy, schema, objective, workload=workloads.Workload()):
  file = files.describe(strategy, schema=schema, workload=workload)
  return file.figures[f'{objective}_loss']


# n, b, k, buffers, objective, loss that is known to be reached.
KNOWN = [
  (2052, 342, 6, 2, 'max', 10.8063),
  (2052, 342, 6, 3, 'max', 10.7514),
  (2052, 342, 6, 4, 'max', 10.7341),
  (2052, 342, 6, 5, 'max', 10.7341),
  (2052, 342, 6, 8, 'max', 10.7341),
  (2052, 342, 6, 2, 'rms', 9.1828),
  (2052, 342, 6, 3, 'rms', 9.1713),
  (2052, 342, 6, 4, 'rms', 9.1713),
  (2052, 342, 6, 8, 'rms', 9.1713),
  (2000, 1, 1, 4, 'max', 3.4866),
  (2000, 1, 1, 4, 'rms', 3.2704),
  (2000, 2000, 1, 4, 'max', 3.4866),
  (4000, 400, 5, 4, 'max', 10.6722),
  (4000, 400, 5, 4, 'rms', 9.4447),
  (2000, 100, 10, 3, 'max', 17.4039),
  (2000, 100, 10, 4, 'max', 17.4039),
  (2000, 100, 10, 2, 'rms', 14.9844),
  (2000, 100, 10, 3, 'rms', 14.8693),
  (100_000, 1000, 10, 4, 'max', 25.2499),
  (100_000, 1000, 10, 5, 'max', 25.2259),
  (100_000, 1000, 10, 4, 'rms', 22.9662),
  (10**9, 10**6, 10, 4, 'max', 41.5630),
]


@pytest.mark.slow
@pytest.mark.parametrize('n, b, k, num_buffers, objective, known', KNOWN)
def test_reaches_what_is_known(n, b, k, num_buffers, objective, known):
  schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = optimized(schema, objective=objective, num_buffers=num_buffers)
  assert strategy.num_buffers == num_buffers
  assert loss(strategy, schema, objective) <= known + 5e-5


@pytest.mark.slow
@pytest.mark.parametrize(
  'n, b, k, objective, num_buffers',
  [
    (2052, 342, 6, 'max', 4),
    (2052, 342, 6, 'rms', 3),
    (2000, 100, 10, 'max', 3),
    pytest.param(100_000, 1000, 10, 'max', 5, marks=pytest.mark.thorough),
    (10**9, 10**6, 10, 'max', 7),
  ],
)
def test_chooses_as_many_buffers_as_are_worth_it(n, b, k, objective, num_buffers):
  schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = optimized(schema, objective=objective)
  assert strategy.num_buffers == num_buffers
  chosen = loss(strategy, schema, objective)
  best, fewer = (
    loss(optimized(schema, objective=objective, num_buffers=size), schema, objective)
    for size in (blt.MAX_BUFFERS, num_buffers - 1)
  )
  assert chosen <= best * 1.00101
  assert fewer > best * 1.00099


@pytest.mark.slow
@pytest.mark.parametrize('num_rounds', [1, 2, 3, 10])
@pytest.mark.parametrize('min_sep', [1, 2, 10])
@pytest.mark.parametrize('max_participations', [None, 1])
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('num_buffers', [1, 4])
def test_short_runs_are_no_worse_than_independent_noise(
  num_rounds, min_sep, max_participations, objective, num_buffers
):
  schema = participation.MinSep(
    num_rounds=num_rounds, min_sep=min_sep, max_participations=max_participations
  )
  strategy = blt.optimize(schema, objective=objective, num_buffers=num_buffers)
  independent = loss(files.load_strategy('identity'), schema, objective)
  assert loss(strategy, schema, objective) <= independent * (1 + 1e-6)


@pytest.mark.slow
def test_eight_buffers_are_no_worse_than_two():
  two = optimized(MAIN, objective='max', num_buffers=2)
  eight = optimized(MAIN, objective='max', num_buffers=8)
  assert loss(eight, MAIN, 'max') <= loss(two, MAIN, 'max')


@pytest.mark.slow
def test_momentum_asks_for_another_strategy():
  schema = participation.MinSep(num_rounds=300, min_sep=50, max_participations=4)
  workload = workloads.Workload(0.9)
  for_prefix = blt.optimize(schema, objective='rms', num_buffers=2)
  for_momentum = blt.optimize(schema, objective='rms', num_buffers=2, workload=workload)
  assert loss(for_momentum, schema, 'rms', workload) < 0.99 * loss(
    for_prefix, schema, 'rms', workload
  )


def test_is_the_same_every_time():
  assert blt.optimize(MAIN, objective='max', num_buffers=2) == blt.optimize(
    MAIN, objective='max', num_buffers=2
  )


def test_tells_of_its_progress():
  told = []
  strategy = blt.optimize(
    MAIN, objective='max', num_buffers=1, progress=lambda *args: told.append(args)
  )
  assert [steps for steps, _ in told] == list(range(1, len(told) + 1))
  assert min(value for _, value in told) == pytest.approx(loss(strategy, MAIN, 'max'))


@pytest.mark.parametrize('num_buffers', [-1, 9])
def test_refuses_other_numbers_of_buffers(num_buffers):
  with pytest.raises(ValueError, match=f'num_buffers.*{num_buffers}'):
    blt.optimize(MAIN, objective='max', num_buffers=num_buffers)


def test_refuses_other_objectives():
  with pytest.raises(ValueError, match="objective.*'mean'"):
    blt.optimize(MAIN, objective='mean', num_buffers=1)


@pytest.mark.slow
@pytest.mark.parametrize('schedule', [(0.0, 0.0), (0.2, 0.3)])
@pytest.mark.parametrize('num_buffers', [1, 3])
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
@pytest.mark.parametrize('power', [1.0, 40.0])
def test_value_and_gradient(schedule, num_buffers, objective, momentum, power):
  schemas = [
    participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
    for n, b, k in ((50, 7, 4), (50, 5, None), (33, 1, 1))
  ]
  workload = workloads.Workload(momentum, *schedule)
  references = np.array([1.0, 2.0, 3.0])
  log_loss = blt_loss.LogLoss(
    schemas, objective, workload, references=references, power=power, query_power=1e7
  )
  points = np.random.default_rng(0).normal(size=(3, 2 * num_buffers))
  values, grads = log_loss(points)
  for point, value, grad in zip(points, values, grads):
    strategy = blt._strategy(point)
    ratios = [
      loss(strategy, schema, objective, workload) / reference
      for schema, reference in zip(schemas, references)
    ]
    expected = np.mean(np.power(ratios, power)) ** (1.0 / power)
    assert np.exp(value) == pytest.approx(expected, rel=2e-6)
    ends = [log_loss(point + h * np.eye(point.size))[0] for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(grad, (ends[0] - ends[1]) / 2e-5, atol=1e-7)


@hypothesis.given(st.lists(st.floats(-60.0, 60.0), min_size=6, max_size=6))
def test_any_numbers_are_a_blt(numbers):
  logits = np.array(numbers)
  gaps, _ = blt_loss.to_gaps(logits[None])
  assert (gaps > 0.0).all()
  strategy = blt._strategy(logits)
  assert strategy.num_buffers == 3
  values, grads = blt_loss.LogLoss([MAIN], 'max', workloads.Workload())(logits[None])
  assert np.isfinite(values).all() and np.isfinite(grads).all()


def test_gaps_and_logits():
  gaps = np.array([1e-9, 0.2, 0.05, 0.3, 0.1, 0.4])
  again, _ = blt_loss.to_gaps(blt_loss.to_logits(gaps)[None])
  np.testing.assert_allclose(again[0], gaps, rtol=1e-12)


@pytest.mark.slow
@hypothesis.given(
  st.integers(1, 10**10),
  st.floats(0.0, 1.0),
  st.floats(0.0, 1.0),
  st.sampled_from([0.0, 0.9, 0.999]),
  st.sampled_from(['rms', 'max']),
  st.integers(1, 4),
)
def test_never_fails(n, separation, share, momentum, objective, num_buffers):
  schema = participation.MinSep(
    num_rounds=n, min_sep=math.ceil(n**separation), max_participations=math.ceil(n**share)
  )
  workload = workloads.Workload(momentum)
  strategy = blt.optimize(schema, objective=objective, num_buffers=num_buffers, workload=workload)
  independent = blt_lib.BLT([0.5], [0.0])
  reached = loss(strategy, schema, objective, workload)
  assert reached <= loss(independent, schema, objective, workload) * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
  'n, b, k, num_buffers, objective, momentum',
  [
    (33, 12, None, 3, 'max', 0.5),
    (3, 2, None, 5, 'max', 0.9),
    (700, 30, 10, 2, 'rms', 0.0),
    (2000, 100, 10, 3, 'max', 0.0),
    (20_000, 1000, 20, 4, 'max', 0.95),
  ],
)
def test_many_more_starts_find_nothing_better(n, b, k, num_buffers, objective, momentum):
  schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  workload = workloads.Workload(momentum)
  strategy = blt.optimize(schema, objective=objective, num_buffers=num_buffers, workload=workload)
  log_loss = blt_loss.LogLoss([schema], objective, workload)
  points = blt_search.starts(num_buffers, n, None, random_starts=300)
  for steps in (80, 1000):
    solutions = many_starts.minimize(
      log_loss, points, max_iterations=steps, tolerance=1e-11, patience=30
    )
    points = solutions.points[:80]
  assert loss(strategy, schema, objective, workload) <= (np.exp(solutions.values[0]) * (1 + 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_a_schedule_asks_for_another_strategy(objective):
  schema = participation.MinSep(num_rounds=500, min_sep=50, max_participations=4)
  workload = workloads.Workload(0.95, 0.15, 0.25)
  own, *others = (
    loss(
      blt.optimize(schema, objective=objective, num_buffers=2, workload=optimised),
      schema,
      objective,
      workload,
    )
    for optimised in (workload, workloads.Workload(0.95), workloads.Workload())
  )
  assert own < others[0] < others[1]


RANGE = [
  participation.MinSep(num_rounds=1200, min_sep=b, max_participations=-(-1200 // b))
  for b in (100, 200, 400)
]


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_each_aim_over_a_range_is_met_best_by_its_own(objective):
  def losses(strategy):
    return np.array([loss(strategy, s, objective) for s in RANGE])

  alone = [blt.optimize(s, objective=objective, num_buffers=3) for s in RANGE]
  best = np.diag([losses(strategy) for strategy in alone])
  measures = {'mean': np.mean, 'worst': np.max, 'regret': lambda values: np.max(values / best)}
  found = {
    over: losses(blt.optimize_range(RANGE, objective=objective, over=over, num_buffers=3))
    for over in measures
  }
  others = [losses(strategy) for strategy in alone] + list(found.values())
  for over, measure in measures.items():
    for other in others:
      assert measure(found[over]) <= measure(other) * (1 + 1e-5)
    assert measures['regret'](found[over]) > 1.0


@pytest.mark.slow
def test_a_range_of_one_is_no_range():
  expected = optimized(MAIN, objective='max', num_buffers=2)
  for over in ('mean', 'worst', 'regret'):
    assert expected == blt.optimize_range([MAIN], objective='max', over=over, num_buffers=2)


@pytest.mark.parametrize(
  'arguments, name',
  [
    ({'over': 'median'}, "over.*'median'"),
    ({'schemas': []}, 'schemas'),
    ({'num_buffers': 9}, 'num_buffers.*9'),
    ({'objective': 'mean'}, "objective.*'mean'"),
  ],
)
def test_ranges_refuse(arguments, name):
  valid = {'schemas': [MAIN], 'objective': 'max', 'over': 'mean'}
  with pytest.raises(ValueError, match=name):
    blt.optimize_range(**(valid | arguments))
