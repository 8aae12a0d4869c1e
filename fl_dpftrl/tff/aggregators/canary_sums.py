"""Sums of canaries' updates, which enter a round at the server, beside the sum of its clients.

The state of a sum has `canaries`, int64 [coordinates] in whole units, which the next round adds.
"""

import collections
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.tff.aggregators import expressions

RELEASED = 'released'
"""The measurement of the result of a round, which is noised."""


def create(process: tff.templates.AggregationProcess) -> tff.templates.AggregationProcess:
  """Builds a process that adds the state's canaries to the sum of another, and gives back zeros."""
  values_type = process.next.type_signature.parameter[1]
  summed = values_type.member
  specs = tf.nest.flatten(tff.types.type_to_tf_tensor_specs(summed))
  sizes = [spec.shape.num_elements() for spec in specs]

  @tff.tensorflow.computation
  def zeros():
    return tf.zeros([sum(sizes)], tf.int64)

  @tff.tensorflow.computation(summed, zeros.type_signature.result)
  def add(total, canaries):
    parts = zip(tf.nest.flatten(total), tf.split(canaries, sizes), strict=True)
    added = [one + tf.reshape(part, one.shape) for one, part in parts]
    return tf.nest.pack_sequence_as(total, added)

  def state_of(inner):
    canaries = tff.federated_eval(zeros, tff.SERVER)
    return tff.federated_zip(collections.OrderedDict(inner=inner, canaries=canaries))

  @tff.federated_computation
  def init_fn():
    return state_of(process.initialize())

  @tff.federated_computation(init_fn.type_signature.result, values_type)
  def next_fn(state, values):
    output = process.next(state.inner, values)
    total = tff.federated_map(add, (output.result, state.canaries))
    return tff.templates.MeasuredProcessOutput(state_of(output.state), total, output.measurements)

  return tff.templates.AggregationProcess(init_fn, next_fn)


def check(process: Any, exact_metrics: Sequence[str]) -> None:
  """Raises ValueError unless a learning process measures the aggregator's result as it is."""
  audited = 'aggregator', RELEASED
  paths = {path[1:3] for path, _ in expressions.paths(process.next.type_signature.result)}
  if audited not in paths or any(name.startswith('.'.join(audited)) for name in exact_metrics):
    raise ValueError(
      f"canaries are audited by the process's metric {'.'.join(audited)}, which must be the"
      " aggregator's measurement of that name"
    )
