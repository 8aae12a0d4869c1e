"""Sums of whole numbers by any TFF factory, checked; and their exact sum with a row of noise."""

import asyncio
import concurrent.futures
import inspect
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.aggregators import process_flow
from fl_dpftrl.families import base as strategies
from fl_dpftrl.noise import units

SECURE = 'secure'
"""The name of TFF's modular secure sum, with the modulus that a round needs."""

Factory: TypeAlias = tff.aggregators.UnweightedAggregationFactory
_ModularSum: Any = tff.aggregators.SecureModularSumFactory
_REMEDY = (
  f'give it one that sums whole numbers, such as {SECURE!r} or tff.aggregators.SumFactory(): the'
  ' division by report_goal comes after'
)
_FINEST_BITS = 46  # of a clip norm, in a run without noise
# Room for more updates than the report goal, in a modulus that is chosen here.
_MOST_REPORTS = 4
# Of sums with noise in units of the lattice, in int64 with room; and of a modulus.
_SUM_BITS, _MODULUS_BITS = 62, 61


class Sums(NamedTuple):
  """An inner process, and what its sums are exact for.

  Attributes:
    process: sums updates.
    unit: units of the updates.
    modulus: modulo which sums are, in units of the lattice; None for that of int64.
    most_updates: updates whose sum with a row of noise is not changed by the modulus.
  """

  process: tff.templates.AggregationProcess
  unit: units.Unit
  modulus: int | None
  most_updates: int

  def noised(self, totals: Any, row: Any) -> Any:
    """Returns sums with a row of noise, in units of the lattice, in TensorFlow.

    They are added modulo the modulus, and only then lifted to signed numbers. So the result is a
    function of the true sum with noise, whatever a device sent: nothing that others send changes
    how far one device's update can move it.
    """
    scale = tf.constant(1 << self.unit.shift, tf.uint64)
    added = []
    for total, noise in zip(tf.nest.flatten(totals), tf.nest.flatten(row), strict=True):
      wide = scale * tf.bitcast(total, tf.uint64) + tf.bitcast(noise, tf.uint64)
      added.append(self._lifted(tf.bitcast(wide, tf.int64)))
    return tf.nest.pack_sequence_as(totals, added)

  def _lifted(self, total: tf.Tensor) -> tf.Tensor:
    if self.modulus is None:
      return total
    half = self.modulus // 2
    return tf.math.floormod(total + half, self.modulus) - half

  def checked(self, totals: Any, num_updates: tf.Tensor) -> Any:
    """Returns sums unchanged; fails if they are of more updates than they have room for."""
    enough = tf.debugging.assert_less_equal(
      tf.cast(num_updates, tf.int64),
      tf.constant(self.most_updates, tf.int64),
      f'a round has more than the {self.most_updates} updates that its sums have room for',
    )
    with tf.control_dependencies([enough]):
      return tf.nest.map_structure(tf.identity, totals)


def converted(totals: Any, scale: Any) -> Any:
  """Returns what sums with noise stand for, float32, as the last step of a release."""
  convert = lambda part: tf.cast(scale * tf.cast(part, tf.float64), tf.float32)
  return tf.nest.map_structure(convert, totals)


def check_no_mean(inner_factory: Factory) -> None:
  """Rejects TFF's own mean and its lossy sums, without running anything."""
  if isinstance(inner_factory, tff.aggregators.UnweightedMeanFactory):
    raise ValueError(f'inner_factory must sum, got a mean; {_REMEDY}')
  if isinstance(inner_factory, tff.aggregators.EncodedSumFactory):
    raise ValueError(
      'inner_factory must not round up: an encoded update may be longer than clip_norm, which'
      ' the guarantee does not cover; "Fewer bytes" in docs/aggregator.md sends less without a loss'
    )


