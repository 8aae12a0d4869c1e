"""Conversion between the values that users pass or receive and tensors.

Tensors on a CPU and arrays share their memory if possible, so returned arrays
are read-only. An array that comes back as an argument, as the state of a
learning process does, is converted to the same tensor again.
"""

import contextlib
import dataclasses
import functools
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.python.core.impl.types import type_conversions
from tensorflow_federated.python.core.impl.utils import tensorflow_utils

from fl_dpftrl.support.text import messages
from tff_inprocess import analysis, data_sets


class MisfitError(TypeError):
  """A value of another type; words is the message without its shape, which is a client's data."""

  def __init__(self, words: str, shape: str = ''):
    super().__init__(words + shape)
    self.words = words


class Arrays:
  """Arrays that were returned to users, with their tensors while they live."""

  # A smaller one is copied in no time.
  _LEAST_BYTES = 1 << 16

  def __init__(self):
    self._lock = threading.Lock()
    self._tensors: dict[int, tuple[weakref.ref, tf.Tensor]] = {}

  def array(self, tensor: tf.Tensor) -> Any:
    """Returns a tensor as an array, or as a scalar of NumPy or bytes."""
    if tensor.dtype == tf.string or not tensor.shape.rank:
      return tensor.numpy()
    array = np.asarray(tensor)
    array.flags.writeable = False
    if array.nbytes >= self._LEAST_BYTES:
      key = id(array)
      # The callback comes before the number can be another array's.
      forget = lambda _: self._tensors.pop(key, None)
      self._tensors[key] = weakref.ref(array, forget), tensor
    return array

  def tensor(self, value: Any, spec: tf.TensorSpec) -> tf.Tensor:
    """The tensor of a user's value."""
    if isinstance(value, tf.Variable):
      value = value.read_value()
    if not isinstance(value, tf.Tensor):
      known = self._tensors.get(id(value))
      if known is not None:
        value = known[1]
      else:
        value = _converted(value, spec)
    if value.dtype != spec.dtype or not spec.shape.is_compatible_with(value.shape):
      raise MisfitError(
        f'expected a value of type {spec.dtype.name} and shape {spec.shape},'
        f' got {value.dtype.name}',
        f', {value.shape}',
      )
    return value


def _converted(value: Any, spec: tf.TensorSpec) -> tf.Tensor:
  if isinstance(value, (np.ndarray, np.generic)):
    if tf.as_dtype(value.dtype) != spec.dtype and spec.dtype != tf.string:
      raise MisfitError(f'expected a value of type {spec.dtype.name}, got {value.dtype}')
  with contextlib.suppress(Exception):
    return tf.convert_to_tensor(value, spec.dtype)
  raise _unexpected(f'a value of type {spec.dtype.name} and shape {spec.shape}', value)


def _unexpected(what: str, value: Any) -> MisfitError:
  """Returns an error that quotes nothing of a value, which may be a secret.

  It is raised after the handling of an error of TensorFlow, which quotes the value and would
  be shown as what came before.
  """
  return MisfitError(f'expected {what}, got {messages.kind(value)}')


def parts_of_argument(
  value: Any, of: tff.Type, path: tuple[int, ...] = ()
) -> Iterator[tuple[tuple[int, ...], Any, tff.Type]]:
  """(path, value, type) of each part that is placed or has no parts."""
  if isinstance(of, tff.StructType):
    for index, (part, (_, of_part)) in enumerate(
      zip(elements(value, of), tff.structure.to_elements(of), strict=True)
    ):
      yield from parts_of_argument(part, of_part, (*path, index))
  else:
    yield path, value, of


def elements(value: Any, of: tff.StructType) -> list[Any]:
  """The elements of a container, in the order of its type."""
  names = [name for name, _ in tff.structure.to_elements(of)]
  if isinstance(value, Mapping) and all(names):
    if set(value) == set(names):
      return [value[name] for name in names]
  elif value is not None and not isinstance(value, np.ndarray):
    with contextlib.suppress(TypeError):
      parts = tff.structure.to_elements(tff.structure.from_container(value))
      given = [name for name, _ in parts]
      if len(parts) == len(names) and all(
        name in (None, expected) for name, expected in zip(given, names)
      ):
        return [part for _, part in parts]
  raise _unexpected(f'a structure of type {of}', value)


