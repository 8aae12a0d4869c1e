"""The step of each family's stream in TensorFlow, from Z to a row of N·Z.

A new family registers its own recurrence here, or where it is defined.
"""

import functools
from typing import Any, Callable, NamedTuple, Sequence

import numpy as np
import tensorflow as tf

from fl_dpftrl.strategies import banded
from fl_dpftrl.strategies import base as strategies
from fl_dpftrl.strategies import blt
from fl_dpftrl.strategies import identity
from fl_dpftrl.strategies import tree

# Row r of Z, a tensor for each part of the model.
NoiseSource = Callable[[tf.Tensor], list[tf.Tensor]]


class Recurrence(NamedTuple):
  """How the rows of N·Z follow from those of Z, as two pure functions.

  Attributes:
    init: () → buffers, a nested structure of tensors.
    next: (z, t, buffers) → (row, norm, buffers): z gives the rows of Z, t is
      the round (scalar, int64), row has a tensor for each part of the model,
      and norm is ‖row t of N‖ (scalar, float64), so that the standard deviation
      of every coordinate of the row is norm times that of Z.
  """

  init: Callable[[], Any]
  next: Callable[[NoiseSource, tf.Tensor, Any], tuple[list, tf.Tensor, Any]]


@functools.singledispatch
def recurrence(
    strategy: strategies.Strategy, specs: Sequence[tf.TensorSpec]
) -> Recurrence:
  """The recurrence of a strategy for models whose parts are as specs say.

  Raises:
    ValueError: where the family has none.
  """
  del specs
  raise ValueError(f'strategy has no noise stream: {strategy!r}')


@recurrence.register
def _(strategy: identity.Identity, specs) -> Recurrence:
  del strategy, specs
  one = lambda: tf.constant(1.0, tf.float64)
  return Recurrence(lambda: (), lambda z, t, buffers: (z(t), one(), buffers))


@recurrence.register
def _(strategy: banded.Banded, specs) -> Recurrence:
  """C y = z by forward substitution, over the last num_bands − 1 rows of y."""
  kept, num_rounds = strategy.num_bands - 1, strategy.max_rounds
  diagonal, below = np.split(strategy.coefficients.astype(np.float32), [1], 1)
  norms = banded_row_norms(strategy)
  message = f'a strategy for {num_rounds} rounds has no noise for another round'

  def init():
    return [tf.zeros([kept, *spec.shape]) for spec in specs]

  def next_fn(z, t, buffers):
    limit = tf.constant(num_rounds, t.dtype)
    with tf.control_dependencies(
        [tf.debugging.assert_less(t, limit, message=message)]
    ):
      t = tf.identity(t)
    weights, scale = tf.gather(below, t), tf.gather(diagonal[:, 0], t)
    row = [
        (part - tf.tensordot(weights, history, 1)) / scale
        for part, history in zip(z(t), buffers)
    ]
    buffers = [  # Newest first.
        tf.concat([part[None], history], 0)[:kept]
        for part, history in zip(row, buffers)
    ]
    return row, tf.gather(norms, t), buffers

  return Recurrence(init, next_fn)


def banded_row_norms(strategy: banded.Banded) -> np.ndarray:
  """‖row t of C⁻¹‖ for every round, shape [num_rounds], in O(n·bands²).

  Carries the covariance of the last rows of C⁻¹ Z along, for Z of variance 1.
  """
  kept = strategy.num_bands - 1
  covariance = np.zeros((kept + 1, kept + 1))  # Newest first.
  norms = np.empty(strategy.max_rounds)
  for t, (diagonal, *below) in enumerate(strategy.coefficients):
    with_last = -(np.asarray(below) @ covariance[:kept, :kept]) / diagonal
    variance = (1.0 / diagonal - np.dot(with_last, below)) / diagonal
    covariance[1:, 1:] = covariance[:kept, :kept]
    covariance[0, 1:] = covariance[1:, 0] = with_last
    covariance[0, 0] = variance
    norms[t] = np.sqrt(variance)
  return norms


@recurrence.register
def _(strategy: blt.BLT, specs) -> Recurrence:
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
    row, noise = zip(
        *(step(part, buffer, tf.float32) for part, buffer in zip(z(t), noise))
    )
    impulse = tf.cast(tf.equal(t, 0), tf.float64)
    entry, impulse_buffers = step(impulse, impulse_buffers, tf.float64)
    squares += entry**2
    return list(row), tf.sqrt(squares), (list(noise), impulse_buffers, squares)

  return Recurrence(init, next_fn)


@recurrence.register
def _(strategy: tree.TreeOnline, specs) -> Recurrence:
  """Honaker 2015: a node's estimate, once finished, replaces its children's.

  The buffers are stacks of the estimates that tile the rounds so far, the
  latest and lowest last: as many as t has binary ones.
  """
  del strategy
  heights = range(64)
  norms = tree_row_norms(len(heights))
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

  return Recurrence(init, next_fn)


def tree_row_norms(num_heights: int) -> np.ndarray:
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
