"""Sums of canaries' updates, which enter a round of TFF at the server, with its row of noise."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from fl_dpftrl.noise import stream as streams
from fl_dpftrl.tff.aggregators import expressions

RELEASED = 'released'
"""The measurement of the result of a round, which is noised."""


def beside(stream: streams.NoiseStream, template: Any, shift: int) -> streams.NoiseStream:
  """Returns a stream whose next row has the canaries of its state added, which are zeros then.

  Args:
    stream: rows of noise, in units of the lattice.
    template: specs of a row, nested.
    shift: an update's unit is 2^shift units of the lattice.
  """
  sizes = [spec.shape.num_elements() for spec in tf.nest.flatten(template)]

  def init():
    return stream.init()._replace(canaries=tf.zeros([sum(sizes)], tf.int64))

  def next_fn(state):
    row, advanced = stream.next(state)
    sums = tf.split(state.canaries * (1 << shift), sizes)
    parts = zip(tf.nest.flatten(row), sums, strict=True)
    flat = [part + tf.reshape(canaries, part.shape) for part, canaries in parts]
    canaries = tf.zeros([sum(sizes)], tf.int64)
    return tf.nest.pack_sequence_as(row, flat), advanced._replace(canaries=canaries)

  return streams.NoiseStream(init, next_fn, stream.skip)


def check(process: Any, exact_metrics: Sequence[str]) -> None:
  """Raises ValueError unless a learning process measures the aggregator's result as it is."""
  audited = 'aggregator', RELEASED
  paths = {path[1:3] for path, _ in expressions.paths(process.next.type_signature.result)}
  if audited not in paths or any(name.startswith('.'.join(audited)) for name in exact_metrics):
    raise ValueError(
      f"canaries are audited by the process's metric {'.'.join(audited)}, which must be the"
      " aggregator's measurement of that name"
    )
