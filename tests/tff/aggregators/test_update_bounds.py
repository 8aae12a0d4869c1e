"""One device's update in TensorFlow: whole numbers within the bound, whatever the device sends."""

import math

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from fl_dpftrl.claims import adaptive_clipping, lattice_units
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.noise import randomness
from fl_dpftrl.tff.aggregators import update_bounds

pytestmark = pytest.mark.tff

# TensorFlow takes subnormal numbers for 0.
FLOATS = st.floats(width=32, allow_subnormal=False)
UPDATES = st.lists(FLOATS, min_size=2, max_size=40)
NORMS = st.floats(1e-6, 1e6)
COUNTS = adaptive_clipping.AdaptiveClipping(1.0, clipped_count_stddev=4.0).group(0.3, 1)
FINE = lattice_units.Unit.without_noise(lattice_units.MOST_BITS)
# Without noise and with it, with counts, and of few units, just below a whole number of them.
UNITS = [
  FINE,
  lattice_units.Unit.of(7.379),
  lattice_units.Unit.of(0.3, [COUNTS]),
  lattice_units.Unit.of(2.0**lattice.BITS / math.sqrt(25.0 - 1e-6)),
]


class Long(lattice_units.Unit):
  """A unit whose bound is a little too long, as if a quotient had been rounded up."""

  @property
  def bound(self):
    return math.sqrt(self.most_square) * (1.0 + 1e-4)


class Short(lattice_units.Unit):
  """A unit that is taken for a little less than it is."""

  @property
  def step(self):
    return super().step * (1.0 - 1e-4)


def bound(values, *, unit=FINE, **kwargs):
  """One update in two tensors, in units of the lattice, and what became of it."""
  values = np.asarray(values, np.float32)
  update = {'a': tf.constant(values[:1]), 'b': [tf.constant(values[1:])]}
  bounded = update_bounds.bound_update(update, unit=unit, **kwargs)
  result = np.concatenate([bounded.update['a'], bounded.update['b'][0]])
  assert result.dtype == np.int64
  return result, [int(count) for count in bounded[1:]]


def square(result):
  return sum(int(k) ** 2 for k in result)


def exact_norm(values):
  return math.sqrt(math.fsum(float(v) ** 2 for v in values))


def assert_is(result, values, unit, clip_norm):
  """Within the bound; each coordinate towards zero, and less than a unit from its share."""
  assert square(result) <= unit.most_square
  norm, values = exact_norm(values), np.asarray(values, np.float32).astype(np.float64)
  shares = values * min(1.0, clip_norm / norm if norm else 1.0) / (unit.step * clip_norm)
  np.testing.assert_array_less(np.abs(result) - 1e-9, np.abs(shares) * (1.0 + 2.0**-21) + 1e-9)
  np.testing.assert_array_less(np.abs(shares) * (1.0 - 2.0**-18) - 1.0, np.abs(result) + 1e-9)
  assert (result * np.sign(values) >= 0).all()


@pytest.mark.slow
@given(UPDATES, NORMS, st.none() | NORMS, st.sampled_from(UNITS), st.booleans())
def test_whatever_comes_the_result_is_bounded(values, clip_norm, zeroing_norm, unit, as_tensor):
  clip_norm = float(np.float32(clip_norm))
  given_norm = tf.constant(clip_norm) if as_tensor else clip_norm
  result, counts = bound(values, unit=unit, clip_norm=given_norm, zeroing_norm=zeroing_norm)
  values = np.asarray(values, np.float32)
  assert sum(counts) <= 1
  clipped, zeroed, rejected = map(bool, counts)
  assert rejected == (not np.isfinite(values).all())
  if zeroing_norm is not None and not rejected:
    assert zeroed == (np.max(np.abs(values)) > np.float64(zeroing_norm))
  if zeroed or rejected:
    assert not result.any()
    return
  assert_is(result, values, unit, clip_norm)
  if abs(exact_norm(values) / clip_norm - 1.0) > 1e-12:
    assert clipped == (exact_norm(values) > clip_norm)


@given(
  st.integers(1, 2**32 - 1),
  st.integers(2, 5000) | st.just(update_bounds._FEW + 10),
  st.floats(1 - 1e-5, 1 + 1e-5) | st.sampled_from([0.1, 1e3]),
  st.sampled_from([1e-30, 1e-25, 1e-12, 1.0, 1e12, 1e30]),
  st.sampled_from(UNITS),
)
def test_near_the_clip_norm_rounding_decides_nothing(seed, size, factor, clip_norm, unit):
  values = np.random.default_rng(seed).normal(size=size)
  values *= factor * clip_norm / exact_norm(values)
  values = values.astype(np.float32)
  result, counts = bound(values, unit=unit, clip_norm=clip_norm)
  norm = exact_norm(values)
  if abs(norm / clip_norm - 1.0) > 1e-12:
    assert counts == [int(norm > clip_norm), 0, 0]
  assert_is(result, values, unit, clip_norm)