@dataclasses.dataclass(frozen=True)
class Received:
  """A value of a client whose tensors came from another process; it shows none of them."""

  tensors: tuple[tf.Tensor, ...] = dataclasses.field(repr=False)


def tensors(value: Any, of: tff.Type, arrays: Arrays) -> tuple[tf.Tensor, ...]:
  """The tensors of a value without placements; a data set is a variant."""
  if isinstance(value, Received):
    return value.tensors
  if isinstance(of, tff.StructType):
    return tuple(
      tensor
      for part, (_, of_part) in zip(elements(value, of), tff.structure.to_elements(of))
      for tensor in tensors(part, of_part, arrays)
    )
  if isinstance(of, tff.SequenceType):
    return (tf.data.experimental.to_variant(_data_set(value, of)),)
  if isinstance(of, tff.TensorType):
    return (arrays.tensor(value, tff.types.type_to_tf_tensor_specs(of)),)
  raise analysis.unsupported(
    f'a value of type {of.compact_representation():.80}', 'use tensors, structures and data sets'
  )


def misfit(value: Any, of: tff.Type, arrays: Arrays) -> str:
  """Path to the first part of a value that is not of its type, such as `.optimizer.0`."""
  if not isinstance(of, tff.StructType):
    return ''
  try:
    parts = elements(value, of)
  except TypeError:
    return ''
  for index, (part, (name, of_part)) in enumerate(zip(parts, tff.structure.to_elements(of))):
    try:
      tensors(part, of_part, arrays)
    except TypeError:
      return f'.{index if name is None else name}{misfit(part, of_part, arrays)}'
  return ''


def _data_set(value: Any, of: tff.SequenceType) -> tf.data.Dataset:
  if isinstance(value, (list, tuple)):
    with contextlib.suppress(Exception):
      value = tensorflow_utils.make_data_set_from_elements(None, list(value), of.element)
  if not isinstance(value, tf.data.Dataset):
    raise _unexpected(f'a data set of type {of}', value)
  _check_elements(of, value.element_spec)
  return value


def batches(value: Any, of: tff.Type) -> data_sets.Batches | None:
  """Returns a value of a type of data sets if arrays of it can be taken as they are; else None.

  Raises:
    MisfitError: if it has other elements than those of the type.
  """
  if not isinstance(of, tff.SequenceType) or not isinstance(value, data_sets.Batches):
    return None
  _check_kind(of, value.kind)
  return value


@functools.lru_cache
def _check_kind(of: tff.SequenceType, kind: data_sets.Kind) -> None:
  _check_elements(of, data_sets.element_spec(kind))


def _check_elements(of: tff.SequenceType, spec: Any) -> None:
  element = tff.types.tensorflow_to_type(spec)
  if not of.element.is_assignable_from(element):
    raise MisfitError(f'expected a data set of elements {of.element}, got elements {element}')


def assembled(of: tff.Type, parts: Iterator[Any], arrays: Arrays) -> Any:
  """A result of a type."""
  return tff.types.type_to_py_container(_struct(of, parts, arrays), of)


def _struct(of: tff.Type, parts: Iterator[Any], arrays: Arrays) -> Any:
  if isinstance(of, tff.StructType) and tff.types.contains(
    of, lambda part: isinstance(part, tff.FederatedType)
  ):
    return tff.structure.Struct(
      [(name, _struct(part, parts, arrays)) for name, part in tff.structure.to_elements(of)]
    )
  if analysis.is_per_client(of):
    return [_member(of.member, iter(one), arrays) for one in next(parts)]
  return _member(analysis.member_of(of), iter(next(parts)), arrays)


def _member(of: tff.Type, tensors: Iterator[tf.Tensor], arrays: Arrays) -> Any:
  if isinstance(of, tff.StructType):
    return tff.structure.Struct(
      [(name, _member(part, tensors, arrays)) for name, part in tff.structure.to_elements(of)]
    )
  tensor = next(tensors)
  if isinstance(of, tff.SequenceType):
    element_spec = type_conversions.type_to_tf_structure(of.element)
    return tf.data.experimental.from_variant(tensor, element_spec)
  return arrays.array(tensor)


def num_bytes(tensors: Sequence[tf.Tensor]) -> int:
  """Returns the total size of those tensors whose size is known."""
  return sum(
    tensor.dtype.size * (tensor.shape.num_elements() or 0)
    for tensor in tensors
    if tensor.dtype not in (tf.variant, tf.resource)
  )
