"""What a recurrence is, and the one function that gives it for any family."""

import functools
from typing import Any, Callable, NamedTuple, Sequence

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
def recurrence(
    strategy: strategies.Strategy, specs: Sequence[tf.TensorSpec]
) -> Recurrence:
  """The recurrence of a strategy for models whose parts are as specs say.

  Raises:
    ValueError: where the family has none.
  """
  del specs
  raise ValueError(f'strategy has no noise stream: {strategy!r}')
