"""Optimised BLTs reach the best losses known, and their gradients are true."""

import functools
import math

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fl_dpftrl as dpftrl
from fl_dpftrl.mechanisms import blt_sums, workloads
from fl_dpftrl.mechanisms.families import blt as family
from fl_dpftrl.mechanisms.search import blt_search
from fl_dpftrl.mechanisms.search.search_problem import Problem
from fl_dpftrl.participation.rules import loss_budgets
from fl_dpftrl.planning import optimization
from tests import made

MAIN = dpftrl.MinSep(num_rounds=2052, min_sep=342, max_participations=6)
optimized = functools.cache(
  blt_search.optimize
)  # Once for each setting that several tests look at.

THOROUGH = pytest.mark.thorough  # for what another test sees at another size

# n, b, k, buffers, objective, loss that is known to be reached.
KNOWN = [
  (2052, 342, 6, 2, 'max', 10.8063), (2052, 342, 6, 3, 'max', 10.7514),
  (2052, 342, 6, 4, 'max', 10.7341), (2052, 342, 6, 2, 'rms', 9.1828),
  (2052, 342, 6, 3, 'rms', 9.1713), (2000, 1, 1, 4, 'max', 3.4866), (2000, 1, 1, 4, 'rms', 3.2704),
  (4000, 400, 5, 4, 'max', 10.6722), (4000, 400, 5, 4, 'rms', 9.4447),
  (2000, 100, 10, 3, 'max', 17.4039), (2000, 100, 10, 2, 'rms', 14.9844),
  (2000, 100, 10, 3, 'rms', 14.8693), (100_000, 1000, 10, 5, 'max', 25.2259),
  (100_000, 1000, 10, 4, 'rms', 22.9662), (10**9, 10**6, 10, 4, 'max', 41.5630),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize('n, b, k, num_buffers, objective, known', KNOWN)
def test_reaches_what_is_known(n, b, k, num_buffers, objective, known):
  problem = Problem(dpftrl.MinSep(n, b, k), objective)
  strategy = optimized(problem, num_buffers)
  assert strategy.num_buffers == num_buffers
  assert problem.loss(strategy) <= known + 5e-5


@pytest.mark.slow
@made.cases(
  'n, b, k, objective, num_buffers',
  (2052, 342, 6, 'max', 4),
  (2052, 342, 6, 'rms', 3),
  pytest.param(2000, 100, 10, 'max', 3, marks=THOROUGH),
  pytest.param(100_000, 1000, 10, 'max', 5, marks=THOROUGH),
  pytest.param(10**9, 10**6, 10, 'max', 7, marks=THOROUGH),
)
def test_chooses_as_many_buffers_as_are_worth_it(n, b, k, objective, num_buffers):
  problem = Problem(dpftrl.MinSep(n, b, k), objective)
  strategy = optimized(problem)
  assert strategy.num_buffers == num_buffers
  best, fewer = (
    problem.loss(optimized(problem, size)) for size in (blt_search.MAX_BUFFERS, num_buffers - 1)
  )
  assert problem.loss(strategy) <= best * 1.00101
  assert fewer > best * 1.00099


@pytest.mark.slow
@hypothesis.settings(max_examples=10)
@hypothesis.given(
  st.integers(1, 10**10),
  st.floats(0.0, 1.0),
  st.floats(0.0, 1.0),
  st.sampled_from([0.0, 0.9, 0.999]),
  st.sampled_from(['rms', 'max']),
  st.integers(1, 4),
)
@hypothesis.example(1, 0.0, 1.0, 0.0, 'rms', 4)
@hypothesis.example(2, 1.0, 1.0, 0.0, 'max', 4)
@hypothesis.example(3, 0.5, 0.0, 0.0, 'rms', 1)
@hypothesis.example(10, 0.3, 1.0, 0.0, 'max', 4)
def test_never_fails(n, separation, share, momentum, objective, num_buffers):
  schema = dpftrl.MinSep(n, math.ceil(n**separation), math.ceil(n**share))
  problem = Problem(schema, objective, workloads.Workload(momentum))
  independent = problem.loss(family.BLT([0.5], [0.0]))
  assert problem.loss(blt_search.optimize(problem, num_buffers)) <= independent * (1 + 1e-6)


@pytest.mark.slow
@pytest.mark.parametrize('schedule, power', [((0.0, 0.0), 40.0), ((0.2, 0.3), 1.0)])
@pytest.mark.parametrize('num_buffers, momentum', [(1, 0.9), (3, 0.0)])
@pytest.mark.parametrize('objective', ['rms', 'max'])
def test_value_and_gradient(schedule, num_buffers, objective, momentum, power):
  every = [dpftrl.MinSep(*row) for row in ((50, 7, 4), (50, 5, None), (33, 1, 1))]
  workload = workloads.Workload(momentum, *schedule)
  references = np.array([1.0, 2.0, 3.0])
  log_loss = blt_search.LogLoss(
    every, objective, workload, references=references, power=power, query_power=1e7
  )
  points = np.random.default_rng(0).normal(size=(3, 2 * num_buffers))
  values, grads = log_loss(points)
  for point, value, grad in zip(points, values, grads):
    strategy = blt_search._strategy(point)
    losses = [Problem(schema, objective, workload).loss(strategy) for schema in every]
    expected = np.mean((losses / references) ** power) ** (1.0 / power)
    assert np.exp(value) == pytest.approx(expected, rel=2e-6)
    ends = [log_loss(point + h * np.eye(point.size))[0] for h in (1e-5, -1e-5)]
    np.testing.assert_allclose(grad, (ends[0] - ends[1]) / 2e-5, atol=1e-7)


@hypothesis.given(st.lists(st.floats(-60.0, 60.0), min_size=6, max_size=6))
def test_any_numbers_are_a_blt(numbers):
  logits = np.array(numbers)
  gaps, _ = blt_search.to_gaps(logits[None])
  assert (gaps > 0.0).all()
  assert blt_search._strategy(logits).num_buffers == 3
  values, grads = blt_search.LogLoss([MAIN], 'max', workloads.Workload())(logits[None])
  assert np.isfinite(values).all() and np.isfinite(grads).all()


@made.cases(
  'change, message',
  ({'problems': []}, 'schemas'),
  ({'num_buffers': -1}, 'num_buffers.*-1'),
  ({'num_buffers': 9}, 'num_buffers.*9'),
)
def test_refuses_other_arguments(change, message):
  with pytest.raises(ValueError, match=message):
    blt_search.optimize_range(**{'problems': [Problem(MAIN)], **change})


ENDLESS = loss_budgets.LossBudget(max_participations=6, min_sep=342)


@pytest.mark.parametrize('min_sep, most', [(1, 1), (1, 5), (7, 4), (342, 6)])
def test_an_endless_square_and_its_gradient(min_sep, most):
  generator, step = np.random.default_rng(most), 1e-6
  square = blt_sums.EndlessSquaredSensitivity(min_sep, most)
  decays, scales = generator.uniform(0.01, 0.9, (2, 3)), generator.dirichlet(np.ones(4), 2)[:, :3]
  values, d_decays, d_scales = square(decays, scales)
  for loss, scale, value in zip(decays, scales, values):
    gram = family.BLT(1.0 - loss, scale).endless_gram()
    assert value == pytest.approx(gram.worst_square(min_sep, most).value ** 2, rel=1e-13)
  for i, unit in enumerate(step * np.eye(3)):
    up, down = square(decays - unit, scales)[0], square(decays + unit, scales)[0]
    np.testing.assert_allclose((up - down) / (2 * step), d_decays[:, i], rtol=1e-5)
    up, down = square(decays, scales + unit)[0], square(decays, scales - unit)[0]
    np.testing.assert_allclose((up - down) / (2 * step), d_scales[:, i], rtol=1e-7)


@pytest.mark.slow
@made.cases(
  'n, b, k, objective, known',
  (200, 40, 5, 'max', 7.8607),
  (200, 40, 5, 'rms', 6.5182),
  (2052, 342, 6, 'max', 10.8130),
  (2052, 342, 6, 'rms', 9.1774),
)
def test_the_price_of_no_end_at_one_horizon(n, b, k, objective, known):
  budget = loss_budgets.LossBudget(max_participations=k, min_sep=b)
  strategy = optimization.optimize(
    'blt', budget, horizons=(n, n), objective=objective, num_buffers=4, progress=lambda *_: None
  )
  loss = Problem(dpftrl.MinSep(n, b, k), objective, budget=budget.named).loss(strategy)
  assert loss <= known + 1e-4
  assert loss >= Problem(dpftrl.MinSep(n, b, k), objective).loss(strategy)


@pytest.mark.slow
def test_several_horizons_cost_a_few_percent_each_decade():
  budget = loss_budgets.LossBudget(max_participations=5, min_sep=40)
  quiet = functools.partial(optimization.optimize, 'blt', budget, progress=lambda *_: None)
  strategy = quiet(horizons=(200, 2000), num_buffers=3)
  ratios = []
  for schema in budget.horizon_schemas((200, 2000)):
    problem = Problem(schema, budget=budget.named)
    best = quiet(horizons=(schema.num_rounds,) * 2, num_buffers=3)
    ratios.append(problem.loss(strategy) / problem.loss(best))
  assert len(ratios) == 4 and max(ratios) <= 1.071 and min(ratios) >= 1.0 - 1e-6
  beyond = Problem(dpftrl.MinSep(20_000, 40, 5), budget=budget.named)
  alone = quiet(horizons=(200, 200), num_buffers=3)  # Regret far beyond one horizon.
  assert beyond.loss(alone) > 1.5 * beyond.loss(strategy)


@made.cases(
  'mechanism, change, message',
  ('blt', {}, 'horizons must be two numbers'),
  ('blt', {'horizons': (9,)}, 'horizons must be two numbers'),
  ('blt', {'horizons': (0, 9)}, 'horizons must be two numbers'),
  ('blt', {'horizons': (10, 9)}, 'must be the first and the last'),
  ('blt', {'horizons': (9, 2**21)}, 'horizons must be two numbers'),
  ('banded', {'horizons': (9, 10)}, 'is optimised for a last round only'),
  ('blt', {'horizons': (9, 10), 'workload': workloads.Workload(0.0, 0.1)}, 'constant'),
)
def test_horizons_that_cannot_be(mechanism, change, message):
  with pytest.raises(ValueError, match=message):
    optimization.optimize(mechanism, ENDLESS, **change)


def test_what_has_horizons_and_what_not():
  with pytest.raises(ValueError, match='horizons=.* are for a run without an end'):
    optimization.optimize('blt', MAIN, horizons=(9, 10))
  with pytest.raises(ValueError, match='not squared'):
    optimization.optimize('blt', loss_budgets.LossBudget(squared=9.0), horizons=(9, 10))
