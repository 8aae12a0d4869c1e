"""The recurrence of low-rank strategies."""

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import low_rank
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: low_rank.LowRank, specs) -> dispatch.Recurrence:
  """A sum of weighted rows of Z for each rank; later rows are drawn again."""
  num_rounds, num_bands = strategy.near.shape
  norms = np.linalg.norm(strategy.noising_matrix(num_rounds), axis=1)
  near, left, right = (
    values.astype(np.float32) for values in (strategy.near, strategy.left, strategy.right)
  )
  message = f'a strategy for {num_rounds} rounds has no noise for another round'

  def init():
    return [tf.zeros([strategy.rank, *spec.shape]) for spec in specs]

  def add_row(sums, weights, row):
    return [part + tf.tensordot(weights[:, None], new[None], 1) for part, new in zip(sums, row)]

  def next_fn(z, t, sums):
    limit = tf.constant(num_rounds, t.dtype)
    with tf.control_dependencies([tf.debugging.assert_less(t, limit, message=message)]):
      t = tf.identity(t)
    gone = t - num_bands  # The row that has left the bands.
    sums = tf.cond(gone >= 0, lambda: add_row(sums, tf.gather(right, gone), z(gone)), lambda: sums)
    weights = tf.gather(near, t)
    _, row = tf.while_loop(
      lambda lag, _: (lag < num_bands) & (lag <= t),
      lambda lag, row: (lag + 1, [part + weights[lag] * new for part, new in zip(row, z(t - lag))]),
      (tf.zeros_like(t), [tf.tensordot(tf.gather(left, t), part, 1) for part in sums]),
      parallel_iterations=1,
    )
    return row, tf.gather(norms, t), sums

  return dispatch.Recurrence(init, next_fn)
