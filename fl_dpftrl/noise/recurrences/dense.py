"""The recurrence of dense strategies."""

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import dense
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: dense.Dense, specs) -> dispatch.Recurrence:
  """Row t of N·Z as a sum over rows of Z, each drawn again: no buffers.

  A stream that kept what it drew would hold a copy of the model for every
  earlier round. Drawing again costs t + 1 draws in round t instead.
  """
  del specs
  num_rounds = strategy.max_rounds
  noising = strategy.noising_matrix(num_rounds)
  norms = np.linalg.norm(noising, axis=1)
  noising = noising.astype(np.float32)
  message = f'a strategy for {num_rounds} rounds has no noise for another round'

  def next_fn(z, t, buffers):
    limit = tf.constant(num_rounds, t.dtype)
    with tf.control_dependencies(
        [tf.debugging.assert_less(t, limit, message=message)]
    ):
      t = tf.identity(t)
    weights = tf.gather(noising, t)
    _, row = tf.while_loop(
        lambda r, _: r < t,
        lambda r, row: (
            r + 1, [part + weights[r] * new for part, new in zip(row, z(r))]
        ),
        (tf.zeros_like(t), [weights[t] * part for part in z(t)]),
        parallel_iterations=1,
    )
    return row, tf.gather(norms, t), buffers

  return dispatch.Recurrence(lambda: (), next_fn)
