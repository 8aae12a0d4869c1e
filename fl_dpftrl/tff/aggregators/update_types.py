"""Types of updates that get noise, and of the learning processes that make them."""

from typing import Any

import tensorflow as tf
import tensorflow_federated as tff


def specs(value_type: tff.Type) -> Any:
  """Returns the specs of updates of a type, nested; ValueError if they cannot get noise."""
  if not tff.types.is_structure_of_tensors(value_type):
    raise ValueError(f'value_type must be made of tensors, got {value_type}')
  template = tff.types.type_to_tf_tensor_specs(value_type)
  flat = tf.nest.flatten(template)
  for spec in flat:
    if spec.dtype != tf.float32 or not spec.shape.is_fully_defined():
      raise ValueError(
        'noise is for float32 tensors of known shapes, and the model has one'
        f' of type {spec.dtype.name}, shape {spec.shape}'
      )
  if not any(spec.shape.num_elements() for spec in flat):
    raise ValueError(f'the model has no tensors, or only empty ones: {template!r}')
  return template


def updates_of(process: Any) -> tff.Type:
  """Returns the type of a learning process's trainable weights, or a type as it is."""
  if isinstance(process, tff.Type):
    return process
  weights = getattr(process, 'get_model_weights', None)
  model = getattr(getattr(weights, 'type_signature', None), 'result', None)
  trainable = getattr(model, 'trainable', None)
  if trainable is None:
    raise ValueError(
      'process must be a learning process whose get_model_weights gives trainable weights, as'
      f" federated averaging has, got {type(process).__name__}: run others' rounds with a Run"
    )
  return trainable
