"""Batches of one client, made from arrays at the least cost."""

import functools
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops

from fl_dpftrl.text import messages


def batches(arrays: Any, batch_size: int) -> tf.data.Dataset:
  """Returns the rows of arrays as batches, the last of which may be smaller.

  It gives what `tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)` gives,
  by three operations.

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
  specs = [tf.TensorSpec([None, *one.shape[1:]], one.dtype) for one in flat]
  kind = {
    'output_types': [spec.dtype for spec in specs],
    'output_shapes': [spec.shape for spec in specs],
  }
  rows = tf.raw_ops.TensorSliceDataset(
    components=[tf.constant(one) for one in flat], output_shapes=[one.shape[1:] for one in flat]
  )
  grouped = tf.raw_ops.BatchDatasetV2(
    input_dataset=rows,
    batch_size=tf.constant(batch_size, tf.int64),
    drop_remainder=tf.constant(False),
    **kind,
  )
  variant = tf.raw_ops.OptionsDataset(
    input_dataset=grouped, serialized_options=_serialized_options(), **kind
  )
  return tf.data.experimental.from_variant(variant, tf.nest.pack_sequence_as(arrays, specs))


def has_own_options(data_set: tf.data.Dataset) -> bool:
  """Tells a data set that was built in a graph, as `batches` does."""
  return isinstance(data_set, dataset_ops._VariantDataset)


@functools.cache
def options() -> tf.data.Options:
  """Returns options without what costs a small data set more than it saves.

  A client's few batches are over before a pipeline could be tuned, and to rewrite it
  takes longer than to read them.
  """
  made = tf.data.Options()
  made.autotune.enabled = False
  made.experimental_optimization.apply_default_optimizations = False
  made.experimental_optimization.inject_prefetch = False
  return made


@functools.cache
def _serialized_options() -> bytes:
  return options()._to_proto().SerializeToString()
