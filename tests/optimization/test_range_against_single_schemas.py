"""The optimum over a range is never worse than the optimum for one of its schemas."""

import dataclasses

import numpy as np
import pytest

from fl_dpftrl import workloads
from fl_dpftrl.optimization import toeplitz, toeplitz_range
from fl_dpftrl.participation import schemas as participation


def schemas(num_rounds, min_seps):
  lengths = np.broadcast_to(num_rounds, len(min_seps))
  return [
    participation.MinSep(num_rounds=int(n), min_sep=b, max_participations=-(-int(n) // b))
    for n, b in zip(lengths, min_seps)
  ]


@pytest.mark.slow
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize(
  'over, num_bands, workload',
  [
    (schemas(24, [4, 5, 6, 7, 8]), 4, workloads.Workload()),
    (schemas(24, [4, 8]), 6, workloads.Workload()),
    (schemas(15, [2, 5, 9]), None, workloads.Workload()),
    (schemas(16, [16]), 3, workloads.Workload(0.9)),
    (schemas([12, 18], [3, 6]), 3, workloads.Workload()),
  ],
)
def test_no_single_optimum_is_better_over_the_range(over, num_bands, workload, objective):
  options = {'objective': objective, 'num_bands': num_bands, 'workload': workload}
  problems = [toeplitz.Problem(schema, objective, workload) for schema in over]
  longest = max(schema.num_rounds for schema in over)
  most = num_bands or toeplitz_range.default_bands(over)
  single, best = [], np.full(len(over), np.inf)
  for i, problem in enumerate(problems):
    for size in {most, *toeplitz.default_bands(problem.schema)}:
      if num_bands is None or size <= num_bands:
        single.append(toeplitz.optimize(**problem._asdict(), num_bands=size))
        best[i] = min(best[i], problem.loss(single[-1]))
  figures = {'mean': np.mean, 'worst': np.max, 'regret': lambda losses: np.max(losses / best)}
  for name, figure in figures.items():
    found = toeplitz_range.optimize_range(over, over=name, **options)
    reached = figure([problem.loss(found) for problem in problems])
    for strategy in single:
      if strategy.normalized_rounds is not None:
        strategy = dataclasses.replace(strategy, normalized_rounds=longest)
      losses = [problem.loss(strategy) for problem in problems]
      assert reached <= figure(losses) * (1 + 2e-6), name


def test_the_range_that_lost_to_one_of_its_schemas():
  problems = [toeplitz.Problem(s, 'max', workloads.Workload()) for s in schemas(24, [4, 8])]
  over = [problem.schema for problem in problems]
  found = toeplitz_range.optimize_range(over, objective='max', over='worst', num_bands=4)
  assert found.normalized_rounds == 24
  assert max(problem.loss(found) for problem in problems) == pytest.approx(6.68216, rel=1e-5)
