"""TFF aggregation processes as subjects of an audit, run in this process."""

from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from fl_dpftrl.prove.auditing import subjects


class Process:
  """A user's aggregator, run from `initialize` on for each run."""

  def __init__(self, aggregator: Any, *, divisor: float, num_coordinates: int, seed: int | None):
    """Takes a process, or a factory, which gets three tensors; ValueError for any other."""
    self.description = f'{type(aggregator).__name__}, in process'
    if isinstance(aggregator, tff.aggregators.UnweightedAggregationFactory):
      first, *rest = subjects.tensor_sizes(num_coordinates)
      shapes = [[first // 2, 2], *([size] for size in rest)]
      aggregator = aggregator.create(tff.to_type([tff.TensorType(np.float32, s) for s in shapes]))
    if not isinstance(aggregator, tff.templates.AggregationProcess) or aggregator.is_weighted:
      raise ValueError(
        'aggregator must be an AggregationProcess or a factory without weights, got'
        f' {type(aggregator).__name__}'
      )
    updates = aggregator.next.type_signature.parameter[1].member
    has_tensors = tff.types.is_structure_of_tensors(updates)
    self._template = tff.types.type_to_tf_tensor_specs(updates) if has_tensors else ()
    specs = tf.nest.flatten(self._template)
    are_valid = [spec.dtype == tf.float32 and spec.shape.is_fully_defined() for spec in specs]
    if not specs or not all(are_valid):
      raise ValueError(f'aggregator must take float32 tensors of known shapes, got {updates}')
    self._process, self._divisor = aggregator, divisor
    self._context = tff_inprocess.InProcessContext(seed=seed)
    self._shapes = [tuple(spec.shape) for spec in specs]
    self.sizes = tuple(spec.shape.num_elements() for spec in specs)

  def run(self, cohorts: subjects.Cohorts, num_rounds: int) -> np.ndarray:
    released = np.empty((num_rounds, sum(self.sizes)))
    with tff.framework.get_context_stack().install(self._context):
      state = self._process.initialize()
      for t in range(num_rounds):
        output = self._process.next(state, [self._packed(update) for update in cohorts(t)])
        state = output.state
        parts = [np.asarray(part, np.float64).ravel() for part in tf.nest.flatten(output.result)]
        released[t] = self._divisor * np.concatenate(parts)
    return released

  def _packed(self, update: np.ndarray) -> Any:
    parts = np.split(np.asarray(update, np.float32), np.cumsum(self.sizes)[:-1])
    shaped = [part.reshape(shape) for part, shape in zip(parts, self._shapes)]
    return tf.nest.pack_sequence_as(self._template, shaped)
