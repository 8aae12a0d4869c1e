"""Checks that an aggregation factory returns the plain sum of updates, and remembers none."""

import asyncio
import concurrent.futures
import inspect
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.runtime import rounds

# Largest coordinate of a known update, in clip norms: an inner factory may clip
# what is larger. A mean of four is off by more than a third of it; a secure sum,
# even with bounds of 1000 clip norms, by less than a tenth.
_SIZE = 0.01
_TOLERANCE = 0.001
_REMEDY = (
  'give it one that sums, such as tff.aggregators.SumFactory() or'
  ' tff.aggregators.SecureSumFactory(clip_norm): the division by report_goal'
  ' comes after'
)


def check_no_mean(inner_factory: tff.aggregators.UnweightedAggregationFactory) -> None:
  """Rejects TFF's own mean and its lossy sums, without running anything.

  Raises:
    ValueError: for a mean, and for a sum of encoded updates, which get longer.
  """
  if isinstance(inner_factory, tff.aggregators.UnweightedMeanFactory):
    raise ValueError(f'inner_factory must sum, got a mean; {_REMEDY}')
  if isinstance(inner_factory, tff.aggregators.EncodedSumFactory):
    raise ValueError(
      'inner_factory must not round up: an encoded update may be longer than clip_norm, which'
      ' the guarantee does not cover; round towards zero, as "Compression" in docs/aggregator.md'
    )


def create(
  inner_factory: tff.aggregators.UnweightedAggregationFactory,
  value_type: tff.Type,
  clip_norm: float,
  *,
  largest: float = _SIZE,
) -> tff.templates.AggregationProcess:
  """Creates the process that sums updates, and has it sum known ones.

  They go through one round in the context where computations run now. The updates' ways into the
  state are followed without running anything: a state that has learned from them would change
  later sums, without noise. `tff.aggregators.SumFactory` is known to sum, and nothing is run.

  Args:
    inner_factory: creates the process.
    value_type: of the updates, made of float32 tensors of known shapes.
    clip_norm: L2 bound on an update.
    largest: largest coordinate of a known update, in clip norms.

  Raises:
    ValueError: unless the process sums, or where nothing can be run; and if its state depends on
      the updates.
  """
  process = inner_factory.create(value_type)
  # By exact type: a class that inherits from it may do more.
  if type(inner_factory) is tff.aggregators.SumFactory:
    return process
  template = tff.types.type_to_tf_tensor_specs(value_type)
  shapes = [tuple(spec.shape) for spec in tf.nest.flatten(template)]
  updates = _known_updates(sum(map(math.prod, shapes)), largest * clip_norm)
  packed = [_pack(update, shapes, template) for update in updates]
  output = _run(process.next, _run(process.initialize), packed)
  parts = [np.ravel(part) for part in tf.nest.flatten(output.result)]
  error = float(np.abs(np.concatenate(parts) - sum(updates)).max()) / clip_norm
  if not error <= _TOLERANCE:
    raise ValueError(
      'inner_factory must sum updates, but the sum of four was wrong by'
      f' {error:.2g} clip norms; {_REMEDY}'
    )
  _check_state(process)
  return process


def _check_state(process: tff.templates.AggregationProcess) -> None:
  """Raises ValueError if the state of a process depends on the updates."""
  inner = rounds.of(process)
  followed = inner.state_paths(inner.tainted())
  if followed:
    raise ValueError(
      f'inner_factory must not learn from updates, but its {".".join(followed[0])} depends on them,'
      ' and no noise hides that in later rounds: give fixed norms and bounds, or clip_norm='
      'dpftrl.AdaptiveClipping(…), whose counts have noise'
    )


def _known_updates(size: int, largest: float) -> list[np.ndarray]:
  """Four updates whose sum is far from their mean, whatever their size."""
  up, down = np.zeros([2, size], np.float32)
  up[0], down[-1] = largest, -largest
  everywhere = np.full(size, largest / (2.0 * math.sqrt(size)), np.float32)
  return [up, down, everywhere, np.zeros(size, np.float32)]


def _pack(update: np.ndarray, shapes: Sequence[tuple[int, ...]], template: Any) -> Any:
  ends = np.cumsum([math.prod(shape) for shape in shapes])
  parts = np.split(update, ends[:-1])
  tensors = [np.reshape(part, shape) for part, shape in zip(parts, shapes)]
  return tf.nest.pack_sequence_as(template, tensors)


def _run(computation: tff.Computation, *args: Any) -> Any:
  """Runs a computation in a synchronous or asynchronous context.

  Raises:
    ValueError: within another computation, where nothing runs.
  """
  result = computation(*args)
  if isinstance(result, tff.Value):
    raise ValueError(
      'inner_factory is checked by running it: create the aggregator outside'
      ' of tff.federated_computation'
    )
  if not inspect.iscoroutine(result):
    return result
  # Not in this thread, where an event loop may be running.
  with concurrent.futures.ThreadPoolExecutor(1) as thread:
    return thread.submit(asyncio.run, result).result()
