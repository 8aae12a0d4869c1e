"""Python functions that computations call, in the process that made them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import tensorflow as tf

OPERATION, _KEY = 'PyFunc', 'token'
OPERATIONS = (OPERATION, 'PyFuncStateless', 'EagerPyFunc')


class Callback(Protocol):
  """A function of arrays."""

  def __call__(self, *arrays: Any) -> Any: ...

  def resources(self) -> Any:
    """Returns what calls need much memory for; compiled computations keep it alive."""
    ...


# A computation may be part of others, which run later. So callbacks are kept as long
# as the process, and what is large about them is in their resources.
_callbacks: dict[bytes, Callback] = {}
_functions: list[Callable[..., Any]] = []


def call(callback: Callback, inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]) -> Any:
  """Calls a function now or, while a graph is built, whenever that runs; returns a list."""

  def function(*arrays):
    return callback(*arrays)

  results = tf.numpy_function(function, inputs, types)
  if tf.executing_eagerly():
    return results if len(types) > 1 else [results]
  _functions.append(function)  # TensorFlow keeps it only while this graph lives.
  _callbacks[results[0].op.get_attr(_KEY)] = callback
  return results


def resources(graph: tf.compat.v1.GraphDef) -> list[Any]:
  """Returns the resources of all callbacks in a graph."""
  keys = [node.attr[_KEY].s for node in graph.node if node.op == OPERATION]
  return [_callbacks[key].resources() for key in keys if key in _callbacks]


def is_own(node: tf.compat.v1.NodeDef) -> bool:
  """Returns whether an operation calls a function given to `call`: of its inputs alone."""
  return node.op == OPERATION and node.attr[_KEY].s in _callbacks
