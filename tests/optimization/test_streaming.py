"""Streaming operators against dense matrices, and what they are for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fl_dpftrl import error, sensitivity, workloads
from fl_dpftrl.families import banded
from fl_dpftrl.optimization import banded as banded_optimization
from fl_dpftrl.optimization import streaming
from fl_dpftrl.optimization.problem import Problem
from fl_dpftrl.participation import schemas


def coefficients(n, num_bands):
  values = np.tile(1.0 / np.arange(1.0, num_bands + 1.0), (n, 1))
  values += 0.1 * np.random.default_rng(0).normal(size=values.shape)
  return np.where(np.arange(n)[:, None] >= np.arange(num_bands), values, 0.0)


def moving_average(decay):
  """The models of plain SGD, averaged over time; and it as a matrix."""

  def next_fn(t, row, state):
    model, average = state
    model = model + row
    average = decay * average + (1.0 - decay) * model
    return average, (model, average)

  def matrix(n):
    lag = np.arange(n)[:, None] - np.arange(n)
    return np.where(lag >= 0, 1.0 - decay ** (lag + 1.0), 0.0)

  init = lambda width: (jnp.zeros(width), jnp.zeros(width))
  return streaming.Operator(init, next_fn), matrix


@pytest.mark.slow
@pytest.mark.parametrize('n, num_bands', [(1, 1), (2, 2), (9, 1), (10, 4), (37, 6)])
@pytest.mark.parametrize(
  'workload', [workloads.Workload(), workloads.Workload(0.9, cooldown_fraction=0.25)]
)
def test_squared_errors(n, num_bands, workload):
  values = coefficients(n, num_bands)
  expected = error.per_query_error(banded.Banded(values), n, workload) ** 2
  with streaming.float64():
    found = streaming.squared_errors(
      streaming.sgd(workload, n), streaming.banded_inverse(jnp.asarray(values)), n
    )
  np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.slow
def test_gradient():
  n, values = 23, coefficients(23, 5)
  operator, matrix = moving_average(0.8)
  weights = np.random.default_rng(1).random(n)

  def total(x):
    inverse = streaming.banded_inverse(x)
    return weights @ streaming.squared_errors(operator, inverse, n)

  with streaming.float64():
    found = jax.grad(total)(jnp.asarray(values))
  inverse = banded.Banded(values).noising_matrix(n)
  decoder = matrix(n) @ inverse
  dense = -2.0 * decoder.T @ np.diag(weights) @ decoder @ inverse.T
  for j in range(5):
    np.testing.assert_allclose(found[j:, j], np.diagonal(dense, -j), rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_a_banded_strategy_for_a_workload_of_ones_own():
  n, num_bands = 40, 5
  schema = schemas.MinSep(num_rounds=n, min_sep=8)
  operator, matrix = moving_average(0.9)
  inside = np.arange(n)[:, None] >= np.arange(num_bands)
  lag = np.arange(num_bands)
  column = np.maximum(np.arange(n)[:, None] - lag, 0)

  def normalised(free):
    free = jnp.where(inside, free, 0.0)
    squares = jnp.zeros(n).at[column].add(free**2)
    return free / jnp.sqrt(squares)[column]

  steps = []
  found = streaming.optimize(
    coefficients(n, num_bands),
    inverse=lambda free: streaming.banded_inverse(normalised(free)),
    square_sensitivity=lambda free: float(schema.participations),
    workload=operator,
    num_rounds=n,
    progress=lambda step, loss: steps.append(loss),
  )
  with streaming.float64():
    strategy = banded.Banded(np.asarray(normalised(jnp.asarray(found))))
  average = workloads.Matrix(matrix(n))
  known = banded_optimization.optimize(Problem(schema, 'rms', average), num_bands)
  best = error.error(known, n, average).rms
  reached = error.error(strategy, n, average).rms
  assert reached == pytest.approx(best, rel=1e-4)
  value, kind = sensitivity.sensitivity(strategy, schema)
  assert kind == 'exact'
  assert steps[-1] == pytest.approx(value * reached)


def test_float64_is_left_behind():
  with streaming.float64():
    assert jnp.zeros(1).dtype == np.float64
  assert jnp.zeros(1).dtype == np.float32
