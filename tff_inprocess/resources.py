"""Variables, tables and iterators that live for one call of a graph.

TensorFlow keeps what has a name for as long as the process lives, and finds it again by
that name. Clients that run one graph in one process would share it: one could read what
another wrote. So each such operation becomes one that makes a new resource in each call,
or is refused. At the server, what cannot be made anew gets a name of its graph's own, and
goes with the call where a handle of it is in the graph.
"""

import functools
import itertools
from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tff_inprocess import analysis, graphs

# TensorFlow makes a new variable at each call of an operation of this name.
_ANONYMOUS = b'cd2c89b7-88b7-44c8-ad83-06c2a9158347'
_VARIABLE = 'VarHandleOp'
# Each counts its references, so that it goes with the last of its handles.
_COUNTERPARTS = {
  'HashTableV2': 'AnonymousHashTable',
  'MutableHashTableV2': 'AnonymousMutableHashTable',
  'MutableHashTableOfTensorsV2': 'AnonymousMutableHashTableOfTensors',
  'MutableDenseHashTableV2': 'AnonymousMutableDenseHashTable',
  'IteratorV2': 'AnonymousIteratorV3',
}
_OWN = (_VARIABLE, *_COUNTERPARTS)
_ONE_SHOT = 'OneShotIterator'
# They order, write files or count; nothing that a client can read passes through them.
_HARMLESS = ('MutexV2', 'SummaryWriter', 'ThreadPoolHandle', 'StatsAggregatorHandleV2')
_NAMES = ('container', 'shared_name')
_PASSED_ON = ('Identity', 'IdentityN')
_RESOURCE = tf.resource.as_datatype_enum

# Resources are known to TensorFlow by their names, in the whole process.
_unique = itertools.count()

_Node = Any  # A serialised operation.
_Key = tuple[bytes, bytes]


def rewrite(graph: tf.compat.v1.GraphDef, initialize: str, *, of_clients: bool) -> list[str]:
  """Gives a graph resources of its own in each call, in place.

  Args:
    graph: serialised; functions in it must not refer to each other's resources.
    initialize: operation that comes before all other uses of them; '' for none.
    of_clients: refuses what cannot be made anew; else it gets a name of this graph's own.

  Returns:
    Names of the nodes of variables and of what else TensorFlow keeps, which the caller has to free.
  """
  handles: dict[_Key, _Node] = {}
  variables = []
  for node in list(graph.node):
    if node.op == _ONE_SHOT:
      _make_iterator(graph, node)
    elif node.op in _OWN:
      first = handles.setdefault(_key(node), node)
      if first is not node:
        _make_alias(node, first.name)
      elif node.op == _VARIABLE:
        variables.append(node.name)
  called = _called(graph) if of_clients else []
  for function in called:
    for node in function.node_def:
      if node.op == _VARIABLE or (_is_named(node) and _key(node) in handles):
        raise _kept(node)
      if node.op in _COUNTERPARTS and _is_named(node):
        handles[_key(node)] = node
  if initialize:
    own = [node.name for node in graph.node if node.op in _OWN]
    _initialise_first(graph, initialize, _with_aliases(graph, own))
  for node in graphs.nodes(graph):
    if node.op in _COUNTERPARTS or (node.op == _VARIABLE and node.name in variables):
      _make_anonymous(node)
  # An anonymous variable still has the attribute.
  kept = lambda node: _keeps(node.op) and node.attr['shared_name'].s != _ANONYMOUS
  if of_clients:
    for node in filter(kept, itertools.chain(graph.node, *(f.node_def for f in called))):
      raise _kept(node)
    return variables
  suffix = b'__%d' % next(_unique)
  for node in filter(kept, graphs.nodes(graph)):
    node.attr['shared_name'].s = _key(node)[1] + suffix
  return variables + [node.name for node in filter(kept, graph.node) if _gives_handle(node.op)]


def _called(graph: tf.compat.v1.GraphDef) -> list[Any]:
  """Returns the functions that the graph calls, directly or indirectly."""
  functions = {function.signature.name: function for function in graph.library.function}
  called: dict[str, Any] = {}
  left = list(graph.node)
  while left:
    node = left.pop()
    for name in (node.op, *graphs.function_names(node)):
      if name in functions and name not in called:
        called[name] = functions[name]
        left.extend(functions[name].node_def)
  return list(called.values())


def _key(node: _Node) -> _Key:
  return node.attr['container'].s, node.attr['shared_name'].s or node.name.encode()


def _is_named(node: _Node) -> bool:
  return 'shared_name' in node.attr and bool(node.attr['shared_name'].s)


@functools.cache
def _keeps(operation: str) -> bool:
  """Tells an operation that finds its state again by a name."""
  if operation in _HARMLESS:
    return False
  definition = op_def_registry.get(operation)
  return definition is not None and any(one.name in _NAMES for one in definition.attr)


def _gives_handle(operation: str) -> bool:
  return _RESOURCE in [output.type for output in op_def_registry.get(operation).output_arg]


def _kept(node: _Node) -> analysis.UnsupportedComputationError:
  return analysis.unsupported(
    f'the operation {node.op}, which would keep data from one client to the next,',
    'use resource variables, tables or tensor arrays that are made outside of functions',
  )


def _make_anonymous(node: _Node) -> None:
  if node.op == _VARIABLE:
    node.attr['shared_name'].s = _ANONYMOUS
    node.attr['container'].s = b''
    return
  node.op = _COUNTERPARTS[node.op]
  for name in (*_NAMES, 'use_node_name_sharing'):
    if name in node.attr:
      del node.attr[name]


def _make_alias(node: _Node, of: str) -> None:
  """Makes the same resource once more refer to the first."""
  node.op = 'Identity'
  node.attr.clear()
  node.attr['T'].type = _RESOURCE
  node.input[:] = [of]


def _make_iterator(graph: tf.compat.v1.GraphDef, node: _Node) -> None:
  """Makes an iterator that begins its data set anew in each call."""
  prefix = node.name
  iterator = graph.node.add(name=f'{prefix}/iterator', op='AnonymousIteratorV3')
  for name in ('output_types', 'output_shapes'):
    iterator.attr[name].CopyFrom(node.attr[name])
  data_set = graph.node.add(name=f'{prefix}/data_set', op='StatefulPartitionedCall')
  data_set.attr['f'].CopyFrom(node.attr['dataset_factory'])
  data_set.attr['Tin'].list.SetInParent()
  data_set.attr['Tout'].list.type.append(tf.variant.as_datatype_enum)
  start = graph.node.add(name=f'{prefix}/start', op='MakeIterator')
  start.input.extend([data_set.name, iterator.name])
  _make_alias(node, iterator.name)
  node.input.append(f'^{start.name}')


def _with_aliases(graph: tf.compat.v1.GraphDef, names: Iterable[str]) -> set[str]:
  handles = set(names)
  while (
    passed_on := {
      node.name
      for node in graph.node
      if node.op in _PASSED_ON and handles & set(map(graphs.node_of, node.input))
    }
    - handles
  ):
    handles |= passed_on
  return handles


def _initialise_first(graph: tf.compat.v1.GraphDef, operation: str, handles: set[str]) -> None:
  """Makes all other uses of handles wait for an operation."""
  before = graphs.needed(graph, [graphs.node_of(operation)])
  for node in graph.node:
    if node.name not in before | handles and handles & set(map(graphs.node_of, node.input)):
      node.input.append(f'^{graphs.node_of(operation)}')