@pytest.mark.parametrize('kind, length', [(Long, 2.0), (Short, 0.99999)])
def test_what_a_float_lets_through_the_whole_numbers_do_not(kind, length, monkeypatch):
  """Norms and quotients are in floating point; the bound does not rest on them."""
  unit = kind(FINE.size, FINE.shift, FINE.most_square)
  values = length * np.array([0.6, 0.64, 0.48])
  assert square(bound(values, unit=unit, clip_norm=1.0)[0]) <= unit.most_square
  monkeypatch.setattr(update_bounds, '_fits', lambda made, unit: tf.constant(True))
  assert square(bound(values, unit=unit, clip_norm=1.0)[0]) > unit.most_square


@pytest.mark.parametrize('huge', [1e19, 1e30, 3e38])
def test_squares_beyond_float32_do_not_overflow(huge):
  values = [3 * huge / 5, -4 * huge / 5]
  result, counts = bound(values, clip_norm=2.0)
  assert counts == [1, 0, 0]
  assert_is(result, values, FINE, 2.0)


def test_squares_that_vanish_in_float32_are_counted():
  """Each square is 1e-40, which TensorFlow takes for 0; the norm is 3e-18."""
  values = np.full(100_000, 1e-20)
  for clip_norm, counts in ((1e-18, [1, 0, 0]), (1e-17, [0, 0, 0])):
    result, found = bound(values, clip_norm=clip_norm)
    assert found == counts
    assert_is(result, values, FINE, clip_norm)
  assert bound(values, clip_norm=1.0, zeroing_norm=1e-21)[1] == [0, 1, 0]


# By TensorFlow's loops, and compiled; each is traced once for a size.
SUMS_OF_SQUARES = [
  tf.function(update_bounds._sum_of_squares, jit_compile=compiled) for compiled in (False, True)
]


@pytest.mark.parametrize(
  'size', [update_bounds._FEW - 1, update_bounds._FEW, update_bounds._FEW + 7, 100_003]
)
@pytest.mark.parametrize('scale', [1e-15, 1.0, 1e12])
def test_sums_of_many_squares_keep_within_the_error_that_is_assumed(size, scale):
  """Of equal coordinates, of normal ones, and of a few large ones among many small ones."""
  generator = np.random.default_rng(size)
  for values in (
    np.full(size, 1 / 3),
    generator.normal(size=size),
    generator.standard_cauchy(size),
  ):
    values = (scale * values).astype(np.float32)
    exact = math.fsum(np.square(values, dtype=np.float64))
    for add in SUMS_OF_SQUARES:
      assert abs(float(add(tf.constant(values))) / exact - 1.0) < update_bounds._NORM_ERROR


@pytest.mark.parametrize('value', [1e-3, 0.0, 5.0, 1e3, 1e30, 3e38, math.nan, math.inf])
def test_large_updates_which_xla_compiles_are_bounded_as_small_ones(value, monkeypatch):
  values = np.full(update_bounds._FEW, 1e-4, np.float32)
  values[7] = value
  options = dict(clip_norm=1.0, zeroing_norm=100.0)
  result, counts = bound(values, **options)
  monkeypatch.setattr(update_bounds, '_FEW', values.size + 1)
  monkeypatch.setattr(randomness, '_LARGE', values.size + 2)
  expected, expected_counts = bound(values, **options)
  assert counts == expected_counts == [value == 5.0, 100.0 < value < math.inf, not value < math.inf]
  assert np.abs(result - expected).max() <= 2.0**-19 * np.abs(expected).max() + 1


def test_squares_of_whole_numbers_are_added_without_rounding():
  parts = [tf.constant([2**24 - 1, -2, 2**12], tf.int64), tf.constant([[3], [0]], tf.int64)]
  exact = sum(square(np.ravel(part)) for part in parts)
  for off in (-1, 0, 1):
    assert bool(update_bounds._fits(parts, lattice_units.Unit(1.0, 0, exact + off))) == (off >= 0)
  for beyond in ([2**62], [-(2**63)], [2**26 + 1] * 9, [2**24]):
    assert not update_bounds._fits([tf.constant(beyond, tf.int64)], FINE)


@pytest.mark.parametrize('bad, counts', [
  (math.nan, [0, 0, 1]), (math.inf, [0, 0, 1]), (-math.inf, [0, 0, 1]), (1e30, [0, 1, 0]),
  (-100.1, [0, 1, 0]), (100.0, [1, 0, 0]), (0.5, [0, 0, 0]),
])  # fmt: skip
@pytest.mark.parametrize('position', [0, 2])
def test_each_kind_of_bad_update_is_counted_as_it_is(bad, counts, position):
  values = [0.1, 0.2, 0.3]
  values[position] = bad
  assert bound(values, clip_norm=1.0, zeroing_norm=100.0)[1] == counts


def test_empty_tensors_are_harmless():
  update = [tf.zeros([0]), tf.constant([3.0, 4.0])]
  bounded = update_bounds.bound_update(update, unit=FINE, clip_norm=1.0, zeroing_norm=10.0)
  np.testing.assert_allclose(bounded.update[1], [0.6 * 2**24, 0.8 * 2**24], rtol=2e-6)
