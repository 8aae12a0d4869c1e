"""One strategy for a range of min-seps beats what was made for one of them."""

import dataclasses

import numpy as np
import pytest

from fl_dpftrl import sensitivity, workloads
from fl_dpftrl.families import banded_toeplitz
from fl_dpftrl.optimization import blt, toeplitz, toeplitz_range
from fl_dpftrl.optimization.problem import Problem
from fl_dpftrl.participation import schemas

MEASURES = {
  'mean': lambda losses, best: np.mean(losses),
  'worst': lambda losses, best: np.max(losses),
  'regret': lambda losses, best: np.max(losses / best),
}
PREFIX = workloads.Workload()


def problems(num_rounds, min_seps, k=None, objective='rms', workload=PREFIX):
  lengths = np.broadcast_to(num_rounds, len(min_seps))
  return [
    Problem(schemas.MinSep(int(n), int(b), k or -(-int(n) // int(b))), objective, workload)
    for n, b in zip(lengths, min_seps)
  ]


def losses(strategy, over):
  return np.array([problem.loss(strategy) for problem in over])


SMALL = (120, (10, 15, 20, 25, 30), 4)


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize(
  'num_rounds, min_seps, num_bands, workload',
  [
    (24, [4, 5, 6, 7, 8], 4, PREFIX),
    (24, [4, 8], 6, PREFIX),
    (15, [2, 5, 9], None, PREFIX),
    (16, [16], 3, workloads.Workload(0.9)),
    ([12, 18], [3, 6], 3, PREFIX),
    (120, [10, 20, 30], None, workloads.Workload(0.9)),
  ],
)
def test_neither_a_single_optimum_nor_another_aim_is_better(
  num_rounds, min_seps, num_bands, workload, objective
):
  over = problems(num_rounds, min_seps, objective=objective, workload=workload)
  most = num_bands or toeplitz_range.default_bands([problem.schema for problem in over])
  single, others, best = [], [], np.full(len(over), np.inf)
  for i, problem in enumerate(over):
    for size in {most, *toeplitz.default_bands(problem.schema)}:
      if num_bands is None or size <= num_bands:
        single.append(toeplitz.optimize(problem, size))
        best[i] = min(best[i], problem.loss(single[-1]))
  aims = {name: toeplitz_range.optimize_range(over, name, num_bands) for name in MEASURES}
  for strategy in single:
    if strategy.normalized_rounds is not None:
      strategy = dataclasses.replace(strategy, normalized_rounds=np.max(num_rounds))
    others.append(strategy)
  if len(min_seps) > 1:
    softened = toeplitz_range.soften(single[-1].coefficients, min(min_seps), max(min_seps))
    others.append(banded_toeplitz.BandedToeplitz(softened))
  for name, measure in MEASURES.items():
    reached = measure(losses(aims[name], over), best)
    for strategy in (*others, *aims.values()):
      assert reached <= measure(losses(strategy, over), best) * (1 + 2e-6), name


@pytest.mark.slow
def test_its_sensitivity_is_exact_everywhere_and_its_progress_told():
  told = []
  over = [
    dataclasses.replace(problem, progress=lambda *args: told.append(args))
    for problem in problems(*SMALL)
  ]
  strategy = toeplitz_range.optimize_range(over, 'regret')
  assert 30 < strategy.num_bands <= 120
  assert {sensitivity.sensitivity(strategy, p.schema).kind for p in over} == {'exact'}
  assert [steps for steps, _ in told] == list(range(1, len(told) + 1))
  assert 1.0 < told[-1][1] < 1.2


@pytest.mark.slow
def test_many_bands_where_participations_leave_rounds_free():
  over = problems(400, (12, 18, 25), 4, 'max')
  best = np.array([problem.loss(toeplitz.optimize(problem)) for problem in over])
  many = toeplitz_range.optimize_range(over, 'regret')
  few = toeplitz_range.optimize_range(over, 'regret', 25)
  assert few.num_bands == 25
  assert np.max(losses(many, over) / best) < 1.05 < 1.2 < np.max(losses(few, over) / best)


@pytest.mark.parametrize(
  'over, expected',
  [
    (SMALL, 120),
    ((2000, (200, 400), 5), 400),
    ((9000, (100, 200), 5), 4096),
    ((120, (30,), 4), 30),
  ],
)
def test_numbers_of_bands_for_a_range(over, expected):
  assert toeplitz_range.default_bands([p.schema for p in problems(*over)]) == expected


def test_the_range_that_lost_to_one_of_its_schemas():
  over = problems(24, [4, 8], objective='max')
  strategy = toeplitz_range.optimize_range(over, 'worst', 4)
  assert strategy.normalized_rounds == 24
  assert losses(strategy, over).max() == pytest.approx(6.68216, rel=1e-5)


@pytest.mark.slow
@pytest.mark.thorough
def test_the_setting_of_the_paper():
  """Choquette-Choo et al. 2024, appendix H: n = 2000, k = 5, b = 200 … 400."""
  over = problems(2000, np.linspace(200, 400, 9), 5)
  single = [toeplitz.optimize(problem) for problem in over]
  best = np.array([problem.loss(strategy) for problem, strategy in zip(over, single)])
  softened = toeplitz_range.soften(single[-1].coefficients, 200, 400)
  softened = losses(banded_toeplitz.BandedToeplitz(softened), over)
  of_blt = losses(blt.optimize(over[-1], 3), over)
  regret, mean = (
    losses(toeplitz_range.optimize_range(over, name), over) for name in ('regret', 'mean')
  )
  assert np.max(regret / best) <= 1.0372
  assert np.max(softened / best) >= 1.05
  assert np.max(of_blt / best) >= 1.05
  assert mean.mean() <= 8.4214 < softened.mean() < of_blt.mean()
  assert (regret < of_blt).all()


def test_softening():
  softened = toeplitz_range.soften(np.ones(6), 2, 6)
  np.testing.assert_allclose(softened, [1.0, 1.0, 1.0, 0.75, 0.5, 0.25])


@pytest.mark.parametrize(
  'change, message',
  [
    ({'problems': []}, 'schemas'),
    ({'over': 'median'}, "over.*'median'"),
    ({'num_bands': 121}, 'num_bands.*1 to 120.*121'),
    ({'problems': problems(*SMALL, workload=workloads.Workload(0.0, 0.1))}, 'workload.*warm-up'),
  ],
)
def test_refuses_other_arguments(change, message):
  with pytest.raises(ValueError, match=message):
    toeplitz_range.optimize_range(**{'problems': problems(*SMALL), 'over': 'mean', **change})
