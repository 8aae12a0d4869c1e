"""Minimisation from many starts at once."""

import numpy as np
import pytest

from fl_dpftrl.optimization import many_starts

OPTIONS = {'max_iterations': 500, 'tolerance': 1e-14, 'patience': 10}


def rosenbrock(points):
  x, y = points.T
  grads = np.stack([-2.0 * (1.0 - x) - 400.0 * x * (y - x**2), 200.0 * (y - x**2)], axis=1)
  return (1.0 - x) ** 2 + 100.0 * (y - x**2) ** 2, grads


def test_every_start_ends_in_the_valley():
  starts = np.random.default_rng(0).normal(scale=3.0, size=(20, 2))
  found = many_starts.minimize(rosenbrock, starts, **OPTIONS)
  np.testing.assert_allclose(found.points, np.ones((20, 2)), atol=1e-5)
  assert (np.diff(found.values) >= 0.0).all()


def test_a_start_ends_where_it_ends_alone():
  starts = np.random.default_rng(1).normal(size=(4, 2))
  together = many_starts.minimize(rosenbrock, starts, **OPTIONS)
  alone = [many_starts.minimize(rosenbrock, start[None], **OPTIONS).values[0] for start in starts]
  np.testing.assert_allclose(together.values, np.sort(alone), rtol=1e-6, atol=1e-20)


def test_finds_each_minimum_and_gives_the_best_first():
  def wells(points):  # at −1, and deeper at 1
    x = points[:, 0]
    return (x**2 - 1.0) ** 2 - 0.1 * x, (4.0 * x * (x**2 - 1.0) - 0.1)[:, None]

  found = many_starts.minimize(wells, np.array([[-2.0], [2.0]]), **OPTIONS)
  assert found.values[0] < found.values[1]
  assert found.points[0, 0] == pytest.approx(1.0, abs=0.02)
  assert found.points[1, 0] == pytest.approx(-1.0, abs=0.02)


def test_keeps_inside_the_domain():
  def barrier(points):
    x = points[:, 0]
    return x - np.log(x), (1.0 - 1.0 / x)[:, None]

  found = many_starts.minimize(barrier, np.array([[1e-6], [50.0]]), **OPTIONS)
  np.testing.assert_allclose(found.points, 1.0, atol=1e-5)


def test_starts_at_a_minimum_stay():
  found = many_starts.minimize(rosenbrock, np.ones((2, 2)), **OPTIONS)
  np.testing.assert_array_equal(found.points, 1.0)


def test_tells_of_its_progress():
  told = []
  found = many_starts.minimize(
    rosenbrock, np.zeros((3, 2)), progress=lambda *a: told.append(a), **OPTIONS
  )
  assert [step for step, _ in told] == list(range(1, len(told) + 1))
  assert told[-1][1] == found.values[0]


def test_refuses_a_start_outside():
  def function(points):
    return np.full(len(points), np.nan), points

  with pytest.raises(ValueError, match='feasible'):
    many_starts.minimize(function, np.zeros((1, 2)), **OPTIONS)
