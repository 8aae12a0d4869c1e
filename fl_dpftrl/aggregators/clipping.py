"""Bounds on one device's update, whatever the device sends."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# Squares are added up in float32 in so many terms, and their sums in float64.
_TERMS = 16
# A square and so many sums are each off by 2⁻²⁴ of the result at most: the norm
# by half of that, which is 2⁻²¹. Twice as much is room for the second order.
_NORM_ERROR = 2.0**-20
# Shrinks by more than that, and than rounding a coordinate to float32 can add.
_ROUNDING = 1.0 - 2.0**-23
_QUICK_ROUNDING = (1.0 - _NORM_ERROR) * _ROUNDING


class BoundedUpdate(NamedTuple):
  """An update that may enter a sum; at most one of the counts is 1.

  Attributes:
    update: all finite, of L2 norm at most clip_norm.
    clipped_count: 1 where the update was scaled down (scalar, int32).
    zeroed_count: 1 where it was finite but too large, and became zeros.
    rejected_count: 1 where it held a NaN or an infinity, and became zeros.
  """

  update: Any
  clipped_count: tf.Tensor
  zeroed_count: tf.Tensor
  rejected_count: tf.Tensor


class _Scaling(NamedTuple):
  """Factors of an update: kept where it is not clipped, target / norm where it is."""

  kept: Any
  target: Any


def bound_update(
  update: Any, *, clip_norm: float, zeroing_norm: float | None = None
) -> BoundedUpdate:
  """Clips to clip_norm in L2; zeroes updates that are not finite or too large.

  The norm is that of the whole update. It is computed in one pass if all squares are finite and
  rounding cannot decide the comparison with clip_norm. Otherwise it is computed in float64,
  where no square of a float32 overflows. A clipped update keeps within clip_norm after rounding
  to float32; it may fall short of it by 2⁻¹⁹.

  Args:
    update: nested structure of float32 tensors, of known shapes.
    clip_norm: bound on the L2 norm, positive.
    zeroing_norm: L∞ norm beyond which an update is dropped; None for no limit.
  """
  return _bound(update, clip_norm, zeroing_norm, _Scaling(1.0, clip_norm))


def unit_update(
  update: Any, *, clip_norm: tf.Tensor, zeroing_norm: float | None = None
) -> BoundedUpdate:
  """Bounds an update as `bound_update` does, and divides it by clip_norm.

  The L2 norm of the result is at most 1, after rounding; it may fall short by 2⁻¹⁹.

  Args:
    update: nested structure of float32 tensors, of known shapes.
    clip_norm: bound on the L2 norm of the update, from 1e-18 to 1e18 (scalar, float32).
    zeroing_norm: L∞ norm beyond which an update is dropped; None for no limit.
  """
  clip_norm = tf.cast(clip_norm, tf.float64)
  return _bound(update, clip_norm, zeroing_norm, _Scaling(_ROUNDING / clip_norm, 1.0))


def _bound(
  update: Any, clip_norm: Any, zeroing_norm: float | None, scaling: _Scaling
) -> BoundedUpdate:
  tensors = [tf.convert_to_tensor(part) for part in tf.nest.flatten(update)]
  if zeroing_norm is None:
    is_small = tf.constant(True)
  else:
    largest = tf.reduce_max([tf.reduce_max(tf.abs(t)) for t in tensors])
    # In float64: rounding must not lift the limit.
    is_small = tf.cast(largest, tf.float64) <= zeroing_norm
  norm = tf.sqrt(tf.add_n([_sum_of_squares(tensor) for tensor in tensors]))
  is_near = tf.abs(norm - clip_norm) <= 2.0 * _NORM_ERROR * clip_norm
  size = sum(tensor.shape.num_elements() for tensor in tensors)
  least = size * float(np.finfo(np.float32).tiny) / _NORM_ERROR
  # Below that, squares that underflow would count.
  is_clear = tf.math.is_finite(norm) & is_small & ~is_near & (clip_norm**2 >= least)
  bounded, *counts = tf.cond(
    is_clear,
    lambda: _bound_quickly(tensors, norm, clip_norm, scaling),
    lambda: _bound_carefully(tensors, is_small, clip_norm, scaling),
  )
  return BoundedUpdate(tf.nest.pack_sequence_as(update, bounded), *counts)


def _sum_of_squares(tensor: tf.Tensor) -> tf.Tensor:
  """Adds float32 squares in float64; finite only if every square is finite."""
  squares = tf.reshape(tf.square(tensor), [-1])
  size = tensor.shape.num_elements()
  whole = size - size % _TERMS
  sums = tf.reduce_sum(tf.reshape(squares[:whole], [-1, _TERMS]), axis=1)
  rest = tf.reduce_sum(tf.cast(squares[whole:], tf.float64))
  return tf.reduce_sum(tf.cast(sums, tf.float64)) + rest


def _bound_quickly(
  tensors: Sequence[tf.Tensor], norm: tf.Tensor, clip_norm: Any, scaling: _Scaling
) -> tuple[Any, ...]:
  """Clips a finite update whose norm is clearly above or below clip_norm."""
  is_clipped = norm > clip_norm
  scale = tf.cast(
    tf.where(is_clipped, _QUICK_ROUNDING * scaling.target / norm, scaling.kept), tf.float32
  )
  zero = tf.constant(0)
  scaled = [scale * tensor for tensor in tensors]
  return scaled, tf.cast(is_clipped, tf.int32), zero, zero


def _bound_carefully(
  tensors: Sequence[tf.Tensor], is_small: tf.Tensor, clip_norm: Any, scaling: _Scaling
) -> tuple[Any, ...]:
  """Bounds any update, with its norm computed in float64."""
  is_finite = tf.reduce_all([tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors])
  is_kept = is_finite & is_small
  # Selects, since 0 · NaN is NaN.
  wide = [
    tf.cast(tf.where(is_kept, tensor, tf.zeros_like(tensor)), tf.float64) for tensor in tensors
  ]
  squares = [tf.reduce_sum(tf.square(tensor)) for tensor in wide]
  norm = tf.sqrt(tf.add_n(squares))
  is_clipped = norm > clip_norm
  scale = tf.where(is_clipped, _ROUNDING * scaling.target / norm, scaling.kept)
  bounded = [tf.cast(scale * tensor, tf.float32) for tensor in wide]
  count = lambda condition: tf.cast(condition, tf.int32)
  return (bounded, count(is_clipped), count(is_finite & ~is_small), count(~is_finite))
