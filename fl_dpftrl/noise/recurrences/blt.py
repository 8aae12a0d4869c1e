"""The recurrence of blt strategies."""

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import blt
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: blt.BLT, specs) -> dispatch.Recurrence:
  """McMahan, Xu, Zhang 2024 (BLT-DP-FTRL), algorithm 1."""
  scale = np.asarray(strategy.output_scale)
  # 1 − θ keeps its precision in float32 where θ near 1 does not.
  loss = 1.0 - np.asarray(strategy.buffer_decay)

  def step(z, buffers, dtype):
    row = z - tf.tensordot(tf.constant(scale, dtype), buffers, 1)
    losses = tf.reshape(tf.constant(loss, dtype), [-1] + [1] * z.shape.rank)
    return row, buffers - losses * buffers + row

  def init():
    d = strategy.num_buffers
    noise = [tf.zeros([d, *spec.shape]) for spec in specs]
    # The same recurrence for a single 1 in round 0 gives the first column of N,
    # and the sum of its squares the norm of a row.
    return noise, tf.zeros([d], tf.float64), tf.constant(0.0, tf.float64)

  def next_fn(z, t, buffers):
    noise, impulse_buffers, squares = buffers
    row, noise = zip(*(step(part, buffer, tf.float32) for part, buffer in zip(z(t), noise)))
    impulse = tf.cast(tf.equal(t, 0), tf.float64)
    entry, impulse_buffers = step(impulse, impulse_buffers, tf.float64)
    squares += entry**2
    return list(row), tf.sqrt(squares), (list(noise), impulse_buffers, squares)

  return dispatch.Recurrence(init, next_fn)
