"""Canaries in the sums of a training run, and their scores from its releases.

The update of a canary enters the sum of its round at the server, in front of the noise. It is as
long as clipping would leave it, so what is released is the same as if a device had sent it.
"""

import dataclasses
import functools
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from fl_dpftrl.aggregators import factory as factory_lib
from fl_dpftrl.aggregators import sums as sums_lib
from fl_dpftrl.noise import reference, units
from fl_dpftrl.runtime import graphs


class Canaries(Protocol):
  """The canaries of a run, such as `auditing.Canaries`."""

  def signs(self, round_index: int) -> np.ndarray:
    """Returns the sum of the signs of their updates in a round, int64 of shape [size]."""
    ...

  def scores(self, round_index: int, total: np.ndarray) -> np.ndarray:
    """Returns their scores from the noisy sum of a round, of shape [size]."""
    ...


class Channel:
  """The way of canaries into the sums, and of scores out of the releases.

  What a round does at the server must run in this process.

  All coordinates of a canary's update have one absolute value, the largest that the clip norm
  allows.

  Attributes:
    canaries: the canaries of the run.
  """

  def __init__(self, canaries: Canaries):
    self.canaries = canaries
    self._scores: dict[int, np.ndarray] = {}

  def add(self, unit: units.Unit, row: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Returns the sum of a round, in whole units, with the updates of its canaries."""
    return total + unit.coordinate(total.size) * self.canaries.signs(int(row))

  def observe(self, divisor: float, row: np.ndarray, released: np.ndarray) -> np.ndarray:
    """Scores what a round released, and returns it unchanged."""
    total = divisor * released.astype(np.float64)
    self._scores[int(row)] = self.canaries.scores(int(row), total)
    return released

  def take(self, row: int) -> np.ndarray:
    """Returns the scores of a round that was computed, once."""
    return self._scores.pop(row)


class _Callback:
  """A method of a channel as a `graphs.Callback`."""

  def __init__(self, function: Any):
    self._function = function

  def __call__(self, *arrays: np.ndarray) -> np.ndarray:
    return self._function(*arrays)

  def resources(self) -> Any:
    return self._function


@dataclasses.dataclass(frozen=True, eq=False)
class CanaryFactory(factory_lib.CorrelatedNoiseFactory):
  """A `CorrelatedNoiseFactory` whose sums hold canaries.

  Attributes:
    channel: the canaries' way in and out; needed.

  Raises:
    ValueError: as `CorrelatedNoiseFactory`, and unless the clip norm is a number: canaries are as
      long as it is, in all rounds.
  """

  _: dataclasses.KW_ONLY
  channel: Channel

  def __post_init__(self):
    super().__post_init__()
    if not isinstance(self.clip_norm, float):
      raise ValueError(f'canaries need a number as clip_norm, got {self.clip_norm!r}')

  @classmethod
  def of(cls, factory: factory_lib.CorrelatedNoiseFactory, channel: Channel) -> 'CanaryFactory':
    """Returns the same factory with canaries."""
    fields = (field.name for field in dataclasses.fields(factory) if field.init)
    return cls(**{name: getattr(factory, name) for name in fields}, channel=channel)

  def release(
    self, sums: sums_lib.Sums, stream: reference.NoiseStream, total: Any, noise: Any
  ) -> tuple[Any, Any]:
    """Maps (sum, noise state) to (result, next noise state), in TensorFlow."""
    row = tf.convert_to_tensor(noise.row)
    total = _through(functools.partial(self.channel.add, self.unit), row, total)
    result, advanced = super().release(sums, stream, total, noise)
    observe = functools.partial(self.channel.observe, float(self.report_goal))
    return _through(observe, row, result), advanced


def _through(function: Any, row: tf.Tensor, values: Any) -> Any:
  """Passes all tensors of a structure through a function of one flat array."""
  parts = [tf.convert_to_tensor(part) for part in tf.nest.flatten(values)]
  sizes = [part.shape.num_elements() for part in parts]
  flat = tf.concat([tf.reshape(part, [-1]) for part in parts], 0)
  (flat,) = graphs.python_call(_Callback(function), [row, flat], [flat.dtype])
  pieces = tf.split(tf.ensure_shape(flat, [sum(sizes)]), sizes)
  shaped = [tf.reshape(piece, part.shape) for piece, part in zip(pieces, parts)]
  return tf.nest.pack_sequence_as(values, shaped)
