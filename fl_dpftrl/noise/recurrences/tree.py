"""The recurrence of tree strategies."""

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import tree_online as tree
from fl_dpftrl.noise.recurrences import dispatch


@dispatch.recurrence.register
def _(strategy: tree.TreeOnline, specs) -> dispatch.Recurrence:
  """Honaker 2015: a node's estimate, once finished, replaces its children's.

  The buffers are stacks of the estimates that tile the rounds so far, the
  latest and lowest last: as many as t has binary ones.
  """
  heights = range(64)
  norms = row_norms(len(heights))
  own_weights = np.float32([tree.own_weight(height) for height in heights])
  last = (strategy.completed_after or 0) - 1
  if strategy.completed_after:
    last_weights = np.ones(len(heights), np.float32)
    owns = tree.own_weights(last, strategy.nodes_completed(last))
    last_weights[: len(owns)] = owns
    last_norm = tree.row_norm(last, strategy.nodes_completed(last))

  def init():
    # The placeholder keeps the height of the stack out of its static shape.
    return [
      tf.compat.v1.placeholder_with_default(tf.zeros([0, *spec.shape]), [None, *spec.shape])
      for spec in specs
    ]

  def next_fn(z, t, buffers):
    if strategy.completed_after:
      message = f'a tree for {last + 1} rounds has no noise for another round'
      with tf.control_dependencies(
        [tf.debugging.assert_less_equal(t, tf.constant(last, t.dtype), message=message)]
      ):
        t = tf.identity(t)
    bits = tf.bitwise.right_shift(t, tf.range(63, dtype=tf.int64)) & 1
    # Trailing ones of t, also the height of the highest node that t finishes.
    finished = tf.reduce_sum(tf.math.cumprod(bits))
    first = 2 * t - tf.reduce_sum(bits)
    norm = tf.gather(tf.constant(norms, tf.float64), finished)
    weights = tf.constant(own_weights)
    replaced_nodes = finished
    if strategy.completed_after:
      ends = tf.equal(t, tf.constant(last, t.dtype))
      norm = tf.where(ends, tf.constant(last_norm, tf.float64), norm)
      weights = tf.where(ends, last_weights, weights)
      finished = tf.where(ends, tf.constant(last.bit_length(), finished.dtype), finished)
      replaced_nodes = tf.where(ends, tf.constant(last.bit_count(), t.dtype), replaced_nodes)
    num_replaced = tf.cast(replaced_nodes, tf.int32)
    sizes = [tf.shape(stack)[0] for stack in buffers]

    def climb(height, taken, estimate, replaced):
      own = weights[height]
      has_sibling = bits[height - 1]
      share = tf.cast(has_sibling, tf.float32)
      siblings = [
        share * stack[size - 1 - tf.minimum(taken, size - 1)] for stack, size in zip(buffers, sizes)
      ]
      estimate = [
        own * part + (1.0 - own) * (sibling + child)
        for part, sibling, child in zip(z(first + height), siblings, estimate)
      ]
      replaced = [r + s for r, s in zip(replaced, siblings)]
      taken += tf.cast(has_sibling, tf.int32)
      return height + 1, taken, estimate, replaced

    leaf = z(first)
    nothing = [tf.zeros_like(part) for part in leaf]
    _, _, estimate, replaced = tf.while_loop(
      lambda height, *_: height <= finished,
      climb,
      (tf.constant(1, tf.int64), tf.constant(0), leaf, nothing),
    )
    buffers = [
      tf.concat([stack[: size - num_replaced], part[None]], 0)
      for stack, size, part in zip(buffers, sizes, estimate)
    ]
    row = [part - old for part, old in zip(estimate, replaced)]
    return row, norm, buffers

  return dispatch.Recurrence(init, next_fn)


def row_norms(num_heights: int) -> np.ndarray:
  """‖row t of N‖ where round t finishes nodes up to a height: [num_heights]."""
  return np.array([tree.row_norm(2**height - 1, height + 1) for height in range(num_heights)])
