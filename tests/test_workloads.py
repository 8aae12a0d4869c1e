"""Workloads do what the optimiser on the server does."""

import numpy as np
import pytest

from fl_dpftrl import workloads


def test_prefix_sums():
  updates = np.array([3.0, -1.0, 5.0])
  np.testing.assert_array_equal(workloads.prefix_sums(3) @ updates, [3.0, 2.0, 7.0])
  np.testing.assert_array_equal(workloads.Workload().matrix(3), workloads.prefix_sums(3))


@pytest.mark.parametrize('num_rounds', [1, 2, 9])
@pytest.mark.parametrize('beta', [0.0, 0.5, 0.95])
def test_momentum_is_sgd_with_momentum(num_rounds, beta):
  generator = np.random.default_rng(0)
  updates, rates = generator.normal(size=(2, num_rounds))
  velocity = model = 0.0
  models = []
  for update, rate in zip(updates, rates):
    velocity = beta * velocity + update
    model += rate * velocity
    models.append(model)
  matrix = workloads.momentum(num_rounds, beta, rates)
  np.testing.assert_allclose(matrix @ updates, models, atol=1e-13)
  constant = workloads.momentum(num_rounds, beta, np.ones(num_rounds))
  np.testing.assert_array_equal(workloads.Workload(beta).matrix(num_rounds), constant)


@pytest.mark.parametrize('beta', [-0.1, 1.0, float('nan'), float('inf')])
def test_refuses_momentum_out_of_range(beta):
  with pytest.raises(ValueError, match='momentum'):
    workloads.momentum(3, beta)
  with pytest.raises(ValueError, match='momentum'):
    workloads.Workload(beta)


@pytest.mark.parametrize('rates', [[1.0], [1.0, np.nan, 1.0]])
def test_refuses_other_learning_rates(rates):
  with pytest.raises(ValueError, match='learning_rates'):
    workloads.momentum(3, 0.9, rates)


@pytest.mark.parametrize('num_rounds', [0, -1, 10**6])
def test_refuses_what_is_no_matrix_or_too_large_a_one(num_rounds):
  with pytest.raises(ValueError, match='num_rounds'):
    workloads.prefix_sums(num_rounds)


def test_names():
  assert workloads.Workload().name == 'prefix'
  assert workloads.Workload(0.9).name == 'momentum'
