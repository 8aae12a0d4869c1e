"""Bounds on one device's update, whatever the device sends, in TensorFlow."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from fl_dpftrl.claims import lattice_units
from fl_dpftrl.noise import randomness

# Squares are added up in float32 in so many terms, and their sums in float64. Those of a tensor
# of fewer coordinates than _FEW are all added in float64, which takes fewer operations.
_TERMS, _FEW = 16, 1 << 16
# A square and so many sums are each off by 2⁻²⁴ of the result at most: the norm
# by half of that, which is 2⁻²¹. Twice as much is room for the second order.
_NORM_ERROR = 2.0**-20
# A square below this is taken for 0 by TensorFlow.
_LEAST_SQUARE = 2.0**-126


class BoundedUpdate(NamedTuple):
  """An update that may enter a sum, and counts of why it was changed, at most one of which is 1.

  Attributes:
    update: whole numbers, int64, of which the sum of squares is at most the unit's most_square.
  """

  update: Any
  clipped_count: tf.Tensor
  zeroed_count: tf.Tensor
  rejected_count: tf.Tensor


def bound_update(
  update: Any, *, unit: lattice_units.Unit, clip_norm: Any, zeroing_norm: float | None = None
) -> BoundedUpdate:
  """Clips to clip_norm in L2, in whole units; zeroes updates that are not finite or too large.

  The norm is that of the whole update. Each coordinate is rounded towards zero. The sum of squares
  of the whole numbers is computed without rounding, and what exceeds the bound becomes zeros. So
  the bound holds whatever was rounded before. The norm is computed in float32 where all squares are
  finite, those that underflow do not count, and rounding cannot decide the comparison with
  clip_norm. Otherwise it is computed in float64, which holds every square of a float32. A clipped
  update may fall short of clip_norm by 2⁻¹⁹ of it, and by what its coordinates lose.
  """
  tensors = [tf.convert_to_tensor(part) for part in tf.nest.flatten(update)]
  clip_norm, zero = tf.cast(clip_norm, tf.float64), tf.constant(0)
  lost = sum(tensor.shape.num_elements() for tensor in tensors) * _LEAST_SQUARE
  norm = randomness.by_xla(_norm, tensors, lost)  # Within _NORM_ERROR in any order of its sums.
  is_exact = tf.math.is_finite(norm) & (lost <= tf.square(2.0**-12 * tf.maximum(norm, clip_norm)))
  is_near = tf.abs(norm - clip_norm) <= 2.0 * _NORM_ERROR * clip_norm
  is_small = tf.constant(True)
  if zeroing_norm is not None:
    # No coordinate is larger than the norm, so few updates need another look.
    is_small = tf.cond(
      (1.0 + 2.0 * _NORM_ERROR) * norm <= zeroing_norm,
      lambda: True,
      lambda: _largest(tensors) <= zeroing_norm,
    )
  is_clipped = norm > clip_norm
  # One product for each coordinate, whatever becomes of the update.
  scale = tf.where(
    is_clipped, (1.0 - _NORM_ERROR) * unit.bound / norm, 1.0 / (unit.step * clip_norm)
  )
  wholes, fits = randomness.by_xla(_rounded, tensors, tf.cast(scale, tf.float32), unit)
  bounded, *counts = tf.cond(
    is_exact & is_small & ~is_near & fits,
    lambda: (wholes, tf.cast(is_clipped, tf.int32), zero, zero),
    lambda: _bound_carefully(tensors, is_small, clip_norm, unit),
  )
  return BoundedUpdate(tf.nest.pack_sequence_as(update, bounded), *counts)


def _norm(tensors: Sequence[tf.Tensor], lost: float) -> tf.Tensor:
  return tf.sqrt(tf.add_n([_sum_of_squares(tensor) for tensor in tensors]) + lost)


def _sum_of_squares(tensor: tf.Tensor) -> tf.Tensor:
  """Adds float32 squares in float64; finite only if every square is finite."""
  return _added(tf.reshape(tf.square(tensor), [-1]), _TERMS)


def _rounded(
  tensors: Sequence[tf.Tensor], scale: tf.Tensor, unit: lattice_units.Unit
) -> tuple[list[tf.Tensor], tf.Tensor]:
  """Rounds products towards zero, and returns whether the whole numbers fit."""
  wholes = [tf.cast(scale * tensor, tf.int64) for tensor in tensors]  # Beyond int64, anything.
  return wholes, _fits(wholes, unit)


def _fits(wholes: Sequence[tf.Tensor], unit: lattice_units.Unit) -> tf.Tensor:
  """Returns whether Σ k² is at most the bound, for any whole numbers.

  float64 adds squares without rounding up to 2⁵³, which is above every bound that a guarantee rests
  on. It rounds larger ones, and the sum with one is above the bound too.
  """
  squares = [tf.square(tf.cast(tf.reshape(part, [-1]), tf.float64)) for part in wholes]
  return tf.add_n(list(map(_added, squares))) <= float(unit.most_square)


def _added(terms: tf.Tensor, at_once: int = 32) -> tf.Tensor:
  """Returns the sum of a vector in float64, after the first sums of so many terms."""
  size = terms.shape[0]
  if size < _FEW:
    return tf.reduce_sum(tf.cast(terms, tf.float64))
  whole = size - size % at_once
  sums = tf.reduce_sum(tf.reshape(terms[:whole], [at_once, -1]), axis=0)
  rest = tf.reduce_sum(tf.cast(terms[whole:], tf.float64))
  return _added(tf.cast(sums, tf.float64)) + rest


def _largest(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
  """The L∞ norm in float64, where rounding does not lift a limit."""
  largest = tf.reduce_max([tf.reduce_max(tf.abs(tensor)) for tensor in tensors])
  return tf.cast(largest, tf.float64)


def _bound_carefully(
  tensors: Sequence[tf.Tensor], is_small: tf.Tensor, clip_norm: tf.Tensor, unit: lattice_units.Unit
) -> tuple[Any, ...]:
  """Bounds any update, with its norm computed in float64."""
  is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])
  is_valid = is_finite & is_small
  # Selects, since 0 · NaN is NaN.
  wide = [
    tf.cast(tf.where(is_valid, tensor, tf.zeros_like(tensor)), tf.float64) for tensor in tensors
  ]
  norm = tf.sqrt(tf.add_n([tf.reduce_sum(tf.square(tensor)) for tensor in wide]))
  # The first is infinite for zeros.
  scale = tf.minimum(unit.bound / norm, 1.0 / (unit.step * clip_norm))
  wholes, fits = _rounded(wide, scale, unit)
  wholes = [tf.where(fits, part, tf.zeros_like(part)) for part in wholes]
  count = lambda condition: tf.cast(condition, tf.int32)
  return (wholes, count(norm > clip_norm), count(is_finite & ~is_small), count(~is_finite))
