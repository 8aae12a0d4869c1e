"""Parts of TensorFlow graphs, and the Python functions that graphs of this process call."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import tensorflow as tf

from fl_dpftrl.support.text import messages

_CALL, _KEY = 'PyFunc', 'token'
CALLS = (_CALL, 'PyFuncStateless', 'EagerPyFunc')


def node_of(tensor: str) -> str:
  """Returns the node of an input, which may be one that only orders."""
  return tensor.lstrip('^').split(':')[0]


def nodes(graph: tf.compat.v1.GraphDef) -> Iterator[Any]:
  """Yields the nodes of a graph, and those of its functions."""
  return itertools.chain(graph.node, *(f.node_def for f in graph.library.function))


def inputs(node: Any) -> tuple[list[str], list[str]]:
  """Returns the inputs of a node: those that it computes with, and those that only order."""
  orders = lambda one: one.startswith('^')
  return list(itertools.filterfalse(orders, node.input)), list(filter(orders, node.input))


def function_names(node: Any) -> list[str]:
  """Returns the names of the functions that are attributes of a node."""
  values = node.attr.values()
  return [f.name for v in values for f in ([v.func] if v.HasField('func') else v.list.func)]


def clear_attributes(node: Any) -> None:
  """Removes the attributes that an operation has; those that begin with _ stay."""
  for name in [name for name in node.attr if not name.startswith('_')]:
    del node.attr[name]


def needed(
  graph: tf.compat.v1.GraphDef, wanted: Iterable[str], given: Iterable[str] = ()
) -> set[str]:
  """Returns the nodes that wanted ones need, themselves included; given ones need none."""
  by_name = {node.name: node for node in graph.node}
  known, left = set(given) & by_name.keys(), list(wanted)
  while left:
    name = left.pop()
    if name not in known:
      known.add(name)
      left.extend(map(node_of, by_name[name].input))
  return known


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
# Of callbacks that failed, the last message: they are this package's, and quote no values.
_errors: dict[bytes, str] = {}


def python_call(callback: Callback, inputs: Sequence[tf.Tensor], types: Sequence[tf.DType]) -> Any:
  """Calls a function now or, while a graph is built, whenever that runs; returns a list."""

  key = b''

  def function(*arrays):
    try:
      return callback(*arrays)
    except Exception as error:
      _errors[key] = messages.one_line(error)
      raise

  results = tf.numpy_function(function, inputs, types)
  if tf.executing_eagerly():
    return results if len(types) > 1 else [results]
  _functions.append(function)  # TensorFlow keeps it only while this graph lives.
  key = results[0].op.get_attr(_KEY)
  _callbacks[key] = callback
  return results


def resources_of_calls(graph: tf.compat.v1.GraphDef) -> list[Any]:
  """Returns the resources of all callbacks in a graph."""
  keys = [node.attr[_KEY].s for node in graph.node if node.op == _CALL]
  return [_callbacks[key].resources() for key in keys if key in _callbacks]


def last_error(node: tf.compat.v1.NodeDef) -> str | None:
  """Returns the message of the last error of an operation that calls a function of this package."""
  return _errors.get(node.attr[_KEY].s) if callback_of(node) is not None else None


def callback_of(node: tf.compat.v1.NodeDef) -> Callback | None:
  """Returns the callback of an operation that `python_call` made; None for any other."""
  return _callbacks.get(node.attr[_KEY].s) if node.op == _CALL else None


def tensor_names(binding: Any) -> Iterator[str]:
  """Yields the names of the tensors and data sets of a binding, in the order of their type."""
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for part in binding.struct.element:
      yield from tensor_names(part)
  elif kind == 'tensor':
    yield binding.tensor.tensor_name
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name
