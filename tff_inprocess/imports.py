"""Imports one TensorFlow computation of TFF's into a graph that is being built.

TFF runs each call of a computation in a session of its own: only what the results
need is run, variables are new, and an initialising operation comes first. A graph
that several clients run at the same time, in one process, has none of that by
itself. So the serialised graph is rewritten before it is imported: it is pruned,
its resources live for one call, and using them waits for the initialisation.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_inprocess import analysis, graphs, randomness, resources, speed

# Which node to be beside; then compilation by XLA, which lacks operations that are put in here: it
# stays where a function has only such as nothing is put in for.
_LEFT_OUT = ('_class', '_XlaMustCompile', '_XlaCompile')
_UNCHANGED = re.compile(
  'Abs|AddN|AddV2|All|Bitcast|BitwiseAnd|Cast|ConcatV2|Const|Equal|Fill|FloorMod'
  '|Greater(Equal)?|Identity|IsFinite|LeftShift|Less(Equal)?|Log|Log1p|LogicalAnd'
  '|LogicalNot|Max|Maximum|Minimum|Mul|Neg|NoOp|Pack|PartitionedCall|Range|RealDiv|Reshape'
  '|RightShift|Rint|SelectV2|Split|Sqrt|Square|StatelessIf|StridedSlice|Sub|Sum|ZerosLike'
)
_SCOPE = 'part'
_OLD_LOOPS = ('Enter', 'RefEnter')
# Functions are known to TensorFlow by their names, in the whole process.
_unique = itertools.count()

# Tensors in nested tuples, as structures of TFF are nested.
Value = Any


class Importer:
  """Puts computations into the current graph, each with its own random numbers."""

  def __init__(self, seed: tf.Tensor, *, honours_seeds: bool, of_clients: bool):
    self._of_clients = of_clients
    self._seed = seed
    self._honours_seeds = honours_seeds
    self._count = 0
    self._variables: list[tf.Tensor] = []
    self.resources: list[Any] = []

  def call(self, computation: tff.framework.CompiledComputation, argument: Value) -> Value:
    """The result of a computation."""
    kind = computation.proto.WhichOneof('computation')
    if kind != 'tensorflow':
      raise analysis.unsupported(f'a computation made of {kind}', 'write it in TensorFlow')
    program = computation.proto.tensorflow
    graph = tf.compat.v1.GraphDef()
    program.graph_def.Unpack(graph)
    results = list(graphs.tensor_names(program.result))
    given = dict(_bound(program.parameter, argument)) if program.HasField('parameter') else {}
    inputs = {graphs.node_of(name) for name in given}
    _prune(graph, {*map(graphs.node_of, [*results, program.initialize_op])} - {''}, inputs)
    _leave_out(graph)
    if any(node.op in _OLD_LOOPS for node in graphs.nodes(graph)):
      raise analysis.unsupported('a loop of TensorFlow 1', 'enable control flow v2')
    self.resources.extend(graphs.resources_of_calls(graph))
    handles = resources.rewrite(graph, program.initialize_op, of_clients=self._of_clients)
    speed.rewrite(graph)
    seed = randomness.rewrite(graph, honours_seeds=self._honours_seeds)
    if seed is not None:
      given[f'{seed}:0'] = randomness.child(self._seed, self._count)
    self._count += 1
    _rename(graph, f'__{next(_unique)}')
    present = {node.name for node in graph.node}
    imported = tf.graph_util.import_graph_def(
      graph,
      input_map={n: _here(t) for n, t in given.items() if graphs.node_of(n) in present},
      return_elements=[*results, *(f'{name}:0' for name in handles)],
      name=_SCOPE,
    )
    self._variables.extend(imported[len(results) :])
    return _assembled(program.result, dict(zip(results, imported)))

  def cleaned(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the tensors, once the memory of the variables is free."""
    if not self._variables:
      return [tf.identity(tensor) for tensor in tensors]
    with tf.control_dependencies(tensors):
      freed = [tf.raw_ops.DestroyResourceOp(resource=v) for v in self._variables]
    with tf.control_dependencies(freed):
      return [tf.identity(tensor) for tensor in tensors]

  def new_seed(self) -> tf.Tensor:
    """Returns a seed that nothing else has; int64, shape [2]."""
    self._count += 1
    return randomness.child(self._seed, self._count - 1)

  def within(self, seed: tf.Tensor) -> 'Importer':
    """Returns an importer for a function of the graph, with a seed of the function's own."""
    inner = Importer(seed, honours_seeds=self._honours_seeds, of_clients=self._of_clients)
    inner.resources = self.resources
    return inner


def _here(tensor: tf.Tensor) -> tf.Tensor:
  """Returns a tensor in the graph that is being built, which may be a function of its own."""
  graph = tf.compat.v1.get_default_graph()
  return tensor if tensor.graph is graph else graph.capture(tensor)


def _bound(binding: Any, value: Value) -> Iterator[tuple[str, tf.Tensor]]:
  """The name and the value of each tensor of the parameter."""
  kind = binding.WhichOneof('binding')
  if kind == 'struct':
    for part, of_part in zip(binding.struct.element, value, strict=True):
      yield from _bound(part, of_part)
  elif kind:
    (name,) = graphs.tensor_names(binding)
    yield name, value


def _assembled(binding: Any, tensors: dict[str, tf.Tensor]) -> Value:
  if binding.WhichOneof('binding') == 'struct':
    return tuple(_assembled(part, tensors) for part in binding.struct.element)
  (name,) = graphs.tensor_names(binding)
  return tensors[name]


def _prune(graph: tf.compat.v1.GraphDef, wanted: set[str], inputs: set[str]) -> None:
  """Keeps what is wanted, what it needs, and the inputs, for which nothing has to wait."""
  kept = graphs.needed(graph, wanted, inputs)
  for index in reversed(range(len(graph.node))):
    node = graph.node[index]
    if node.name not in kept:
      del graph.node[index]
    else:
      node.input[:] = [one for one in node.input if one[0] != '^' or one[1:] not in inputs]


def _leave_out(graph: tf.compat.v1.GraphDef) -> None:
  """Drops attributes that name nodes or cannot hold in a rewritten graph, and what is asserted."""
  functions = {f.signature.name: f for f in graph.library.function}

  def is_unchanged(name: str) -> bool:
    nodes = functions[name].node_def
    return all(map(_UNCHANGED.fullmatch, (n.op for n in nodes))) and all(
      is_unchanged(inner) for n in nodes for inner in graphs.function_names(n)
    )

  uses = [(node, graphs.function_names(node)) for node in graphs.nodes(graph)]
  for node, _ in uses:
    if node.op == 'Assert':
      node.attr['summarize'].i = 0  # Of the tensors of its message, some reach TensorFlow's log.
  for one, names in [*uses, *((function, [name]) for name, function in functions.items())]:
    for attribute in _LEFT_OUT[: 1 if all(map(is_unchanged, names)) else None]:
      if attribute in one.attr:
        del one.attr[attribute]


def _rename(graph: tf.compat.v1.GraphDef, suffix: str) -> None:
  """Tells functions of a rewritten graph from those of the original."""
  names = {function.signature.name for function in graph.library.function}
  renamed = lambda name: name + suffix if name in names else name
  for node in graphs.nodes(graph):
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
