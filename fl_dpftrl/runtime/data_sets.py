"""Batches of one client, made from arrays at the least cost."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from fl_dpftrl import messages


def batches(arrays: Any, batch_size: int) -> tf.data.Dataset:
  """Returns the rows of arrays as batches, the last of which may be smaller.

  It gives what `tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)` gives,
  by one call of a compiled function.

  Args:
    arrays: one array or a nested structure of them, of shapes [num_rows, …].
    batch_size: rows in a batch.

  Raises:
    ValueError: if batch_size is below 1, or an array has no rows' dimension.
  """
  if batch_size < 1:
    raise ValueError(f'batch_size must be at least 1, got {batch_size!r}')
  flat = [np.asarray(one) for one in tf.nest.flatten(arrays)]
  for one in flat:
    if not one.ndim:
      raise ValueError(f'arrays must have a dimension of rows, got {messages.kind(one)}')
  structure = tf.nest.pack_sequence_as(arrays, range(len(flat)))
  kinds = tuple((one.dtype, one.shape[1:]) for one in flat)
  make, element = _maker(kinds, _Structure(structure))
  variant = make(*(tf.constant(one) for one in flat), tf.constant(batch_size, tf.int64))
  return tf.data.experimental.from_variant(variant, element)


def has_own_options(data_set: tf.data.Dataset) -> bool:
  """Tells a data set that was built in a graph, as `batches` builds them."""
  return isinstance(data_set, dataset_ops._VariantDataset)


@functools.cache
def options() -> tf.data.Options:
  """Returns options without what costs a small data set more than it saves.

  A client's few batches are over before a pipeline could be tuned, and to rewrite it
  takes longer than to read them.
  """
  found = tf.data.Options()
  found.autotune.enabled = False
  found.experimental_optimization.apply_default_optimizations = False
  found.experimental_optimization.inject_prefetch = False
  return found


class _Structure:
  """A nested structure of numbers, as a key: equal to those that look the same."""

  def __init__(self, nested: Any):
    self.nested = nested
    self._key = repr(nested)

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Structure) and self._key == other._key

  def __hash__(self) -> int:
    return hash(self._key)


@functools.lru_cache(maxsize=64)
def _maker(
  kinds: tuple[tuple[np.dtype, tuple[int, ...]], ...], structure: _Structure
) -> tuple[Callable[..., tf.Tensor], Any]:
  """Returns a function (arrays, batch size) → variant, and the spec of its elements."""
  specs = [tf.TensorSpec([None, *shape], tf.as_dtype(dtype)) for dtype, shape in kinds]

  def make(*tensors):
    rows = tf.nest.pack_sequence_as(structure.nested, tensors[:-1])
    made = tf.data.Dataset.from_tensor_slices(rows).batch(tensors[-1])
    return tf.data.experimental.to_variant(made.with_options(options()))

  function = tf.compat.v1.wrap_function(make, [*specs, tf.TensorSpec([], tf.int64)])
  return function, tf.nest.pack_sequence_as(structure.nested, specs)
