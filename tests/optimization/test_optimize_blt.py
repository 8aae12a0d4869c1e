"""Optimised BLTs reach the best losses known, and their gradients are true."""

import numpy as np
import pytest

from fl_dpftrl import catalogue
from fl_dpftrl import participation
from fl_dpftrl import workloads
from fl_dpftrl.optimization import blt

MAIN = participation.MinSep(num_rounds=2052, min_sep=342, max_participations=6)


def loss(strategy, schema, objective, workload=workloads.Workload()):
  file = catalogue.evaluate(strategy, schema=schema, workload=workload)
  return file.figures[f'{objective}_loss']


# n, b, k, buffers, objective, loss that is known to be reached.
KNOWN = [
    (2052, 342, 6, 2, 'max', 10.8063),
    (2052, 342, 6, 3, 'max', 10.7514),
    (2052, 342, 6, 4, 'max', 10.7341),
    (2052, 342, 6, 2, 'rms', 9.1828),
    (2052, 342, 6, 3, 'rms', 9.1713),
    (2052, 342, 6, 5, 'rms', 9.1713),
    (2000, 1, 1, 4, 'max', 3.4867),
    (2000, 1, 1, 4, 'rms', 3.2704),
    (4000, 400, 5, 4, 'max', 10.6722),
    (4000, 400, 5, 4, 'rms', 9.4448),
    (2000, 100, 10, 3, 'max', 17.4039),
    (2000, 100, 10, 2, 'rms', 14.9844),
    (2000, 100, 10, 3, 'rms', 14.8693),
]


@pytest.mark.parametrize('n, b, k, num_buffers, objective, known', KNOWN)
def test_reaches_what_is_known(n, b, k, num_buffers, objective, known):
  schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  strategy = blt.optimize(schema, objective=objective, num_buffers=num_buffers)
  assert strategy.num_buffers == num_buffers
  assert loss(strategy, schema, objective) <= known + 5e-5


@pytest.mark.slow
def test_chooses_as_many_buffers_as_are_worth_it():
  strategy = blt.optimize(MAIN, objective='rms')
  assert 2 <= strategy.num_buffers <= 4
  best = blt.optimize(MAIN, objective='rms', num_buffers=blt.MAX_BUFFERS)
  assert loss(strategy, MAIN, 'rms') <= 1.002 * loss(best, MAIN, 'rms')


@pytest.mark.parametrize('num_rounds', [1, 2, 3, 10])
@pytest.mark.parametrize('min_sep', [1, 2, 10])
@pytest.mark.parametrize('max_participations', [None, 1])
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('num_buffers', [1, 4])
def test_short_runs_are_no_worse_than_independent_noise(
    num_rounds, min_sep, max_participations, objective, num_buffers
):
  schema = participation.MinSep(
      num_rounds=num_rounds,
      min_sep=min_sep,
      max_participations=max_participations,
  )
  strategy = blt.optimize(schema, objective=objective, num_buffers=num_buffers)
  independent = loss(catalogue.load_strategy('identity'), schema, objective)
  assert loss(strategy, schema, objective) <= independent * (1 + 1e-6)


def test_eight_buffers_are_no_worse_than_two():
  two = blt.optimize(MAIN, objective='max', num_buffers=2)
  eight = blt.optimize(MAIN, objective='max', num_buffers=8)
  assert loss(eight, MAIN, 'max') <= loss(two, MAIN, 'max')


def test_momentum_asks_for_another_strategy():
  schema = participation.MinSep(
      num_rounds=300, min_sep=50, max_participations=4
  )
  workload = workloads.Workload(0.9)
  for_prefix = blt.optimize(schema, objective='rms', num_buffers=2)
  for_momentum = blt.optimize(
      schema, objective='rms', num_buffers=2, workload=workload
  )
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
      MAIN, objective='max', num_buffers=1,
      progress=lambda *args: told.append(args),
  )
  assert [steps for steps, _ in told] == list(range(1, len(told) + 1))
  assert min(value for _, value in told) == pytest.approx(
      loss(strategy, MAIN, 'max')
  )


@pytest.mark.parametrize('num_buffers', [-1, 9])
def test_refuses_other_numbers_of_buffers(num_buffers):
  with pytest.raises(ValueError, match=f'num_buffers.*{num_buffers}'):
    blt.optimize(MAIN, objective='max', num_buffers=num_buffers)


def test_refuses_other_objectives():
  with pytest.raises(ValueError, match="objective.*'mean'"):
    blt.optimize(MAIN, objective='mean', num_buffers=1)


@pytest.mark.parametrize('n, b, k', [(50, 7, 4), (33, 5, None), (2, 1, 1)])
@pytest.mark.parametrize('num_buffers', [1, 3])
@pytest.mark.parametrize('objective', ['rms', 'max'])
@pytest.mark.parametrize('momentum', [0.0, 0.9])
def test_value_and_gradient(n, b, k, num_buffers, objective, momentum):
  schema = participation.MinSep(num_rounds=n, min_sep=b, max_participations=k)
  workload = workloads.Workload(momentum)
  # pylint: disable=protected-access
  log_loss = blt._log_loss(schema, objective, workload)
  point = np.random.default_rng(0).normal(size=2 * num_buffers)

  def function(x):
    return blt._value_and_grad(x, n, log_loss)

  value, grad = function(point)
  strategy = blt._strategy(point)
  assert np.exp(0.5 * value) == pytest.approx(
      loss(strategy, schema, objective, workload)
  )
  numeric = [
      (function(point + 1e-5 * e)[0] - function(point - 1e-5 * e)[0]) / 2e-5
      for e in np.eye(point.size)
  ]
  np.testing.assert_allclose(grad, numeric, atol=1e-8)


@pytest.mark.slow
def test_a_hundred_thousand_rounds():
  schema = participation.MinSep(
      num_rounds=100_000, min_sep=1000, max_participations=10
  )
  strategy = blt.optimize(schema, objective='max', num_buffers=4)
  assert loss(strategy, schema, 'max') <= 25.25
