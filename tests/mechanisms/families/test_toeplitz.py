"""Reciprocals, and that a limit is only used where it holds."""

import numpy as np
import pytest

from fl_dpftrl.mechanisms import toeplitz


@pytest.mark.parametrize('num_terms', [1, 7, 100, 50_000])
def test_steps_are_running_sums_of_the_reciprocal(num_terms):
  coefficients = 1.0 / np.arange(1.0, 9.0)
  head, limit = toeplitz.step_response(coefficients, num_terms)
  sums = np.cumsum(toeplitz.reciprocal(coefficients, num_terms))
  np.testing.assert_allclose(head, sums[: head.size], rtol=1e-12)
  if limit is None:
    assert head.size == num_terms
  else:
    np.testing.assert_allclose(sums[head.size :], limit, rtol=1e-10)


def zeros_at(radius, angle):
  """A polynomial with two zeros of this modulus, and coefficients that decay."""
  inner = np.array([1.0, -2.0 * np.cos(angle) / radius, radius**-2])
  return np.convolve(inner, [1.0, 0.3])


@pytest.mark.parametrize('radius', [1.1, 1.01, 1.001])
def test_the_nearer_the_zeros_the_later_the_limit(radius):
  coefficients = zeros_at(radius, 0.7)
  head, limit = toeplitz.step_response(coefficients, 10**6)
  whole = np.cumsum(toeplitz.reciprocal(coefficients, 10**6))
  assert limit == pytest.approx(1.0 / coefficients.sum())
  np.testing.assert_allclose(whole[head.size :], limit, rtol=1e-10)
  # num_bands² terms, the rule of thumb, would not be enough.
  assert np.abs(whole[16:] / limit - 1.0).max() > 1e-3
  assert head.size < 10**6


@pytest.mark.parametrize('radius', [1.0, 0.999, 0.5])
def test_where_there_is_no_limit_all_terms_are_gone_through(radius):
  coefficients = zeros_at(radius, 0.7)
  head, limit = toeplitz.step_response(coefficients, 20_000)
  assert limit is None
  assert head.size == 20_000


def test_refuses_what_would_take_for_ever():
  with pytest.raises(ValueError, match='num_rounds=1000000000 .*unit circle'):
    toeplitz.step_response(np.ones(3), 10**9)


@pytest.mark.parametrize('num_terms', [1, 2, 7, 64, 301])
def test_fourier_transforms_give_the_same(monkeypatch, num_terms):
  coefficients = 1.0 / np.arange(1.0, 31.0)
  values = np.random.default_rng(0).normal(size=num_terms)
  direct = toeplitz.divide(values, coefficients)
  inverse = toeplitz.reciprocal(coefficients, num_terms)
  monkeypatch.setattr(toeplitz, '_MOST_DIRECT_BANDS', 8)
  monkeypatch.setattr(toeplitz, '_MOST_DIRECT_PRODUCTS', 90)
  np.testing.assert_allclose(toeplitz.divide(values, coefficients), direct, atol=1e-13)
  np.testing.assert_allclose(toeplitz.reciprocal(coefficients, num_terms), inverse, atol=1e-14)
