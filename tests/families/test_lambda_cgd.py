"""Noise that subtracts a share of the row of Z before."""

import numpy as np
import pytest

from fl_dpftrl import error, sensitivity
from fl_dpftrl.families import banded_inverse, lambda_cgd
from fl_dpftrl.participation import schemas


@pytest.mark.parametrize('decay', [0.0, 0.4, 0.97, 1.0])
@pytest.mark.parametrize('num_rounds', [1, 2, 30])
def test_is_the_banded_inverse_of_two_bands(decay, num_rounds):
  strategy, other = lambda_cgd.LambdaCGD(decay), banded_inverse.BandedInverse([1.0, -decay])
  for name in ('strategy_matrix', 'noising_matrix', 'per_query_error'):
    one, expected = (getattr(each, name)(num_rounds) for each in (strategy, other))
    np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-15)
  schema = schemas.MinSep(num_rounds=num_rounds, min_sep=3)
  found, expected = (sensitivity.sensitivity(each, schema) for each in (strategy, other))
  assert found == (pytest.approx(expected.value), expected.kind) and found.kind == 'exact'


def test_no_share_is_independent_noise():
  strategy = lambda_cgd.LambdaCGD(0.0)
  schema = schemas.MinSep(num_rounds=10, min_sep=2)
  np.testing.assert_array_equal(strategy.strategy_matrix(10), np.eye(10))
  assert sensitivity.sensitivity(strategy, schema).value == pytest.approx(np.sqrt(5))
  assert error.error(strategy, 10).max == pytest.approx(np.sqrt(10))


def test_keeps_nothing_and_draws_two_rows():
  noise = lambda_cgd.LambdaCGD(0.3).noise()
  assert noise.num_buffers == 0
  assert [len(noise.at(t).draws) for t in (0, 1, 2, 999)] == [1, 2, 2, 2]


@pytest.mark.parametrize('decay', [-0.1, 1.01, float('nan'), None, 'x'])
def test_refuses(decay):
  with pytest.raises(ValueError, match='decay must be a number'):
    lambda_cgd.LambdaCGD(decay)
