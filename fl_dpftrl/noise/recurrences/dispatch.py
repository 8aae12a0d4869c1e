"""The definition of a recurrence, and the function that returns one."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fl_dpftrl.families import base as strategies

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
def recurrence(strategy: strategies.Strategy, specs: Sequence[tf.TensorSpec]) -> Recurrence:
  """The recurrence of a strategy for models whose parts are as specs say.

  A family without one of its own is `redrawn`.

  Raises:
    ValueError: as `redrawn`, and where strategy is none.
  """
  del specs
  if not isinstance(strategy, strategies.Strategy):
    raise ValueError(f'strategy has no noise stream: {strategy!r}')
  return redrawn(strategy)


def redrawn(strategy: strategies.Strategy) -> Recurrence:
  """Row t of N·Z as a sum over rows of Z, each drawn again: no buffers.

  For any family with a last round. A stream that kept what it drew would hold a
  copy of the model for every earlier round. Drawing again costs as many draws as
  there are rows of Z from the first to the last that row t of N reads.

  Raises:
    ValueError: if the strategy has no last round, or N does not undo C.
  """
  num_rounds = strategy.max_rounds
  if num_rounds is None:
    raise ValueError(
      f'a {strategy.family} strategy has no noise stream of its own and no'
      ' max_rounds; with max_rounds, rows of Z are drawn again'
    )
  noising = strategy.noising_matrix(num_rounds)
  strategies.check_undoes(strategy, noising)
  norms, read = np.linalg.norm(noising, axis=1), noising != 0.0
  firsts = np.argmax(read, axis=1)
  lasts = noising.shape[1] - 1 - np.argmax(read[:, ::-1], axis=1)
  noising = noising.astype(np.float32)
  message = f'a strategy for {num_rounds} rounds has no noise for another round'

  def next_fn(z, t, buffers):
    limit = tf.constant(num_rounds, t.dtype)
    with tf.control_dependencies([tf.debugging.assert_less(t, limit, message=message)]):
      t = tf.identity(t)
    weights = tf.gather(noising, t)
    first, last = (tf.cast(tf.gather(rows, t), t.dtype) for rows in (firsts, lasts))
    _, row = tf.while_loop(
      lambda r, _: r < last,
      lambda r, row: (r + 1, [part + weights[r] * new for part, new in zip(row, z(r))]),
      (first, [weights[last] * part for part in z(last)]),
      parallel_iterations=1,
    )
    return row, tf.gather(norms, t), buffers

  return Recurrence(lambda: (), next_fn)
