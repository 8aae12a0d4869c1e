"""The recurrence of stamped strategies."""

import tensorflow as tf

from fl_dpftrl.families import stamped
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: stamped.Stamped, specs) -> dispatch.Recurrence:
  """The recurrence of the repeated strategy, restarted with every block."""
  inner = dispatch.recurrence(strategy.strategy, specs)
  block_rounds, block_rows = strategy.block_rounds, strategy.block_noise_rows

  def next_fn(z, t, buffers):
    block, within = t // block_rounds, t % block_rounds
    if tf.nest.flatten(buffers):
      buffers = tf.cond(tf.equal(within, 0), inner.init, lambda: buffers)
    return inner.next(lambda row: z(block * block_rows + row), within, buffers)

  return dispatch.Recurrence(inner.init, next_fn)