def bits_without_noise(inner_factory: Factory | str, report_goal: int) -> int:
  """Returns p of a run without noise, whose clip norm has 2^p units.

  Plain sums are as fine as int64 allows, since a large clip norm may stand for none. Other
  factories have bounds that are meant for updates with noise.
  """
  is_plain = type(inner_factory) is tff.aggregators.SumFactory
  return min(_FINEST_BITS, 60 - report_goal.bit_length()) if is_plain else units.MOST_BITS


def create(
  inner_factory: Factory | str,
  value_type: tff.Type,
  *,
  unit: units.Unit,
  report_goal: int,
  strategy: strategies.Strategy | None,
) -> Sums:
  """Creates the process that sums updates, and has it sum known ones.

  They go through two rounds in the context where computations run now. What is summed, and the
  updates' ways into the state, are followed without running anything: only whole numbers of 64
  bits have exact sums, and a state that has learned from updates would change later sums, without
  noise. TFF's `SumFactory` and `SecureModularSumFactory` are known to sum, and nothing is run.
  """
  longest = math.isqrt(unit.most_square)
  noise = 0 if strategy is None else unit.farthest(strategy)
  least = 2 * (report_goal * longest + noise)
  if (least << unit.shift).bit_length() > _MODULUS_BITS:
    raise ValueError(
      f'report_goal={report_goal} updates and their noise have no room in sums of 64 bits: give a'
      ' larger noise_multiplier, or a smaller report_goal'
    )
  if inner_factory == SECURE:
    wanted = 2 * (_MOST_REPORTS * report_goal * longest + noise)
    bits = min(wanted.bit_length(), _MODULUS_BITS - unit.shift)
    inner_factory = _ModularSum(1 << bits)
  factory: Any = inner_factory
  # By exact type: a class that inherits from it may do more.
  if type(factory) is not _ModularSum:
    process = _created(factory, value_type)
    if type(factory) is not tff.aggregators.SumFactory:
      _check_types(process)
      _check_state(process)
      _check_sums(process, value_type, longest)
    return Sums(process, unit, None, unit.room(noise))
  # TFF names neither elsewhere, and takes a modulus of the type of the values alone.
  limit, is_symmetric = int(factory._modulus), factory._symmetric_range
  modulus = 2 * limit - 1 if is_symmetric else limit
  if not least <= modulus < 1 << _SUM_BITS - unit.shift:
    raise ValueError(
      f'inner_factory has the modulus {modulus}, and the sum of report_goal={report_goal} updates'
      f' with noise needs at least {least}, and in int64 less than 2^{_SUM_BITS - unit.shift};'
      f' {SECURE!r} chooses one'
    )
  factory = _ModularSum(np.int64(limit), is_symmetric)
  room = (modulus // 2 - noise) // max(longest, 1)
  return Sums(_created(factory, value_type), unit, modulus << unit.shift, room)


def _created(inner_factory: Factory, value_type: tff.Type) -> tff.templates.AggregationProcess:
  try:
    process = inner_factory.create(value_type)
  except (TypeError, ValueError) as error:
    raise ValueError(
      f'inner_factory must sum int64 tensors, which {type(inner_factory).__name__} refuses;'
      f' {_REMEDY}; a bound must be a whole number, such as SecureSumFactory(2**{units.MOST_BITS})'
    ) from error
  result = process.next.type_signature.result.result.member
  if not value_type.is_assignable_from(result):
    raise ValueError(
      f'inner_factory must return sums of the type that it gets, int64, got {result}; {_REMEDY}'
    )
  return process


def _check_types(process: tff.templates.AggregationProcess) -> None:
  """Raises ValueError unless whole numbers of 64 bits are summed, and modulo no other number.

  Single numbers may have fewer bits: they are counts that are measured.
  """
  for uri, leaf in _summed(process.next.to_building_block()):
    if uri == 'federated_secure_modular_sum':
      raise ValueError(
        'inner_factory must not sum modulo a number within another factory, since the noise is'
        f' added modulo the same: give the SecureModularSumFactory itself, or {SECURE!r}'
      )
    if not np.issubdtype(leaf.dtype, np.integer) or (leaf.shape and leaf.dtype != np.int64):
      raise ValueError(
        f'inner_factory must sum int64 tensors alone, whose sums are exact, and it sums {leaf} too;'
        f' {_REMEDY}'
      )


def _summed(block: tff.framework.ComputationBuildingBlock) -> Iterator[tuple[str, tff.TensorType]]:
  """Yields the tensors that an expression brings together from clients, and by what."""
  if isinstance(block, tff.framework.Intrinsic):
    parameter, result = block.type_signature.parameter, block.type_signature.result
    parts = parameter if isinstance(parameter, tff.StructType) else [parameter]
    placements = [getattr(part, 'placement', None) for part in (*parts, result)]
    if placements[-1] is tff.SERVER and tff.CLIENTS in placements:
      total = parameter[1] if block.uri == 'federated_aggregate' else result.member
      yield from ((block.uri, leaf) for leaf in tff.structure.flatten(total))
  for part in block.children():
    yield from _summed(part)


def _check_sums(
  process: tff.templates.AggregationProcess, value_type: tff.Type, longest: int
) -> None:
  """Raises ValueError unless known updates are summed; warns if the longest one is cut."""
  template = tff.types.type_to_tf_tensor_specs(value_type)
  shapes = [tuple(spec.shape) for spec in tf.nest.flatten(template)]
  size = sum(map(math.prod, shapes))
  for largest in (min(longest, 100), longest):
    updates = _known_updates(size, largest)
    packed = [_pack(update, shapes, template) for update in updates]
    output = _run(process.next, _run(process.initialize), packed)
    off = np.concatenate([np.ravel(part) for part in tf.nest.flatten(output.result)]) - sum(updates)
    if not off.any():
      continue
    if largest < longest:
      raise ValueError(
        'inner_factory must sum updates, but the sum of four was wrong by'
        f' {np.abs(off).max()} units; {_REMEDY}'
      )
    warnings.warn(
      'inner_factory cuts updates: its bound is below the clip norm, which is 2^24 units at most;'
      f' the sums are smaller than they should be, and {SECURE!r} cuts none',
      stacklevel=3,
    )


def _check_state(process: tff.templates.AggregationProcess) -> None:
  """Raises ValueError if the state of a process depends on the updates, or may do so unseen."""
  inner = process_flow.ProcessFlow(process)
  masks = inner.masks()
  for _, refused in inner.refused(masks):
    raise ValueError(
      f'inner_factory must keep nothing from round to round but its state, and {refused} may'
    )
  state = zip(inner.paths[: inner.num_state], inner.next.result)
  followed = [path for path, tensor in state if masks.of(tensor)]
  if followed:
    raise ValueError(
      f'inner_factory must not learn from updates, but its {".".join(followed[0])} depends on them,'
      ' and no noise hides that in later rounds: give fixed norms and bounds, or clip_norm='
      'dpftrl.AdaptiveClipping(…), whose counts have noise'
    )


def _known_updates(size: int, largest: int) -> list[np.ndarray]:
  """Four updates whose sum is far from their mean, whatever their size."""
  up, down = np.zeros([2, size], np.int64)
  up[0], down[-1] = largest, -(largest // 2)
  everywhere = np.full(size, largest // math.isqrt(4 * size), np.int64)
  return [up, down, everywhere, np.zeros(size, np.int64)]


def _pack(update: np.ndarray, shapes: Sequence[tuple[int, ...]], template: Any) -> Any:
  ends = np.cumsum([math.prod(shape) for shape in shapes])
  parts = np.split(update, ends[:-1])
  tensors = [np.reshape(part, shape) for part, shape in zip(parts, shapes)]
  return tf.nest.pack_sequence_as(template, tensors)


def _run(computation: tff.Computation, *args: Any) -> Any:
  """Runs a computation in a synchronous or asynchronous context."""
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
