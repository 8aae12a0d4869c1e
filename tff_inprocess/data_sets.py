"""Batches of one client, kept as arrays, which the client's own graph cuts at the least cost."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as contexts
from tensorflow.python.framework import ops

from fl_dpftrl.support.text import messages

Kind: TypeAlias = tuple[Any, ...]
"""A structure of batches, which can be hashed: (dtype, shape of a row), or (type, names, parts)."""


class Batches(tf.data.Dataset):
  """Rows of arrays as batches: a data set that TensorFlow makes only if it is used as one."""

  def __init__(self, kind: Kind, parts: Sequence[np.ndarray], batch_size: int):
    # Not by the base class, which wants the data set that is made later.
    self.kind, self._parts, self._batch_size = kind, parts, batch_size

  def __reduce__(self):
    return Batches, (self.kind, self._parts, self._batch_size)

  def __getattr__(self, name: str) -> Any:
    """Returns an attribute that the base class keeps of a data set, which this makes."""
    if not name.endswith('_attr'):
      raise AttributeError(f'{type(self).__name__!r} object has no attribute {name!r}')
    return getattr(self._made, name)

  @functools.cached_property
  def _made(self) -> tf.data.Dataset:
    with tf.init_scope():
      *parts, batch_size = self.tensors()
      return tf.data.experimental.from_variant(cut(self.kind, parts, batch_size), self.element_spec)

  @property
  def element_spec(self) -> Any:
    return element_spec(self.kind)

  def _inputs(self) -> list[tf.data.Dataset]:
    return []

  def tensors(self) -> tuple[tf.Tensor, ...]:
    """Returns the arrays and the size of a batch as tensors; see `specs`."""
    return *map(unchanging, self._parts), _size(self._batch_size)


def batches(arrays: Any, batch_size: int) -> tf.data.Dataset:
  """Returns the rows of arrays as batches, the last of which may be smaller.

  It gives what `tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)` gives. Rounds in
  process and on machines take the arrays as they are, without a data set.
  """
  if batch_size < 1:
    raise ValueError(f'batch_size must be at least 1, got {batch_size!r}')
  parts = [np.array(one) for one in tf.nest.flatten(arrays)]
  for one in parts:
    if not one.ndim:
      raise ValueError(f'arrays must have a dimension of rows, got {messages.kind(one)}')
    one.flags.writeable = False
  return Batches(_kind(arrays, iter(parts)), parts, batch_size)


def _kind(arrays: Any, parts: Iterator[np.ndarray]) -> Kind:
  if isinstance(arrays, Mapping):
    # TensorFlow takes the values of a mapping in the order of sorted names.
    kinds = {name: _kind(arrays[name], parts) for name in sorted(arrays)}
    return type(arrays), tuple(arrays), tuple(kinds[name] for name in arrays)
  if isinstance(arrays, (tuple, list)):
    return type(arrays), (), tuple(_kind(one, parts) for one in arrays)
  part = next(parts)
  return tf.as_dtype(part.dtype), part.shape[1:]


@functools.lru_cache
def element_spec(kind: Kind) -> Any:
  """Returns the specs of a batch of a kind."""
  if isinstance(kind[0], tf.DType):
    return tf.TensorSpec([None, *kind[1]], kind[0])
  structure, names, kinds = kind
  parts = map(element_spec, kinds)
  if names:
    return structure(zip(names, parts))
  return structure(*parts) if hasattr(structure, '_fields') else structure(parts)


@functools.lru_cache
def loose(kind: Kind) -> Kind:
  """Returns a kind without the sizes of rows, in which clients may differ."""
  if isinstance(kind[0], tf.DType):
    return kind[0], (None,) * len(kind[1])
  structure, names, kinds = kind
  return structure, names, tuple(map(loose, kinds))


def specs(kind: Kind) -> list[tf.TensorSpec]:
  """Returns the specs of `Batches.tensors`: the arrays, and the size of a batch."""
  return [*tf.nest.flatten(element_spec(kind)), tf.TensorSpec([], tf.int64)]


def cut(kind: Kind, parts: Sequence[tf.Tensor], batch_size: tf.Tensor) -> tf.Tensor:
  """Returns the batches of a kind as the variant of a data set, by two operations."""
  flat = tf.nest.flatten(element_spec(kind))
  rows = tf.raw_ops.TensorSliceDataset(
    components=parts, output_shapes=[spec.shape[1:] for spec in flat]
  )
  return tf.raw_ops.BatchDatasetV2(
    input_dataset=rows,
    batch_size=batch_size,
    drop_remainder=tf.constant(False),
    output_types=[spec.dtype for spec in flat],
    output_shapes=[spec.shape for spec in flat],
  )


@functools.lru_cache
def _size(batch_size: int) -> tf.Tensor:
  return tf.constant(batch_size, tf.int64)


def unchanging(array: np.ndarray) -> tf.Tensor:
  """Returns an array as a tensor; of one that nobody may change, without a copy."""
  if array.flags.writeable or array.dtype.kind not in 'biuf':
    return tf.convert_to_tensor(array)
  context = contexts.context()
  context.ensure_initialized()
  of = tf.as_dtype(array.dtype).as_datatype_enum
  return ops.EagerTensor(array, context.device_name, of)


def lean(variant: tf.Tensor, structure: Any) -> tf.Tensor:
  """Returns a data set, as a variant, without what costs a small one more than it saves.

  A client's few batches are over before a pipeline could be tuned, and to rewrite it takes longer
  than to read them.

  Args:
    structure: specs of an element.
  """
  flat = tf.nest.flatten(structure)
  return tf.raw_ops.OptionsDataset(
    input_dataset=variant,
    serialized_options=_lean_options(),
    output_types=[spec.dtype for spec in flat],
    output_shapes=[spec.shape for spec in flat],
  )


@functools.cache
def _lean_options() -> bytes:
  made = tf.data.Options()
  made.autotune.enabled = False
  made.experimental_optimization.apply_default_optimizations = False
  made.experimental_optimization.inject_prefetch = False
  return made._to_proto().SerializeToString()
