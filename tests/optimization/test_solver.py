"""The solver finds minima, stays feasible and ends."""

import numpy as np
import pytest

from fl_dpftrl.optimization import solver


def rosenbrock(x):
  a, b = x[1:] - x[:-1] ** 2, 1.0 - x[:-1]
  grad = np.zeros_like(x)
  grad[:-1] = -400.0 * x[:-1] * a - 2.0 * b
  grad[1:] += 200.0 * a
  return float(100.0 * a @ a + b @ b), grad


def test_finds_the_end_of_a_curved_valley():
  found = solver.minimize(rosenbrock, np.zeros(10), max_iterations=500)
  np.testing.assert_allclose(found.point, 1.0, atol=1e-5)
  assert found.iterations < 200


def test_steps_back_from_the_edge_of_the_domain():
  """x − ln x has no value at or below 0, where its slope is steepest."""

  def barrier(x):
    if (x <= 0.0).any():
      return np.inf, np.full_like(x, np.nan)
    return float(np.sum(x - np.log(x))), 1.0 - 1.0 / x

  found = solver.minimize(barrier, np.array([1e-6, 50.0]))
  np.testing.assert_allclose(found.point, 1.0, atol=1e-4)


def test_every_step_is_downhill_and_told():
  values = []
  found = solver.minimize(
    rosenbrock,
    np.full(4, -1.0),
    max_iterations=25,
    progress=lambda step, value: values.append((step, value)),
  )
  assert [step for step, _ in values] == list(range(1, found.iterations + 1))
  assert all(np.diff([value for _, value in values]) < 0)
  assert found.iterations == 25
  assert found.value == values[-1][1] == rosenbrock(found.point)[0]


def test_ends_at_once_where_there_is_nothing_to_gain():
  calls = []

  def flat(x):
    calls.append(x)
    return 3.0, np.zeros_like(x)

  found = solver.minimize(flat, np.ones(3))
  assert found.iterations == 0
  assert len(calls) == 1


def test_refuses_a_start_without_a_value():
  with pytest.raises(ValueError, match='start'):
    solver.minimize(lambda x: (np.nan, x), np.ones(2))
