"""Bounds one device's update, whatever the device sends."""

from typing import Any, NamedTuple

import tensorflow as tf

# Shrinks by more than rounding a coordinate to float32 can add (2⁻²⁴).
_ROUNDING = 1.0 - 2.0**-23


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


def bound_update(
    update: Any, *, clip_norm: float, zeroing_norm: float | None = None
) -> BoundedUpdate:
  """Clips to clip_norm in L2; makes zeros of what is not finite or too large.

  The norm is that of the whole update, in float64, where no square of a float32
  overflows. A clipped update keeps within clip_norm after rounding to float32.

  Args:
    update: nested structure of float32 tensors.
    clip_norm: bound on the L2 norm, positive.
    zeroing_norm: L∞ norm beyond which an update is dropped; None for no limit.
  """
  tensors = tf.nest.flatten(update)
  is_finite = tf.reduce_all(
      [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors]
  )
  if zeroing_norm is None:
    is_small = tf.constant(True)
  else:
    largest = tf.reduce_max([tf.reduce_max(tf.abs(t)) for t in tensors])
    # In float64: rounding must not lift the limit.
    is_small = tf.cast(largest, tf.float64) <= zeroing_norm
  is_kept = is_finite & is_small
  # Selects, since 0 · NaN is NaN.
  wide = [
      tf.cast(tf.where(is_kept, tensor, tf.zeros_like(tensor)), tf.float64)
      for tensor in tensors
  ]
  squares = [tf.reduce_sum(tf.square(tensor)) for tensor in wide]
  norm = tf.sqrt(tf.add_n(squares))
  is_clipped = norm > clip_norm
  scale = tf.where(is_clipped, _ROUNDING * clip_norm / norm, 1.0)
  bounded = [tf.cast(scale * tensor, tf.float32) for tensor in wide]
  count = lambda condition: tf.cast(condition, tf.int32)
  return BoundedUpdate(
      update=tf.nest.pack_sequence_as(update, bounded),
      clipped_count=count(is_clipped),
      zeroed_count=count(is_finite & ~is_small),
      rejected_count=count(~is_finite),
  )
