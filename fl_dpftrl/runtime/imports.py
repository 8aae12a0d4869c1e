"""Imports one TensorFlow computation of TFF's into a graph that is being built.

TFF runs each call of a computation in a session of its own: only what the results
need is run, variables are new, and an initialising operation comes first. A graph
that several clients run at the same time, in one process, has none of that by
itself. So the serialised graph is rewritten before it is imported: it is pruned,
its variables live for one call, and reading them waits for the initialisation.
"""

import itertools
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fl_dpftrl.runtime import analysis, callbacks, products, randomness, reductions

# TensorFlow makes a new resource at each call of an operation of this name.
_ANONYMOUS = b'cd2c89b7-88b7-44c8-ad83-06c2a9158347'
_VARIABLE = 'VarHandleOp'
_TABLES = ('HashTableV2', 'MutableHashTableV2', 'MutableDenseHashTableV2')
_PASSED_ON = ('Identity', 'IdentityN')
_SCOPE = 'part'
# Functions are known to TensorFlow by their names, in the whole process.
_unique = itertools.count()

# Tensors in nested tuples, as structures of TFF are nested.
Value = Any


class Importer:
  """Puts computations into the current graph, each with its own random numbers.

  Args:
    seed: int64, shape [2]; new in each call of the graph.
    honours_seeds: operations that have a seed of their own start from it in each
      call of the graph.
  """

  def __init__(self, seed: tf.Tensor, *, honours_seeds: bool):
    self._seed = seed
    self._honours_seeds = honours_seeds
    self._count = 0
    self.variables: list[tf.Tensor] = []
    self.resources: list[Any] = []

  def call(self, computation: tff.framework.CompiledComputation, argument: Value) -> Value:
    """The result of a computation.

    Raises:
      UnsupportedComputationError: unless it is made of TensorFlow.
    """
    kind = computation.proto.WhichOneof('computation')
    if kind != 'tensorflow':
      raise analysis.unsupported(f'a computation made of {kind}')
    program = computation.proto.tensorflow
    graph = tf.compat.v1.GraphDef()
    program.graph_def.Unpack(graph)
    results = list(_tensor_names(program.result))
    given = dict(_bound(program.parameter, argument)) if program.HasField('parameter') else {}
    inputs = {_node(name) for name in given}
    _prune(graph, {*map(_node, results), program.initialize_op} - {''}, inputs)
    self.resources.extend(callbacks.resources(graph))
    handles = _own_variables(graph)
    if program.initialize_op:
      _initialise_first(graph, program.initialize_op)
    _leave_out_asserted(graph)
    reductions.rewrite(graph)
    products.rewrite(graph)
    seed = randomness.rewrite(graph, honours_seeds=self._honours_seeds)
    if seed is not None:
      given[f'{seed}:0'] = randomness.child(self._seed, self._count)
    self._count += 1
    _rename_functions(graph, f'__{next(_unique)}')
    present = {node.name for node in graph.node}
    found = tf.graph_util.import_graph_def(
      graph,
      input_map={n: t for n, t in given.items() if _node(n) in present},
      return_elements=[*results, *(f'{name}:0' for name in handles)],
      name=_SCOPE,
    )
    self.variables.extend(found[len(results) :])
    return _assembled(program.result, dict(zip(results, found)))


def _node(tensor_name: str) -> str:
  return tensor_name.lstrip('^').split(':')[0]


def _tensor_names(binding: Any) -> Iterator[str]:
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for part in binding.struct.element:
      yield from _tensor_names(part)
  elif kind == 'tensor':
    yield binding.tensor.tensor_name
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name


def _bound(binding: Any, value: Value) -> Iterator[tuple[str, tf.Tensor]]:
  """The name and the value of each tensor of the parameter."""
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for part, of_part in zip(binding.struct.element, value, strict=True):
      yield from _bound(part, of_part)
  elif kind:
    (name,) = _tensor_names(binding)
    yield name, value


