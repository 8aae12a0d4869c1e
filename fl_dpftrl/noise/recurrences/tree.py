"""The recurrence of tree strategies."""

import numpy as np
import tensorflow as tf

from fl_dpftrl.noise.recurrences import dispatch
from fl_dpftrl.strategies import tree


@dispatch.recurrence.register
def _(strategy: tree.TreeOnline, specs) -> dispatch.Recurrence:
  """Honaker 2015: a node's estimate, once finished, replaces its children's.

  The buffers are stacks of the estimates that tile the rounds so far, the
  latest and lowest last: as many as t has binary ones.
  """
  del strategy
  heights = range(64)
  norms = row_norms(len(heights))
  own_weights = np.float32([tree.own_weight(height) for height in heights])

  def init():
    # The placeholder keeps the height of the stack out of its static shape.
    return [
        tf.compat.v1.placeholder_with_default(
            tf.zeros([0, *spec.shape]), [None, *spec.shape]
        )
        for spec in specs
    ]

  def next_fn(z, t, buffers):
    bits = tf.bitwise.right_shift(t, tf.range(63, dtype=tf.int64)) & 1
    # Trailing ones of t, also the height of the highest node that t finishes.
    finished = tf.reduce_sum(tf.math.cumprod(bits))
    first = 2 * t - tf.reduce_sum(bits)
    sizes = [tf.shape(stack)[0] for stack in buffers]

    def climb(height, estimate, replaced):
      own = tf.gather(own_weights, height)
      siblings = [
          stack[size - tf.cast(height, tf.int32)]
          for stack, size in zip(buffers, sizes)
      ]
      estimate = [
          own * part + (1.0 - own) * (sibling + child)
          for part, sibling, child in zip(z(first + height), siblings, estimate)
      ]
      return height + 1, estimate, [r + s for r, s in zip(replaced, siblings)]

    leaf = z(first)
    nothing = [tf.zeros_like(part) for part in leaf]
    _, estimate, replaced = tf.while_loop(
        lambda height, *_: height <= finished,
        climb,
        (tf.constant(1, tf.int64), leaf, nothing),
    )
    num_replaced = tf.cast(finished, tf.int32)
    buffers = [
        tf.concat([stack[: size - num_replaced], part[None]], 0)
        for stack, size, part in zip(buffers, sizes, estimate)
    ]
    row = [part - old for part, old in zip(estimate, replaced)]
    return row, tf.gather(norms, finished), buffers

  return dispatch.Recurrence(init, next_fn)


def row_norms(num_heights: int) -> np.ndarray:
  """‖row t of N‖ where round t finishes nodes up to a height: [num_heights].

  A row is the estimate of the highest finished node, less those of the siblings
  that it replaces, whose variances are their own weights.
  """
  norms = np.ones(num_heights)
  for height in range(1, num_heights):
    # Shares of each lower estimate that flow into the highest one.
    owns = np.array([tree.own_weight(h) for h in range(height, -1, -1)])
    shares, weights = np.cumprod(1.0 - owns[:-1]), owns[1:]
    norms[height] = np.sqrt(
        owns[0] ** 2
        + np.sum((shares * weights) ** 2)
        + np.sum((1.0 - shares) ** 2 * weights)
    )
  return norms
