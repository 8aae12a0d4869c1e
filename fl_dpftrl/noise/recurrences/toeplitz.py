"""The recurrence of banded Toeplitz strategies."""

import tensorflow as tf

from fl_dpftrl.families import banded_toeplitz as toeplitz
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: toeplitz.BandedToeplitz, specs) -> dispatch.Recurrence:
  """T y = z by forward substitution over the last rows of y; then D⁻¹ y."""
  kept, num_rounds = strategy.num_bands - 1, strategy.max_rounds
  # Divided beforehand: graphs multiply by the reciprocal of a constant divisor,
  # which rounds otherwise than eager division.
  own = 1.0 / strategy.coefficients[0]
  below = own * strategy.coefficients[1:]
  message = f'a strategy for {num_rounds} rounds has no noise for another round'

  def step(z, history, dtype):
    weights = tf.constant(below, dtype)
    row = tf.constant(own, dtype) * z - tf.tensordot(weights, history, 1)
    return row, tf.concat([row[None], history], 0)[:kept]  # Newest first.

  def norm(t):
    """Returns the divisor of column t."""
    norms = tf.constant(strategy.late_norms(), tf.float64)
    if num_rounds is None:
      return norms[-1]
    last = tf.constant(num_rounds - 1, t.dtype)
    with tf.control_dependencies([tf.debugging.assert_less_equal(t, last, message=message)]):
      return tf.gather(norms, tf.minimum(last - t, kept))

  def init():
    noise = [tf.zeros([kept, *spec.shape]) for spec in specs]
    # The same recurrence for a single 1 in round 0 gives the first column of T⁻¹,
    # and the sum of its squares the norm of a row.
    return noise, tf.zeros([kept], tf.float64), tf.constant(0.0, tf.float64)

  def next_fn(z, t, buffers):
    noise, impulses, squares = buffers
    scale = norm(t)
    row, noise = zip(*(step(part, history, tf.float32) for part, history in zip(z(t), noise)))
    row = [tf.cast(scale, tf.float32) * part for part in row]
    impulse = tf.cast(tf.equal(t, 0), tf.float64)
    entry, impulses = step(impulse, impulses, tf.float64)
    squares += entry**2
    return row, scale * tf.sqrt(squares), (list(noise), impulses, squares)

  return dispatch.Recurrence(init, next_fn)
