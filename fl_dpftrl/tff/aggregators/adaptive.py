"""The aggregation process with coordinates beside the update, for `CorrelatedNoiseFactory`.

Clients send updates in whole units, which are a share of the clip norm, and extra coordinates in
units of their own: counts of whether they were bounded, for an adaptive clip norm, and metrics. All
are summed by one inner factory and get one row of noise. So inner sums have the same bounds in all
rounds, whatever the clip norm is.
"""

import collections
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.claims import adaptive_clipping, extra_coordinates, lattice_units
from fl_dpftrl.mechanisms import lattice
from fl_dpftrl.noise import stream as streams
from fl_dpftrl.support.text import messages
from fl_dpftrl.tff.aggregators import canary_sums, secure_sums, update_bounds


class AdaptiveState(NamedTuple):
  """State of an aggregator with extra coordinates. Secret, as `AggregatorState`.

  Attributes:
    clip_norm: bound on the updates of the next round (scalar, float32); not secret.
  """

  inner: Any
  noise: Any
  clip_norm: Any

  def __repr__(self) -> str:
    return messages.outline(self)


class Rule(NamedTuple):
  """How updates are bounded and released, and what is released beside them.

  Attributes:
    clip_norm: of all rounds, or its rule.
    unit: units of updates and of the extra coordinates.
    groups: the extra coordinates: counts if the clip norm is adaptive, then metrics if there are.
  """

  clip_norm: float | adaptive_clipping.AdaptiveClipping
  unit: lattice_units.Unit
  groups: tuple[extra_coordinates.Group, ...]
  report_goal: int
  zeroing_norm: float | None
  has_noise: bool

  @property
  def clipping(self) -> adaptive_clipping.AdaptiveClipping | None:
    """The rule of an adaptive clip norm."""
    return None if isinstance(self.clip_norm, float) else self.clip_norm

  @property
  def metrics(self) -> extra_coordinates.Group | None:
    """The coordinates of the metrics."""
    return None if not self.groups or self.groups[-1].is_exclusive else self.groups[-1]

  def bound(self, value: Any, clip_norm: Any) -> tuple[Any, tf.Tensor]:
    """Returns a device's update and its extra coordinates (int64), in whole units.

    Args:
      value: an update; with metrics, a pair of it and their values (float32, by name in order).
      clip_norm: of the round.
    """
    update, values = (value, None) if self.metrics is None else value
    bounded, *counts = update_bounds.bound_update(
      update, unit=self.unit, clip_norm=clip_norm, zeroing_norm=self.zeroing_norm
    )
    extra = []
    if self.clipping is not None:
      extra.append(self.unit.norms[0] * tf.cast(tf.stack(counts), tf.int64))
    if self.metrics is not None:
      extra.append(_whole(values, self.metrics, self.unit.norms[-1]))
    return bounded, tf.concat(extra, axis=0)

  def release(self, sums: secure_sums.Sums, total: Any, row: Any, clip_norm: Any) -> Iterator[Any]:
    """Yields the noised sum of updates over report_goal, and what is released beside it."""
    if not self.has_noise:
      row = tf.nest.map_structure(lambda part: 0 * part, row)
    scale = self.unit.size * tf.cast(clip_norm, tf.float64) / self.report_goal
    scales = extra_coordinates.scales(self.groups, self.unit, self.report_goal)
    return map(sums.released, total, row, (scale, scales))

  def next_clip_norm(self, clip_norm: Any, counts: Any, row: Any) -> tf.Tensor:
    """Returns the clip norm after a round, from noised counts only."""
    rule = self.clipping
    if rule is None or rule.rounds == 0:
      return clip_norm
    share = tf.cast(counts[0], tf.float64) / self.report_goal
    factor = tf.exp(rule.log_factor(share))
    moved = tf.clip_by_value(tf.cast(clip_norm, tf.float64) * factor, *rule.limits)
    moved = tf.cast(moved, tf.float32)
    return moved if rule.rounds is None else tf.where(row < rule.rounds, moved, clip_norm)


def _whole(values: tf.Tensor, group: extra_coordinates.Group, norm: int) -> tf.Tensor:
  """Returns metrics as whole numbers: `claims.extra_coordinates.Group.integers` in TensorFlow."""
  largest = group.largest(norm)
  share = tf.cast(values, tf.float64) / tf.constant(group.bounds, tf.float64)
  share = tf.where(tf.math.is_nan(share), tf.zeros_like(share), tf.clip_by_value(share, 0.0, 1.0))
  return tf.minimum(tf.cast(share * largest, tf.int64), largest)


def create(
  rule: Rule, value_type: tff.Type, *, stream: streams.NoiseStream, sums: secure_sums.Sums
) -> tff.templates.AggregationProcess:
  """Builds the process for updates of a type."""
  inner_process = sums.process
  init_noise = tff.tensorflow.computation(stream.init)
  bound = tff.tensorflow.computation(rule.bound, (value_type, np.float32))
  summed = inner_process.next.type_signature.parameter[1].member

  @tff.tensorflow.computation(summed, np.int32, init_noise.type_signature.result, np.float32)
  def release(total, num_updates, noise, clip_norm):
    row, advanced = stream.next(noise)
    result, extra = rule.release(sums, sums.checked(total, num_updates), row, clip_norm)
    stddev = 2.0**lattice.BITS * rule.unit.size if rule.has_noise else 0.0
    names = [name for group in rule.groups for name in group.names]
    released = dict(zip(names, tf.unstack(extra), strict=True))
    measured = collections.OrderedDict(clip_norm=clip_norm)
    if rule.clipping is not None:
      measured['clipped_fraction'] = released['clipped_count'] / rule.report_goal
      measured |= {name: released.pop(name) for name in extra_coordinates.COUNTS}
    row_stddev = tf.cast(stddev * advanced.row_stddev, tf.float32)
    if rule.metrics is not None:
      scales = extra_coordinates.scales(rule.groups, rule.unit, rule.report_goal)
      scales *= 2.0**lattice.BITS if rule.has_noise else 0.0
      scale_of = dict(zip(names, scales.tolist(), strict=True))
      measured['metrics'] = collections.OrderedDict(released)
      measured['metrics_stddev'] = collections.OrderedDict(
        (name, tf.cast(scale_of[name] * advanced.row_stddev, tf.float32)) for name in released
      )
    measured |= {'noise_row': noise.row, 'noise_stddev': clip_norm * row_stddev}
    return result, advanced, rule.next_clip_norm(clip_norm, extra, noise.row), measured

  @tff.tensorflow.computation()
  def first_clip_norm():
    first = rule.clip_norm if rule.clipping is None else rule.clipping.initial
    return tf.constant(first, tf.float32)

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
    inner = inner_process.next(state.inner, tff.federated_map(bound, (updates, clip_norm)))
    num_updates = tff.federated_sum(tff.federated_value(1, tff.CLIENTS))
    result, noise, clip_norm, measured = tff.federated_map(
      release, (inner.result, num_updates, state.noise, state.clip_norm)
    )
    names = [name for name, _ in tff.structure.to_elements(measured.type_signature.member)]
    by_name = {name: measured[name] for name in names}
    measurements = collections.OrderedDict(by_name, inner=inner.measurements)
    if sums.has_canaries:
      measurements[canary_sums.RELEASED] = result
    return tff.templates.MeasuredProcessOutput(
      state=tff.federated_zip(AdaptiveState(inner=inner.state, noise=noise, clip_norm=clip_norm)),
      result=result,
      measurements=tff.federated_zip(measurements),
    )

  return tff.templates.AggregationProcess(init_fn, next_fn)
