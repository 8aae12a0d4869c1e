"""The projection is the nearest point, and minima are found and feasible."""

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from scipy import optimize

from fl_dpftrl.optimization import monotone


@hypothesis.given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=12))
def test_the_projection_is_the_nearest_feasible_point(values):
  values = np.array(values)
  found = monotone.project(values)
  assert (found >= 0.0).all()
  assert (np.diff(found) <= 1e-12).all()
  # Onto a cone: what is left over is at a right angle to the projection, and to
  # no edge of the cone at less than one.
  rest = values - found
  assert rest @ found == pytest.approx(0.0, abs=1e-9)
  assert (np.cumsum(rest) <= 1e-9).all()


def test_finds_the_constrained_minimum():
  generator = np.random.default_rng(0)
  matrix = generator.normal(size=(8, 8))
  matrix = matrix @ matrix.T + np.eye(8)
  target = generator.normal(size=8) + 1.0

  def value_and_grad(x):
    return float((x - target) @ matrix @ (x - target)), 2.0 * matrix @ (x - target)

  found = monotone.minimize(value_and_grad, np.ones(8), tolerance=1e-14)
  # The same in steps, all at least 0.
  steps = np.triu(np.ones((8, 8)))
  expected = (
    optimize.nnls(np.linalg.cholesky(matrix).T @ steps, np.linalg.cholesky(matrix).T @ target)[1]
    ** 2
  )
  assert found.value == pytest.approx(expected, rel=1e-9)
  assert (np.diff(found.point) <= 1e-12).all()


def test_steps_back_from_the_edge_of_the_domain():

  def barrier(x):
    if (x <= 0.0).any():
      return np.inf, np.full_like(x, np.nan)
    return float(np.sum(x - np.log(x))), 1.0 - 1.0 / x

  found = monotone.minimize(barrier, np.array([50.0, 1e-4]))
  np.testing.assert_allclose(found.point, 1.0, atol=1e-4)


def test_tells_of_the_best_so_far():
  told = []
  found = monotone.minimize(
    lambda x: (float(x @ x - 2.0 * x.sum()), 2.0 * x - 2.0),
    np.array([9.0, 4.0]),
    progress=lambda *args: told.append(args),
  )
  assert [step for step, _ in told] == list(range(1, found.iterations + 1))
  assert all(np.diff([value for _, value in told]) <= 0.0)
  assert found.value == told[-1][1] == pytest.approx(-2.0)


def test_refuses_a_start_without_a_value():
  with pytest.raises(ValueError, match='start'):
    monotone.minimize(lambda x: (np.nan, x), np.ones(2))
