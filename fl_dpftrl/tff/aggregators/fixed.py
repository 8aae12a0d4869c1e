"""The aggregation process with a fixed clip norm, for `CorrelatedNoiseFactory`."""

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.noise import stream as streams
from fl_dpftrl.support.text import messages
from fl_dpftrl.tff.aggregators import canary_sums, secure_sums, update_bounds


class AggregatorState(NamedTuple):
  """State of the aggregator. Secret: it determines all noise to come."""

  inner: Any
  noise: Any

  def __repr__(self) -> str:
    return messages.outline(self)


def create(
  value_type: tff.Type,
  *,
  bound: Callable[[Any], update_bounds.BoundedUpdate],
  release: Callable[[Any, Any], tuple[Any, Any]],
  stream: streams.NoiseStream,
  sums: secure_sums.Sums,
  stddev: float,
) -> tff.templates.AggregationProcess:
  """Builds the process for updates of a type."""
  inner_process = sums.process
  init_noise = tff.tensorflow.computation(stream.init)
  summed = inner_process.next.type_signature.parameter[1].member

  @tff.tensorflow.computation(value_type)
  def bound_update(update):
    bounded, *counts = bound(update)
    return bounded, [*counts, tf.constant(1)]

  @tff.tensorflow.computation(summed, np.int32, init_noise.type_signature.result)
  def add_noise(total, num_updates, noise):
    result, advanced = release(sums.checked(total, num_updates), noise)
    return result, advanced, noise.row, tf.cast(stddev * advanced.row_stddev, tf.float32)

  @tff.federated_computation()
  def init_fn():
    noise = tff.federated_eval(init_noise, tff.SERVER)
    return tff.federated_zip(AggregatorState(inner=inner_process.initialize(), noise=noise))

  @tff.federated_computation(
    init_fn.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
  )
  def next_fn(state, updates):
    bounded, counts = tff.federated_map(bound_update, updates)
    inner = inner_process.next(state.inner, bounded)
    clipped, zeroed, rejected, num_updates = tff.federated_sum(counts)
    result, noise, row, row_stddev = tff.federated_map(
      add_noise, (inner.result, num_updates, state.noise)
    )
    measurements = collections.OrderedDict(
      clipped_count=clipped,
      zeroed_count=zeroed,
      rejected_count=rejected,
      noise_row=row,
      noise_stddev=row_stddev,
      inner=inner.measurements,
    )
    if sums.has_canaries:
      measurements[canary_sums.RELEASED] = result
    return tff.templates.MeasuredProcessOutput(
      state=tff.federated_zip(AggregatorState(inner=inner.state, noise=noise)),
      result=result,
      measurements=tff.federated_zip(measurements),
    )

  return tff.templates.AggregationProcess(init_fn, next_fn)
