"""The recurrence of banded strategies."""

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import banded, bands
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: banded.Banded, specs) -> dispatch.Recurrence:
  """C y = z by forward substitution, over the last num_bands − 1 rows of y."""
  kept, num_rounds = strategy.num_bands - 1, strategy.max_rounds
  diagonal, below = np.split(strategy.coefficients.astype(np.float32), [1], 1)
  norms = bands.row_norms(strategy.coefficients)
  message = f'a strategy for {num_rounds} rounds has no noise for another round'

  def init():
    return [tf.zeros([kept, *spec.shape]) for spec in specs]

  def next_fn(z, t, buffers):
    limit = tf.constant(num_rounds, t.dtype)
    with tf.control_dependencies([tf.debugging.assert_less(t, limit, message=message)]):
      t = tf.identity(t)
    weights, scale = tf.gather(below, t), tf.gather(diagonal[:, 0], t)
    row = [
      (part - tf.tensordot(weights, history, 1)) / scale for part, history in zip(z(t), buffers)
    ]
    buffers = [  # Newest first.
      tf.concat([part[None], history], 0)[:kept] for part, history in zip(row, buffers)
    ]
    return row, tf.gather(norms, t), buffers

  return dispatch.Recurrence(init, next_fn)
