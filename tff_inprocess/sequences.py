"""Functions of TFF that are applied to each element of a data set."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.types import type_conversions

from tff_inprocess import data_sets, imports, randomness

# (seed, argument) → result, within a function of TensorFlow.
Function = Callable[[tf.Tensor, imports.Value], imports.Value]


def elements(variant: tf.Tensor, of: tff.SequenceType) -> tf.data.Dataset:
  """Returns a data set from its tensor."""
  return tf.data.experimental.from_variant(variant, _structure(of))


def mapped(
  function: Function, data_set: tf.data.Dataset, of: tff.SequenceType, seed: tf.Tensor
) -> tf.Tensor:
  """Returns the variant of a data set with a function applied to each element."""
  structure = _structure(of)

  def on_element(index: tf.Tensor, element: Any) -> Any:
    return _packed(structure, function(randomness.child(seed, index), _nested(element)))

  data_set = data_set.enumerate().map(tf.autograph.experimental.do_not_convert(on_element))
  return data_sets.lean(tf.data.experimental.to_variant(data_set), data_set.element_spec)


def reduced(
  function: Function, data_set: tf.data.Dataset, zero: imports.Value, seed: tf.Tensor
) -> imports.Value:
  """Returns what a function makes of all elements, one after another."""

  def on_element(total: imports.Value, numbered: Any) -> imports.Value:
    index, element = numbered
    return function(randomness.child(seed, index), (total, _nested(element)))

  return data_set.enumerate().reduce(zero, tf.autograph.experimental.do_not_convert(on_element))


def summed(variant: tf.Tensor, of: tff.SequenceType) -> imports.Value:
  """Returns the sum of the elements of a data set."""
  zero = _nested(
    tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), _structure(of))
  )

  def add(total: imports.Value, element: Any) -> imports.Value:
    return tf.nest.map_structure(tf.add, total, _nested(element))

  return elements(variant, of).reduce(zero, tf.autograph.experimental.do_not_convert(add))


def _structure(of: tff.SequenceType) -> Any:
  return type_conversions.type_to_tf_structure(of.element)


def _packed(structure: Any, value: imports.Value) -> Any:
  """Puts nested tuples into containers of a structure."""
  if not isinstance(value, tuple):
    return value
  if isinstance(structure, dict):
    return type(structure)(zip(structure, map(_packed, structure.values(), value)))
  parts = map(_packed, structure, value)
  return type(structure)(*parts) if hasattr(structure, '_fields') else tuple(parts)


def _nested(element: Any) -> imports.Value:
  """Makes nested tuples of an element, in the order of its type."""
  if isinstance(element, Mapping):
    return tuple(map(_nested, element.values()))
  if isinstance(element, (tuple, list)):
    return tuple(map(_nested, element))
  return element