def _assembled(binding: Any, tensors: dict[str, tf.Tensor]) -> Value:
  if binding.WhichOneof('binding') == 'struct':
    return tuple(_assembled(part, tensors) for part in binding.struct.element)
  (name,) = _tensor_names(binding)
  return tensors[name]


def _prune(graph: tf.compat.v1.GraphDef, wanted: set[str], inputs: set[str]) -> None:
  """Keeps what is wanted, what it needs, and the inputs."""
  nodes = {node.name: node for node in graph.node}
  kept, left = set(inputs & nodes.keys()), list(wanted)
  while left:
    name = left.pop()
    if name not in kept:
      kept.add(name)
      left.extend(map(_node, nodes[name].input))
  for index in reversed(range(len(graph.node))):
    if graph.node[index].name not in kept:
      del graph.node[index]


def _rename_functions(graph: tf.compat.v1.GraphDef, suffix: str) -> None:
  """Tells the functions of a rewritten graph from those of the original."""
  names = {function.signature.name for function in graph.library.function}
  renamed = lambda name: name + suffix if name in names else name
  for node in _all_nodes(graph):
    node.op = renamed(node.op)
    for attribute in node.attr.values():
      if attribute.HasField('func'):
        attribute.func.name = renamed(attribute.func.name)
      for function in attribute.list.func:
        function.name = renamed(function.name)
  for function in graph.library.function:
    function.signature.name += suffix
  for gradient in graph.library.gradient:
    gradient.function_name = renamed(gradient.function_name)
    gradient.gradient_func = renamed(gradient.gradient_func)


def _all_nodes(graph: tf.compat.v1.GraphDef) -> Iterator[Any]:
  """Yields the nodes of a graph, and those of its functions."""
  return itertools.chain(graph.node, *(f.node_def for f in graph.library.function))


def _leave_out_asserted(graph: tf.compat.v1.GraphDef) -> None:
  """Leaves words alone to assertions that fail: their tensors may be secret."""
  for node in _all_nodes(graph):
    if node.op != 'Assert':
      continue
    condition, *others = node.input
    types = list(node.attr['T'].list.type)
    shown = [i for i, of in enumerate(types) if of == tf.string.as_datatype_enum]
    if not shown:  # It cannot do without any.
      node.attr['summarize'].i = 0
      continue
    node.attr['T'].list.type[:] = [types[i] for i in shown]
    del node.input[:]
    node.input.extend([condition, *(others[i] for i in shown), *others[len(types) :]])


def _own_variables(graph: tf.compat.v1.GraphDef) -> list[str]:
  """Makes variables anonymous; gives the names of their nodes."""
  first: dict[tuple[bytes, bytes], str] = {}
  for node in graph.node:
    if node.op != _VARIABLE:
      continue
    name = node.attr['shared_name'].s or node.name.encode()
    key = node.attr['container'].s, name
    if key in first:  # The same variable once more.
      node.op = 'Identity'
      node.attr.clear()
      node.attr['T'].type = tf.resource.as_datatype_enum
      node.input.append(first[key])
    else:
      first[key] = node.name
      node.attr['shared_name'].s = _ANONYMOUS
      node.attr['container'].s = b''
  return list(first.values())


def _initialise_first(graph: tf.compat.v1.GraphDef, operation: str) -> None:
  """Makes all other uses of variables and tables wait for an operation."""
  nodes = {node.name: node for node in graph.node}
  before, left = set(), [_node(operation)]
  while left:
    name = left.pop()
    if name not in before:
      before.add(name)
      left.extend(map(_node, nodes[name].input))
  handles = {n.name for n in graph.node if n.op in (_VARIABLE, *_TABLES)}
  while (
    passed_on := {
      node.name
      for node in graph.node
      if node.op in _PASSED_ON and handles & set(map(_node, node.input))
    }
    - handles
  ):
    handles |= passed_on
  for node in graph.node:
    if node.name not in before | handles and handles & set(map(_node, node.input)):
      node.input.append(f'^{_node(operation)}')
