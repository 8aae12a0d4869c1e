"""TFF aggregation processes as subjects of an audit, run in this process."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

import tff_inprocess
from fl_dpftrl.prove.auditing import subjects

_Factory = tff.aggregators.UnweightedAggregationFactory


def value_type(num_coordinates: int) -> tff.Type:
  """Returns the type of updates that factories are audited with: three tensors."""
  first, *rest = subjects.tensor_sizes(num_coordinates)
  shapes = [[first // 2, 2], *([size] for size in rest)]
  return tff.to_type([tff.TensorType(np.float32, shape) for shape in shapes])


class Process:
  """A TFF process, run from `initialize` on for each run."""

  def __init__(
    self,
    process: tff.templates.AggregationProcess,
    *,
    divisor: float,
    seed: int | None,
    description: str,
  ):
    self.description = description
    self._process, self._divisor = process, divisor
    self._context = tff_inprocess.InProcessContext(seed=seed)
    if process.is_weighted:
      raise ValueError('aggregator weights updates; an audit needs one without weights')
    updates = process.next.type_signature.parameter[1].member
    if not tff.types.is_structure_of_tensors(updates):
      raise ValueError(f'aggregator must take tensors, got values of type {updates}')
    self._template = tff.types.type_to_tf_tensor_specs(updates)
    specs = tf.nest.flatten(self._template)
    if any(s.dtype != tf.float32 or not s.shape.is_fully_defined() for s in specs):
      raise ValueError(f'aggregator must take float32 of known shapes, got {updates}')
    self._shapes = [tuple(spec.shape) for spec in specs]
    self.sizes = tuple(spec.shape.num_elements() for spec in specs)

  def run(self, cohorts: subjects.Cohorts, num_rounds: int) -> np.ndarray:
    released = np.empty((num_rounds, sum(self.sizes)))
    with tff.framework.get_context_stack().install(self._context):
      state = self._process.initialize()
      for t in range(num_rounds):
        output = self._process.next(state, self._values(cohorts(t)))
        state = output.state
        parts = [np.asarray(part, np.float64).ravel() for part in tf.nest.flatten(output.result)]
        released[t] = self._divisor * np.concatenate(parts)
    return released

  def _values(self, updates: Sequence[np.ndarray]) -> list[Any]:
    structures: dict[int, Any] = {}
    for update in updates:
      if id(update) not in structures:
        parts = np.split(np.asarray(update, np.float32), np.cumsum(self.sizes)[:-1])
        shaped = [part.reshape(shape) for part, shape in zip(parts, self._shapes)]
        structures[id(update)] = tf.nest.pack_sequence_as(self._template, shaped)
    return [structures[id(update)] for update in updates]


def adopted(aggregator: Any, *, divisor: float, num_coordinates: int, seed: int | None) -> Process:
  """Returns a user's aggregator as a subject."""
  if isinstance(aggregator, _Factory):
    process = aggregator.create(value_type(num_coordinates))
  elif isinstance(aggregator, tff.templates.AggregationProcess):
    process = aggregator
  else:
    raise ValueError(
      'aggregator must be an AggregationProcess or a factory without weights, got'
      f' {type(aggregator).__name__}'
    )
  name = type(aggregator).__name__
  return Process(process, divisor=divisor, seed=seed, description=f'{name}, in process')
