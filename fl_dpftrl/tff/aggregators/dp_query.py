"""Correlated noise as a query of TensorFlow Privacy."""

import collections
from typing import Any

import attr
import dp_accounting
import tensorflow as tf
import tensorflow_federated as tff
import tensorflow_privacy as tfp

from fl_dpftrl.noise import stream as streams
from fl_dpftrl.tff.aggregators import factories


@attr.s(frozen=True)
class CorrelatedNoiseDpEvent(dp_accounting.UnsupportedDpEvent):
  """One release with correlated noise, which no accountant may compose.

  The rows of N·Z share their noise, so that the privacy of one is not defined
  by itself; that of all follows from the participation log.
  """

  def __str__(self):
    return (
      'a release with correlated noise: its guarantee follows from the'
      ' participation log of the whole run, see `fl-dpftrl replay --log=FILE`'
    )


class CorrelatedNoiseQuery(tfp.SumAggregationDPQuery):
  """A `CorrelatedNoiseFactory` as a query of TensorFlow Privacy.

  In `tff.aggregators.DifferentiallyPrivateFactory` it gives the results of the
  factory, the same for the same noise_seed, already divided by report_goal.
  Sums are made by that class (its record_aggregation_factory), not by the
  factory's inner_factory. Clipped, zeroed and rejected updates are not counted,
  since a query's metrics must be private. Metrics: noise_row, noise_stddev.

  Args:
    factory: what to do with updates, sums and noise.
  """

  def __init__(self, factory: factories.CorrelatedNoiseFactory, record_specs: Any):
    if not isinstance(factory.clip_norm, float):
      raise ValueError(
        'factory of a query must have a number as clip_norm, not an AdaptiveClipping'
      )
    if factory.groups:
      raise ValueError('factory of a query must have no metrics: a query has none of its own')
    if factory.canaries is not None:
      raise ValueError('factory of a query must have no canaries')
    value_type = tff.types.tensorflow_to_type(record_specs)
    self._factory, self._stddev = factory, factory.noise_multiplier * factory.clip_norm
    self._stream, self._sums = factory.noise_stream(value_type), factory.sums(value_type)

  def initial_global_state(self) -> streams.StreamState:
    return self._stream.init()

  def initial_sample_state(self, template: Any) -> Any:
    """Returns zeros, int64, of the shapes of a template: sums are whole numbers."""
    return tf.nest.map_structure(lambda part: tf.zeros(part.shape, tf.int64), template)

  def preprocess_record(self, params: Any, record: Any) -> Any:
    del params
    return self._factory.bound(record).update

  def get_noised_result(
    self, sample_state: Any, global_state: streams.StreamState
  ) -> tuple[Any, streams.StreamState, CorrelatedNoiseDpEvent]:
    result, advanced = self._factory.release(self._sums, self._stream, sample_state, global_state)
    return result, advanced, CorrelatedNoiseDpEvent()

  def derive_metrics(
    self, global_state: streams.StreamState
  ) -> collections.OrderedDict[str, tf.Tensor]:
    stddev = self._stddev * global_state.row_stddev
    return collections.OrderedDict(
      noise_row=global_state.row - 1, noise_stddev=tf.cast(stddev, tf.float32)
    )
