"""Rows of noise in integers by reference, against N Nᵀ."""

import numpy as np
import pytest

from fl_dpftrl.mechanisms import base, linear_noise
from fl_dpftrl.mechanisms.families import banded
from tests import every_family, oracle
from tests.noise import plain


def stream_of(strategy, normals, **options):
  """A stream for given normals of each round."""
  fresh = lambda t, scale: np.rint(scale * normals[t]).astype(np.int64)
  return plain.stream(strategy, len(normals), normals.shape[1], fresh, **options)


@pytest.mark.parametrize('num_rounds', [1, 2, 7, 33])
def test_rows_have_the_covariance_of_the_noise(example, num_rounds):
  """Rows follow the normals as rows of N follow Z, merged as rounds draw them."""
  strategy = example(num_rounds)
  made = oracle.rows(stream_of(strategy, np.eye(num_rounds)), num_rounds) * 2.0**-34
  noising = strategy.noising_matrix(num_rounds)
  np.testing.assert_allclose(made @ made.T, noising @ noising.T, rtol=1e-6, atol=1e-7)


def test_next_is_pure(example):
  stream = stream_of(example(7), np.random.default_rng(1).normal(size=(7, 3)))
  state = stream.init()
  for _ in range(6):
    once, after = stream.next(state)
    again, _ = stream.next(state)
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(stream.skip(state)[1], after[1])
    state = after


def test_rounds_past_the_last_are_refused():
  stream = stream_of(banded.Banded(np.ones((3, 1))), np.zeros((3, 2)))
  with pytest.raises(ValueError, match='row 3 is beyond the 3'):
    oracle.rows(stream, 4)
  with pytest.raises(ValueError, match='must be a Strategy, got 3'):
    stream_of(3, np.zeros((1, 1)))


class _Other(base.Strategy):
  """Rows of Z that are read again, two of each round in other proportions than at first."""

  family, max_rounds, weights = 'other', 2, (1.0, 1.0)

  def num_noise_rows(self, num_rounds):
    return 2 * num_rounds

  def strategy_matrix(self, num_rounds):
    raise NotImplementedError

  noising_matrix = strategy_matrix

  def noise(self, num_rounds=None):
    again = linear_noise.Step(draws=(*self.weights, 1.0, 2.0), earlier=2, norm=1.0)
    return linear_noise.LinearNoise(
      0, lambda t: again if t else linear_noise.Step(draws=(1.0, 2.0), norm=1.0)
    )


def test_rows_of_z_that_are_read_again_in_other_proportions_are_refused():
  strategy = _Other()
  with pytest.raises(ValueError, match='row 1 of other reads rows of Z again in other proportions'):
    stream_of(strategy, np.zeros((2, 1)))
  strategy.weights = (0.5, 1.0)
  made = oracle.rows(stream_of(strategy, np.eye(2), bits=30), 2) * 2.0**-30
  np.testing.assert_allclose(made, np.sqrt(5.0) * np.array([[1, 0], [0.5, 1]]), rtol=1e-8)


@pytest.mark.parametrize('name', sorted(set(every_family.NAMES) - {'tree_online'}))
def test_rows_are_the_product_of_noising_matrix_and_normals(name):
  """Where each round draws one row of Z, up to the signs of normals."""
  strategy = every_family.example(name, 9)
  if strategy.num_noise_rows(9) != 9:
    return
  made = oracle.rows(stream_of(strategy, np.eye(9)), 9) * 2.0**-34
  np.testing.assert_allclose(np.abs(made), np.abs(strategy.noising_matrix(9)), atol=1e-8)
