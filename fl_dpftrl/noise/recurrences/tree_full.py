"""The recurrence of the full tree estimator."""

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import tree_full
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: tree_full.TreeFull, specs) -> dispatch.Recurrence:
  """C y = z by forward substitution, of y only the sums below nodes.

  The buffers are stacks of the sums below the nodes that tile the rounds of the
  present tree so far, the latest and lowest last.
  """
  num_rounds = strategy.stream_rounds()
  heights = num_rounds.bit_length()
  norms = np.sqrt(tree_full.node_moments(heights)[1])
  message = f'a strategy for {num_rounds} rounds has no noise for another round'

  def init():
    # The placeholder keeps the height of the stack out of its static shape.
    return [
      tf.compat.v1.placeholder_with_default(tf.zeros([0, *spec.shape]), [None, *spec.shape])
      for spec in specs
    ]

  def next_fn(z, t, buffers):
    limit = tf.constant(num_rounds, t.dtype)
    with tf.control_dependencies([tf.debugging.assert_less(t, limit, message=message)]):
      t = tf.identity(t)
    order = tf.range(heights, dtype=tf.int64)
    bits = tf.bitwise.right_shift(t, order) & 1
    planned = tf.bitwise.right_shift(limit, order) & 1
    top = tf.reduce_max(tf.where(tf.equal(bits, planned), tf.zeros_like(order), order))
    bits = tf.where(order < top, bits, tf.zeros_like(bits))
    weights, square = _row(bits, top, heights)

    row, kept = [], []
    merged = tf.cast(tf.reduce_sum(tf.math.cumprod(bits)), tf.int32)
    whole = tf.equal(tf.cast(merged, tf.int64), top)
    for part, stack in zip(z(t), buffers):
      earlier = tf.tensordot(tf.cast(weights, tf.float32), stack, 1)
      part = (part / tf.cast(tf.sqrt(square), tf.float32)) - earlier
      size = tf.shape(stack)[0]
      total = part + tf.reduce_sum(stack[size - merged :], 0)
      stack = tf.concat([stack[: size - merged], total[None]], 0)
      row.append(part)
      kept.append(stack[: tf.where(whole, 0, size - merged + 1)])
    return row, tf.gather(norms, top), kept

  return dispatch.Recurrence(init, next_fn)


def _row(bits, top, heights):
  """`tree_full.row` in a graph, divided by the diagonal once more.

  Args:
    bits: of the round within its tree, from the lowest.
    top: height of the tree.
    heights: how many bits there are.

  Returns:
    The weights at the heights of ones, from the highest; and the square of the
    diagonal entry.
  """
  cost, costs, shares = tf.constant(0.0, tf.float64), [], []
  for height in reversed(range(heights)):
    within = height < top
    cost += tf.cast(within, tf.float64)
    free = 2.0 - 2.0**-height
    left_out = tf.logical_and(within, tf.equal(bits[height], 0))
    share = tf.where(left_out, free / (free + cost), 1.0)
    costs.append(cost)
    shares.append(share)
    cost *= share
  later = tf.math.cumprod(tf.stack(shares), exclusive=True, reverse=True)
  weights = tf.boolean_mask(tf.stack(costs) * later, tf.reverse(bits, [0]) > 0)
  square = 1.0 + cost
  return weights / square, square
