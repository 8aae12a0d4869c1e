"""Marks in TensorFlow graphs that show where noise is added, and where it comes from.

A mark is an attribute of an operation. TFF keeps it in serialised graphs and in transformations,
and TensorFlow runs the operation as if it were not there. `graph_flows` reads the marks.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

# TensorFlow checks no attribute whose name begins with an underscore.
RELEASE = '_fl_dpftrl_release'
NOISE_IN, NOISE_OUT = '_fl_dpftrl_noise_in', '_fl_dpftrl_noise_out'
PUBLIC = '_fl_dpftrl_public_noise'
# The operation that adds a part of the noise; its inputs are the sum and the noise.
ADD = 'AddV2'


def add_noise(totals: Any, noise: Any, identity: str) -> Any:
  """Adds noise to sums, in operations that are marked as the release of an aggregator.

  Args:
    totals: nested structure of sums.
    noise: noise of the same structure.
    identity: identity of the aggregator.
  """
  flat = list(zip(tf.nest.flatten(totals), tf.nest.flatten(noise), strict=True))
  added = [
    _marked(tf.raw_ops.AddV2(x=total, y=part), RELEASE, f'{identity} {i}')
    for i, (total, part) in enumerate(flat)
  ]
  return tf.nest.pack_sequence_as(totals, added)


def noise_in(state: Any, secret: Sequence[bool], identity: str) -> Any:
  """Marks the tensors of a noise state that a release starts from.

  Args:
    state: nested structure of tensors.
    secret: whether a tensor tells noise, in the order of the flat structure.
    identity: identity of the aggregator.
  """
  flat = [
    _marked(tf.identity(part), NOISE_IN, f'{identity} {i} {int(hidden)}')
    for i, (part, hidden) in enumerate(zip(tf.nest.flatten(state), secret, strict=True))
  ]
  return tf.nest.pack_sequence_as(state, flat)


def noise_out(state: Any, identity: str) -> Any:
  """Marks the tensors of the noise state after a release, in the order of `noise_in`."""
  flat = [
    _marked(tf.identity(part), NOISE_OUT, f'{identity} {i}')
    for i, part in enumerate(tf.nest.flatten(state))
  ]
  return tf.nest.pack_sequence_as(state, flat)


def public(tensor: tf.Tensor, identity: str) -> tf.Tensor:
  """Marks a tensor that follows from public parameters, although operations on noise make it."""
  return _marked(tf.identity(tensor), PUBLIC, identity)


def _marked(tensor: tf.Tensor, name: str, value: str) -> tf.Tensor:
  if not tf.is_symbolic_tensor(tensor):
    return tensor  # Computed at once: there is no graph to mark.
  operation = tensor.op
  operation._set_attr(name, tf.compat.v1.AttrValue(s=value.encode()))
  return tensor
