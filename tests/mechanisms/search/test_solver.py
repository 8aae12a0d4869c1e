"""The minimisers find minima, stay feasible, tell of their progress and end."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from fl_dpftrl.mechanisms.search import many_starts, solver


def rosenbrock(x):
  a, b = x[1:] - x[:-1] ** 2, 1.0 - x[:-1]
  grad = np.zeros_like(x)
  grad[:-1] = -400.0 * x[:-1] * a - 2.0 * b
  grad[1:] += 200.0 * a
  return float(100.0 * a @ a + b @ b), grad


def barrier(x):
  """x − ln x has no value at or below 0, where its slope is steepest."""
  if (x <= 0.0).any():
    return np.inf, np.full_like(x, np.nan)
  return float(np.sum(x - np.log(x))), 1.0 - 1.0 / x


def of_each(function):
  """The function for several points at once."""

  def of_points(points):
    values, grads = zip(*map(function, points))
    return np.array(values), np.array(grads)

  return of_points


def from_many(function, starts, **options):
  options = {'max_iterations': 500, 'tolerance': 1e-14, 'patience': 10, **options}
  return many_starts.minimize(of_each(function), np.asarray(starts), **options)


@pytest.mark.parametrize('minimize', [solver.minimize, solver.minimize_monotone, from_many])
def test_steps_back_from_the_edge_of_the_domain(minimize):
  start = np.array([50.0, 1e-6])
  if minimize is from_many:
    np.testing.assert_allclose(minimize(barrier, start[:, None])[0], 1.0, atol=1e-5)
  else:
    np.testing.assert_allclose(minimize(barrier, start)[0], 1.0, atol=1e-4)


@pytest.mark.parametrize('minimize', [solver.minimize, solver.minimize_monotone, from_many])
def test_refuses_a_start_without_a_value(minimize):
  with pytest.raises(ValueError, match='start is not feasible'):
    minimize(lambda x: (np.nan, x), np.ones((1, 2)) if minimize is from_many else np.ones(2))


@hypothesis.given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=12))
def test_the_projection_is_the_nearest_monotone_sequence(values):
  values = np.array(values)
  nearest = solver.project(values)
  assert (nearest >= 0.0).all()
  assert (np.diff(nearest) <= 1e-12).all()
  # Onto a cone: what is left over is at a right angle to the projection, and to
  # no edge of the cone at less than one.
  rest = values - nearest
  assert rest @ nearest == pytest.approx(0.0, abs=1e-9)
  assert (np.cumsum(rest) <= 1e-9).all()


def test_finds_the_end_of_a_curved_valley():
  steps = []
  point, _ = solver.minimize(rosenbrock, np.zeros(10), progress=lambda i, _: steps.append(i))
  np.testing.assert_allclose(point, 1.0, atol=1e-5)
  assert len(steps) < 200
