"""Workloads do what the optimiser on the server does; learning rates and errors."""

import math

import numpy as np
import pytest

from fl_dpftrl.mechanisms import workload_error, workloads
from fl_dpftrl.mechanisms.families import banded, identity
from tests import made


@pytest.mark.parametrize('num_rounds', [1, 2, 9])
@pytest.mark.parametrize('workload', [(0.0,), (0.5,), (0.95, 0.3, 0.4), (0.0, 0.0, 1.0)])
def test_a_model_after_each_round_of_sgd(num_rounds, workload):
  workload = workloads.Workload(*workload)
  updates = np.random.default_rng(0).normal(size=num_rounds)
  velocity = model = 0.0
  models = []
  for update, rate in zip(updates, workload.learning_rates(num_rounds)):
    velocity = workload.momentum * velocity + update
    model += rate * velocity
    models.append(model)
  matrix = workload.matrix(num_rounds)
  np.testing.assert_allclose(matrix @ updates, models, atol=1e-13)
  np.testing.assert_allclose(workload.apply(updates), models, atol=1e-13)
  back = workload.apply_transpose(updates)
  np.testing.assert_allclose(back, matrix.T @ updates, atol=1e-13)
  assert workload.name == ('momentum' if workload.momentum else 'prefix')


@made.cases(
  'make, arguments, named',
  *((workloads.Workload, (b,), 'momentum') for b in (-0.1, 1.0, math.nan, math.inf, '0.5')),
  (workloads.Workload, (0.0, -0.1), 'warmup_fraction'),
  (workloads.Workload, (0.0, 0.0, 1.1), 'cooldown_fraction'),
  (workloads.Workload, (0.0, 0.6, 0.5), 'warmup_fraction'),
  (workloads.warmup_cooldown, (0.0, 10), 'server_learning_rate'),
  (workloads.warmup_cooldown, (math.nan, 10), 'server_learning_rate'),
  (workloads.warmup_cooldown, (1.0, 0), 'num_rounds'),
)
def test_refuses(make, arguments, named):
  with pytest.raises(ValueError, match=named):
    make(*arguments)


@pytest.mark.parametrize('num_rounds', [0, -1, 10**6])
def test_refuses_what_is_no_matrix_or_too_large_a_one(num_rounds):
  with pytest.raises(ValueError, match='num_rounds'):
    workloads.Workload().matrix(num_rounds)


def test_rates_rise_stay_and_fall_over_the_stated_fractions():
  rates = workloads.warmup_cooldown(2.0, 100)
  assert rates.dtype == np.float32
  np.testing.assert_allclose(rates[[0, -1]], 0.1)
  assert (np.diff(rates[:16]) > 0).all() and (np.diff(rates[74:]) < 0).all()
  np.testing.assert_allclose(rates[15:75], 2.0)


@pytest.mark.parametrize('num_rounds', [1, 2, 3])
def test_short_runs_have_a_positive_rate_everywhere(num_rounds):
  rates = workloads.warmup_cooldown(1.0, num_rounds)
  assert rates.shape == (num_rounds,) and (rates > 0).all()


def test_refuses_errors_of_more_rounds_than_the_strategy_has():
  with pytest.raises(ValueError, match='num_rounds=5.*4 rounds'):
    workload_error.error(banded.Banded(np.ones((4, 1))), 5)


def test_errors_of_independent_noise_need_no_sum_over_the_rounds():
  assert workload_error.error(identity.Identity(), 10**15).max == pytest.approx(10**7.5)
