"""The aggregation process with an adaptive clip norm, for `CorrelatedNoiseFactory`.

Clients send updates in whole units, which are a share of the clip norm, with counts of whether
they were bounded, in units of their own. Updates and counts are summed by one inner factory and get
one row of noise. So inner sums have the same bounds in all rounds, whatever the clip norm is.
"""

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl import adaptive_clipping, extra_coordinates
from fl_dpftrl.aggregators import clipping as clipping_lib
from fl_dpftrl.aggregators import sums as sums_lib
from fl_dpftrl.families import lattice
from fl_dpftrl.noise import reference, units
from fl_dpftrl.text import messages


class AdaptiveState(NamedTuple):
  """State of an aggregator whose clip norm is adaptive. Secret, as `AggregatorState`.

  Attributes:
    clip_norm: bound on the updates of the next round (scalar, float32); not secret.
  """

  inner: Any
  noise: Any
  clip_norm: Any

  def __repr__(self) -> str:
    return messages.outline(self)


class Rule(NamedTuple):
  """How updates are bounded, released and counted."""

  clipping: adaptive_clipping.AdaptiveClipping
  unit: units.Unit
  report_goal: int
  zeroing_norm: float | None
  has_noise: bool

  def bound(self, update: Any, clip_norm: Any) -> tuple[Any, tf.Tensor]:
    """Returns a device's update and its counts (int64, [3]), in whole units."""
    bounded, *counts = clipping_lib.bound_update(
      update, unit=self.unit, clip_norm=clip_norm, zeroing_norm=self.zeroing_norm
    )
    return bounded, self.unit.norms[0] * tf.cast(tf.stack(counts), tf.int64)

  def release(self, sums: sums_lib.Sums, total: Any, row: Any, clip_norm: Any) -> Iterator[Any]:
    """Yields the noised sum of updates over report_goal, and the noised counts."""
    if not self.has_noise:
      row = tf.nest.map_structure(lambda part: 0 * part, row)
    scale = self.unit.size * tf.cast(clip_norm, tf.float64) / self.report_goal
    of_device = 1.0 / (self.unit.norms[0] << self.unit.shift)
    return map(sums.released, total, row, (scale, of_device))

  def next_clip_norm(self, clip_norm: Any, counts: Any, row: Any) -> tf.Tensor:
    """Returns the clip norm after a round, from noised counts alone."""
    rule = self.clipping
    if rule.rounds == 0:
      return clip_norm
    share = tf.cast(counts[0], tf.float64) / self.report_goal
    factor = tf.exp(rule.log_factor(share))
    limits = rule.initial / adaptive_clipping.RANGE, rule.initial * adaptive_clipping.RANGE
    moved = tf.clip_by_value(tf.cast(clip_norm, tf.float64) * factor, *limits)
    moved = tf.cast(moved, tf.float32)
    return moved if rule.rounds is None else tf.where(row < rule.rounds, moved, clip_norm)


def with_counts(summed: tff.Type) -> tff.Type:
  """Returns the type of what is summed and noised: an update and its counts."""
  counts = tff.TensorType(np.int64, [len(extra_coordinates.COUNTS)])
  return tff.StructWithPythonType([summed, counts], tuple)


def create(
  rule: Rule, value_type: tff.Type, *, stream: reference.NoiseStream, sums: sums_lib.Sums
) -> tff.templates.AggregationProcess:
  """Builds the process for updates of a type."""
  inner_process = sums.process
  init_noise = tff.tensorflow.computation(stream.init)
  bound = tff.tensorflow.computation(rule.bound, (value_type, np.float32))
  summed = inner_process.next.type_signature.parameter[1].member

  @tff.tensorflow.computation(summed, np.int32, init_noise.type_signature.result, np.float32)
  def release(total, num_updates, noise, clip_norm):
    row, advanced = stream.next(noise)
    result, counts = rule.release(sums, sums.checked(total, num_updates), row, clip_norm)
    stddev = 2.0**lattice.BITS * rule.unit.size if rule.has_noise else 0.0
    measured = collections.OrderedDict(
      clip_norm=clip_norm,
      clipped_fraction=counts[0] / rule.report_goal,
      clipped_count=counts[0],
      zeroed_count=counts[1],
      rejected_count=counts[2],
      noise_row=noise.row,
      noise_stddev=clip_norm * tf.cast(stddev * advanced.row_stddev, tf.float32),
    )
    return result, advanced, rule.next_clip_norm(clip_norm, counts, noise.row), measured

  @tff.tensorflow.computation()
  def first_clip_norm():
    return tf.constant(rule.clipping.initial, tf.float32)

  @tff.federated_computation()
  def init_fn():
    return tff.federated_zip(
      AdaptiveState(
        inner=inner_process.initialize(),
        noise=tff.federated_eval(init_noise, tff.SERVER),
        clip_norm=tff.federated_eval(first_clip_norm, tff.SERVER),
      )
    )

  @tff.federated_computation(
    init_fn.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
  )
  def next_fn(state, updates):
    clip_norm = tff.federated_broadcast(state.clip_norm)
    bounded = tff.federated_map(bound, (updates, clip_norm))
    inner = inner_process.next(state.inner, bounded)
    num_updates = tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
    result, noise, clip_norm, measured = tff.federated_map(
      release, (inner.result, num_updates, state.noise, state.clip_norm)
    )
    return tff.templates.MeasuredProcessOutput(
      state=tff.federated_zip(AdaptiveState(inner=inner.state, noise=noise, clip_norm=clip_norm)),
      result=result,
      measurements=tff.federated_zip(_with_inner(measured, inner.measurements)),
    )

  return tff.templates.AggregationProcess(init_fn, next_fn)


def _with_inner(measured: Any, inner: Any) -> collections.OrderedDict[str, Any]:
  names = [name for name, _ in tff.structure.to_elements(measured.type_signature.member)]
  return collections.OrderedDict({name: measured[name] for name in names}, inner=inner)
