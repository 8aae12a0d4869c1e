import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from fl_dpftrl.aggregators import clipping

pytestmark = pytest.mark.tff

# TensorFlow takes subnormal numbers for 0.
FLOATS = st.floats(width=32, allow_subnormal=False)
UPDATES = st.lists(FLOATS, min_size=2, max_size=40)
NORMS = st.floats(1e-6, 1e6)


def bound(values, **kwargs):
  """One update in two tensors, and what became of it."""
  values = np.asarray(values, np.float32)
  update = {'a': tf.constant(values[:1]), 'b': [tf.constant(values[1:])]}
  bounded = clipping.bound_update(update, **kwargs)
  result = np.concatenate([bounded.update['a'], bounded.update['b'][0]])
  return result, [int(count) for count in bounded[1:]]


def exact_norm(values):
  return math.sqrt(math.fsum(float(v) ** 2 for v in values))


@pytest.mark.slow
@given(UPDATES, NORMS, st.none() | NORMS)
def test_whatever_comes_the_result_is_bounded(values, clip_norm, zeroing_norm):
  result, counts = bound(values, clip_norm=clip_norm, zeroing_norm=zeroing_norm)
  values = np.asarray(values, np.float32)
  assert sum(counts) <= 1
  clipped, zeroed, rejected = map(bool, counts)
  assert np.isfinite(result).all()
  assert exact_norm(result) <= clip_norm * (1.0 if clipped else 1.0 + 1e-15)
  assert rejected == (not np.isfinite(values).all())
  if zeroed or rejected:
    assert not result.any()
  if zeroing_norm is not None and not rejected:
    assert zeroed == (np.max(np.abs(values)) > np.float64(zeroing_norm))
  if not any(counts):
    np.testing.assert_array_equal(result, values)


@given(st.integers(1, 2**32 - 1), st.floats(1e-3, 1e3))
def test_clipped_updates_have_the_clip_norm_and_direction(seed, clip_norm):
  values = 1e3 * np.random.default_rng(seed).normal(size=300)
  values = (values * clip_norm).astype(np.float32)
  result, counts = bound(values, clip_norm=clip_norm)
  assert counts == [1, 0, 0]
  assert clip_norm * (1 - 2e-6) < exact_norm(result) <= clip_norm
  expected = values * np.float64(clip_norm) / exact_norm(values)
  np.testing.assert_allclose(result, expected, rtol=2e-6)


@pytest.mark.parametrize('huge', [1e19, 1e30, 3e38])
def test_squares_beyond_float32_do_not_overflow(huge):
  result, counts = bound([3 * huge / 5, -4 * huge / 5], clip_norm=2.0)
  assert counts == [1, 0, 0]
  np.testing.assert_allclose(result, [1.2, -1.6], rtol=2e-6)


@given(
  st.integers(1, 2**32 - 1),
  st.integers(2, 5000),
  st.floats(1 - 1e-5, 1 + 1e-5),
  st.sampled_from([1e-25, 1e-12, 1.0, 1e12]),
)
def test_near_the_clip_norm_rounding_decides_nothing(seed, size, factor, clip_norm):
  values = np.random.default_rng(seed).normal(size=size)
  values *= factor * clip_norm / exact_norm(values)
  values = values.astype(np.float32)
  result, counts = bound(values, clip_norm=clip_norm)
  norm = exact_norm(values)
  if abs(norm / clip_norm - 1.0) > 1e-12:
    assert counts == [int(norm > clip_norm), 0, 0]
  assert exact_norm(result) <= clip_norm * (1.0 + 1e-12)
  if not counts[0]:
    np.testing.assert_array_equal(result, values)


def test_sums_of_many_squares_keep_within_the_error_that_is_assumed():
  generator = np.random.default_rng(0)
  for scale in (1e-15, 1.0, 1e15):
    for values in (
      generator.normal(size=100_003),
      np.full(100_000, 1 / 3),
      generator.pareto(0.5, size=9999).clip(max=1e4),
    ):
      values = (scale * values).astype(np.float32)
      found = float(clipping._sum_of_squares(tf.constant(values)))
      exact = math.fsum(float(v) ** 2 for v in values)
      assert abs(found / exact - 1.0) < clipping._NORM_ERROR


def test_the_norm_is_that_of_the_whole_update():
  assert bound([3.0, 4.0], clip_norm=5.0)[1] == [0, 0, 0]
  assert bound([3.0, 4.0], clip_norm=4.9)[1] == [1, 0, 0]


@pytest.mark.parametrize(
  'bad, counts',
  [
    (math.nan, [0, 0, 1]),
    (math.inf, [0, 0, 1]),
    (-math.inf, [0, 0, 1]),
    (1e30, [0, 1, 0]),
    (-100.1, [0, 1, 0]),
    (100.0, [1, 0, 0]),
    (0.5, [0, 0, 0]),
  ],
)
@pytest.mark.parametrize('position', [0, 2])
def test_each_kind_of_bad_update_is_counted_as_it_is(bad, counts, position):
  values = [0.1, 0.2, 0.3]
  values[position] = bad
  assert bound(values, clip_norm=1.0, zeroing_norm=100.0)[1] == counts


def test_empty_tensors_are_harmless():
  update = [tf.zeros([0]), tf.constant([3.0, 4.0])]
  bounded = clipping.bound_update(update, clip_norm=1.0, zeroing_norm=10.0)
  np.testing.assert_allclose(bounded.update[1], [0.6, 0.8], rtol=2e-6)


@given(UPDATES, NORMS, st.none() | NORMS)
def test_updates_in_units_of_the_clip_norm_are_bounded(values, clip_norm, zeroing_norm):
  values, clip_norm = np.asarray(values, np.float32), np.float32(clip_norm)
  update = {'a': tf.constant(values[:1]), 'b': [tf.constant(values[1:])]}
  bounded = clipping.unit_update(
    update, clip_norm=tf.constant(clip_norm), zeroing_norm=zeroing_norm
  )
  result = np.concatenate([bounded.update['a'], bounded.update['b'][0]])
  plain, counts = bound(values, clip_norm=float(clip_norm), zeroing_norm=zeroing_norm)
  assert [int(count) for count in bounded[1:]] == counts
  assert exact_norm(result) <= 1.0
  # Coordinates may underflow where the clip norm is small against them, or large.
  tiny = float(np.finfo(np.float32).tiny) / min(1.0, float(clip_norm))
  np.testing.assert_allclose(result, plain / np.float64(clip_norm), rtol=4e-6, atol=2 * tiny)
