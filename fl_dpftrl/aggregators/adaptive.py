"""The aggregation process with an adaptive clip norm, for `CorrelatedNoiseFactory`.

Clients send updates in units of the clip norm, with counts of whether they were bounded. Updates
and counts are summed by one inner factory and get one row of noise. So inner sums have the same
bounds in all rounds, whatever the clip norm is.
"""

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl import adaptive_clipping
from fl_dpftrl.aggregators import clipping as clipping_lib
from fl_dpftrl.aggregators import inner_sum
from fl_dpftrl.noise import reference
from fl_dpftrl.runtime import marks
from fl_dpftrl.text import messages


class AdaptiveState(NamedTuple):
  """State of an aggregator whose clip norm is adaptive. Secret, as `AggregatorState`.

  Attributes:
    inner: state of the inner factory's process.
    noise: state of the noise stream, with the `Parameters` of the factory.
    clip_norm: bound on the updates of the next round (scalar, float32); not secret.
  """

  inner: Any
  noise: Any
  clip_norm: Any

  def __repr__(self) -> str:
    return messages.outline(self)


class Rule(NamedTuple):
  """How updates are bounded, released and counted.

  Attributes:
    clipping: the clip norm's rule.
    update_stddev: standard deviation of Z in the updates' coordinates, per unit of clip norm.
    count_stddev: standard deviation of Z in the counts' coordinates, in updates.
    report_goal: divisor of the sums.
    zeroing_norm: L∞ norm above which an update is zeroed; None for no limit.
    release_identity: identity of the factory, which marks releases.
  """

  clipping: adaptive_clipping.AdaptiveClipping
  update_stddev: float
  count_stddev: float
  report_goal: int
  zeroing_norm: float | None
  release_identity: str

  def bound(self, update: Any, clip_norm: Any) -> tuple[Any, tf.Tensor]:
    """Returns a device's update in units of the clip norm, and its counts (float32, [3])."""
    bounded, *counts = clipping_lib.unit_update(
      update, clip_norm=clip_norm, zeroing_norm=self.zeroing_norm
    )
    return bounded, tf.cast(tf.stack(counts), tf.float32)

  def release(self, total: Any, row: Any, clip_norm: Any) -> tuple[Any, tf.Tensor]:
    """Returns the noised sum of updates over report_goal, and the noised counts."""
    update_noise, count_noise = row
    # One stream has one standard deviation; the counts' noise is a multiple of it.
    ratio = self.count_stddev / self.update_stddev if self.update_stddev else 0.0
    row = update_noise, ratio * count_noise
    updates, counts = marks.add_noise(total, row, self.release_identity)
    scale = clip_norm / self.report_goal
    return tf.nest.map_structure(lambda part: scale * part, updates), counts

  def next_clip_norm(self, clip_norm: Any, counts: Any, row: Any) -> tf.Tensor:
    """Returns the clip norm after a round, from noised counts alone.

    Args:
      clip_norm: of the round (scalar, float32).
      counts: noised counts of the round (float32, [3]).
      row: t, the round's row of noise (scalar, int64).
    """
    rule = self.clipping
    if rule.rounds == 0:
      return clip_norm
    share = tf.cast(counts[0], tf.float64) / self.report_goal
    factor = tf.exp(rule.log_factor(share))
    limits = rule.initial / adaptive_clipping.RANGE, rule.initial * adaptive_clipping.RANGE
    moved = tf.clip_by_value(tf.cast(clip_norm, tf.float64) * factor, *limits)
    moved = tf.cast(moved, tf.float32)
    return moved if rule.rounds is None else tf.where(row < rule.rounds, moved, clip_norm)


def noised_type(value_type: tff.Type) -> tff.Type:
  """Returns the type of what is summed and noised: an update and its counts."""
  counts = tff.TensorType(np.float32, [adaptive_clipping.NUM_COUNTS])
  return tff.StructWithPythonType([value_type, counts], tuple)


def create(
  rule: Rule,
  value_type: tff.Type,
  *,
  stream: reference.NoiseStream,
  inner_factory: tff.aggregators.UnweightedAggregationFactory,
) -> tff.templates.AggregationProcess:
  """Builds the process for updates of a type.

  Args:
    rule: how updates are bounded, released and counted.
    value_type: of the updates, made of float32 tensors of known shapes.
    stream: rows of noise for `noised_type(value_type)`, of standard deviation update_stddev.
    inner_factory: sums values of that type.

  Raises:
    ValueError: unless inner_factory sums.
  """
  # Counts of 1 have to come through whole, so the known values are as large.
  inner_process = inner_sum.create(inner_factory, noised_type(value_type), 1.0, largest=1.0)
  init_noise = tff.tensorflow.computation(stream.init)
  bound = tff.tensorflow.computation(rule.bound, (value_type, np.float32))

  @tff.tensorflow.computation(noised_type(value_type), init_noise.type_signature.result, np.float32)
  def release(total, noise, clip_norm):
    row, advanced = stream.next(noise)
    result, counts = rule.release(total, row, clip_norm)
    measured = collections.OrderedDict(
      clip_norm=clip_norm,
      clipped_fraction=counts[0] / rule.report_goal,
      clipped_count=counts[0],
      zeroed_count=counts[1],
      rejected_count=counts[2],
      noise_row=noise.row,
      noise_stddev=clip_norm * advanced.row_stddev,
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
    result, noise, clip_norm, measured = tff.federated_map(
      release, (inner.result, state.noise, state.clip_norm)
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
